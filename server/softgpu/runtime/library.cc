#include "server/softgpu/runtime/library.h"

#include <algorithm>
#include <cstdio>

#include "protocol/driver/driver_log.h"
#include "server/softgpu/runtime/device.h"
#include "server/softgpu/runtime/runtime.h"

namespace gpupool::softgpu {
namespace {

struct SettingsRequest {
  Library* library;
  int device;
};

}  // namespace

CUresult Library::create(std::shared_ptr<const Program> program, std::string why_no_code,
                         Ref<Library>* library) {
  Ref<Library> made = Ref<Library>::adopt(new Library(std::move(program)));
  made->no_code_reason_ = std::move(why_no_code);
  made->handle_ = runtime().handles().add(made);
  bool full = made->handle_ == 0;
  for (const KernelInfo& info :
       made->has_code() ? made->program_->kernels() : std::span<const KernelInfo>()) {
    Ref<Kernel> kernel = make_ref<Kernel>(made, info, runtime().devices().size());
    kernel->handle = runtime().handles().add(kernel);
    full = full || kernel->handle == 0;
    made->kernels_.emplace(info.name, std::move(kernel));
  }
  if (full) {
    made->unload();
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *library = std::move(made);
  return CUDA_SUCCESS;
}

CUresult find_library(uint64_t handle, Ref<Library>* library) {
  *library = runtime().handles().find<Library>(handle);
  if (!*library) return CUDA_ERROR_INVALID_HANDLE;
  if ((*library)->has_code()) return CUDA_SUCCESS;
  (*library)->report_no_code();
  return CUDA_ERROR_NO_BINARY_FOR_GPU;
}

void Library::report_no_code() {
  std::lock_guard guard(mutex_);
  const std::string why = std::exchange(no_code_reason_, {});
  if (why.empty()) return;
  std::fprintf(stderr, "softgpu: %s\n", why.c_str());
  cuda::log_for_program(cuda::Severity::error, why);
}

Ref<Kernel> Library::kernel(std::string_view name) {
  std::lock_guard guard(mutex_);
  const auto it = kernels_.find(name);
  return it == kernels_.end() ? nullptr : it->second;
}

std::vector<Ref<Kernel>> Library::kernels() {
  std::lock_guard guard(mutex_);
  std::vector<Ref<Kernel>> all;
  for (const auto& [name, kernel] : kernels_) all.push_back(kernel);
  return all;
}

std::shared_ptr<FunctionSettings> Library::settings_of(void* user, const KernelInfo& info) {
  const auto& request = *static_cast<SettingsRequest*>(user);
  const auto it = request.library->kernels_.find(info.name);
  return it == request.library->kernels_.end()
             ? std::make_shared<FunctionSettings>()
             : std::make_shared<FunctionSettings>(it->second->shared_settings(request.device));
}

CUresult Library::module(Context& current, Ref<Module>* module) {
  Context& context = current.root();
  std::lock_guard guard(mutex_);
  const uint64_t epoch = context.epoch();
  const auto it = instances_.find(context.handle());
  if (it != instances_.end() && it->second.epoch == epoch) {
    *module = it->second.module;
    return CUDA_SUCCESS;
  }
  Context& primary = runtime().devices().front()->primary();
  uint64_t data = 0;
  if (&context == &primary) {
    const bool again = managed_data_ != 0;
    if (const CUresult result = place_managed(); result != CUDA_SUCCESS) return result;
    data = managed_data_;
    if (again && it != instances_.end()) {
      program_->write_data({reinterpret_cast<std::byte*>(data), program_->data_bytes()}, data);
    }
  }
  SettingsRequest request{this, context.device().index()};
  Ref<Module> made;
  const CUresult result =
      Module::create(Ref<Context>::share(&context), program_, data, settings_of, &request, &made);
  if (result != CUDA_SUCCESS) return result;
  instances_[context.handle()] = {epoch, made};
  *module = std::move(made);
  return CUDA_SUCCESS;
}

CUresult Library::place_managed() {
  const auto globals = program_->globals();
  if (managed_data_ != 0 || std::none_of(globals.begin(), globals.end(),
                                         [](const GlobalInfo& global) { return global.is_managed; })) {
    return CUDA_SUCCESS;
  }
  // Context 0: a reset of the context does not free the memory.
  return place_globals(*program_, *runtime().devices().front(), 0, &managed_data_);
}

CUresult Library::managed(std::string_view name, uint64_t* address, uint64_t* size) {
  const GlobalInfo* global = program_->find_global(name);
  if (global == nullptr || !global->is_managed) return CUDA_ERROR_NOT_FOUND;
  std::lock_guard guard(mutex_);
  if (const CUresult result = place_managed(); result != CUDA_SUCCESS) return result;
  *address = managed_data_ + global->offset;
  *size = global->size;
  return CUDA_SUCCESS;
}

void Library::unload() {
  std::map<std::string, Ref<Kernel>, std::less<>> kernels;
  std::map<uint64_t, Instance> instances;
  uint64_t managed = 0;
  {
    std::lock_guard guard(mutex_);
    kernels.swap(kernels_);
    instances.swap(instances_);
    managed = std::exchange(managed_data_, 0);
  }
  runtime().handles().remove<Library>(handle_);
  for (const auto& [name, kernel] : kernels) runtime().handles().remove<Kernel>(kernel->handle);
  for (const auto& [context, instance] : instances) {
    // Work of the context may still use the module's data.
    if (instance.module->context().active() && instance.module->context().epoch() == instance.epoch) {
      instance.module->context().synchronize();
    }
    instance.module->unload();
  }
  if (managed != 0) remove_globals(*program_, *runtime().devices().front(), managed);
}

Kernel::Kernel(Ref<Library> library, const KernelInfo& info, size_t devices)
    : library_(std::move(library)), info_(info) {
  for (size_t i = 0; i < devices; ++i) settings_.push_back(std::make_shared<FunctionSettings>());
}

CUresult Kernel::function(Context& current, Ref<Function>* function) {
  Context& context = current.root();
  const uint64_t epoch = context.epoch();
  {
    std::lock_guard guard(lock_);
    if (cached_ && cached_context_ == context.handle() && cached_epoch_ == epoch) {
      *function = cached_;
      return CUDA_SUCCESS;
    }
  }
  Ref<Module> module;
  if (const CUresult result = library_->module(context, &module); result != CUDA_SUCCESS) return result;
  Ref<Function> found = module->function(info_.name);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  found->library_kernel.store(handle, std::memory_order_relaxed);
  Ref<Function> before;  // dropped outside the lock
  {
    std::lock_guard guard(lock_);
    cached_context_ = context.handle();
    cached_epoch_ = epoch;
    before = std::move(cached_);
    cached_ = found;
  }
  *function = std::move(found);
  return CUDA_SUCCESS;
}

CUresult resolve_function(Context& context, uint64_t handle, Ref<Function>* function) {
  if (HandleTable::kind_of(handle) == HandleKind::kernel) {
    const Ref<Kernel> kernel = runtime().handles().find<Kernel>(handle);
    return kernel ? kernel->function(context, function) : CUDA_ERROR_INVALID_HANDLE;
  }
  *function = runtime().handles().find<Function>(handle);
  return *function ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace gpupool::softgpu
