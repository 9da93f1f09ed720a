#include "server/softgpu/runtime/green_context.h"

#include <vector>

#include "server/softgpu/runtime/runtime.h"

namespace gpupool::softgpu {

Ref<MultiprocessorSet> MultiprocessorSet::of(Device& device, const Multiprocessors& multiprocessors) {
  static std::mutex mutex;
  static auto& known =
      *new std::vector<Ref<MultiprocessorSet>>;  // never destroyed: exit handlers call the driver
  std::lock_guard guard(mutex);
  for (const Ref<MultiprocessorSet>& one : known) {
    if (&one->device_ == &device && *one->multiprocessors_ == multiprocessors) return one;
  }
  const Ref<MultiprocessorSet> made =
      Ref<MultiprocessorSet>::adopt(new MultiprocessorSet(device, multiprocessors));
  made->handle_ = runtime().handles().add(made);
  if (made->handle_ == 0) return nullptr;
  known.push_back(made);
  return made;
}

CUresult retain_primary(Device& device) {
  std::lock_guard guard(device.primary_mutex);
  if (!device.primary().active()) {
    if (const CUresult result = device.primary().activate(); result != CUDA_SUCCESS) return result;
  }
  ++device.primary_retained;
  return CUDA_SUCCESS;
}

bool release_primary(Device& device) {
  std::lock_guard guard(device.primary_mutex);
  if (device.primary_retained == 0) return false;
  if (--device.primary_retained == 0 && device.primary().active()) device.primary().tear_down();
  return true;
}

CUresult GreenContext::create(const MultiprocessorSet& resources, uint64_t* handle) {
  const Ref<Context> context = make_ref<Context>(resources.device(), resources.multiprocessors());
  context->set_handle(runtime().handles().add(context));
  const Ref<GreenContext> made = Ref<GreenContext>::adopt(new GreenContext(context));
  *handle = context->handle() == 0 ? 0 : runtime().handles().add(made);
  if (*handle == 0) {
    if (context->handle() != 0) runtime().handles().remove<Context>(context->handle());
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  context->green_handle = *handle;
  if (const CUresult result = retain_primary(resources.device()); result != CUDA_SUCCESS) {
    runtime().handles().remove<GreenContext>(*handle);
    runtime().handles().remove<Context>(context->handle());
    return result;
  }
  return context->activate();
}

void GreenContext::destroy() {
  runtime().handles().remove<Context>(context_->handle());
  if (context_->active()) context_->tear_down();
  release_primary(context_->device());
}

}  // namespace gpupool::softgpu
