// Local memory: stacks, spilled registers and local arrays of kernel threads. The device allocates it for the
// maximum number of resident threads, at the size that the most demanding kernel so far needs, and at least
// at the stack limit. A launch that needs more makes it grow. So the maximum over a context's kernels is
// charged before the launch, until the context ends.
#include <algorithm>
#include <vector>

#include "server/worker/memory/memory_charges.h"

namespace gpupool::worker {
namespace {

constexpr uint64_t kLeastGranularity = 512;

}  // namespace

// Returns the whole size, although the context may have some of it from its creation: the driver does not
// report that.
uint64_t MemoryCharges::local_memory(uint64_t bytes_per_thread, int device) const {
  int processors = 0, threads = 0;
  if (!api_.cuDeviceGetAttribute ||
      api_.cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) !=
          CUDA_SUCCESS ||
      api_.cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device) !=
          CUDA_SUCCESS) {
    return 0;
  }
  const auto index = static_cast<size_t>(device);
  const uint64_t granularity =
      std::max(index < start_.granularity.size() ? start_.granularity[index] : 0, kLeastGranularity);
  const uint64_t all = static_cast<uint64_t>(processors) * static_cast<uint64_t>(threads);
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(all, bytes_per_thread, &bytes) || bytes > UINT64_MAX - granularity)
    return UINT64_MAX;
  return (bytes + granularity - 1) / granularity * granularity;
}

// Raises *bytes to the need of a function or kernel.
CUresult MemoryCharges::add_local_bytes(cuda::Kind kind, void* object, int device, uint64_t* bytes) const {
  int needed = 0;
  CUresult result = CUDA_SUCCESS;
  if (kind == cuda::Kind::function) {
    result =
        api_.cuFuncGetAttribute(&needed, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, static_cast<CUfunction>(object));
#if CUDA_VERSION >= 12000
  } else if (api_.cuKernelGetAttribute) {
    result = api_.cuKernelGetAttribute(&needed, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
                                       static_cast<CUkernel>(object), device);
#endif
  }
  *bytes = std::max(*bytes, static_cast<uint64_t>(std::max(needed, 0)));
  return result;
}

// Does the same for all kernels of a module or library: a kernel may launch any of them, and the worker does
// not see these launches.
CUresult MemoryCharges::add_local_bytes_of_all(uint64_t code, int device, uint64_t* bytes) const {
#if CUDA_VERSION >= 12040
  const auto add_all = [&](cuda::Kind kind, auto of, const auto& count_of, const auto& enumerate,
                           auto object) -> CUresult {
    if (!count_of || !enumerate) return CUDA_SUCCESS;
    unsigned count = 0;
    CUresult result = count_of(&count, of);
    std::vector<decltype(object)> all(count);
    if (result == CUDA_SUCCESS && count != 0) result = enumerate(all.data(), count, of);
    for (const auto one : all) {
      if (result == CUDA_SUCCESS) result = add_local_bytes(kind, one, device, bytes);
    }
    return result;
  };
  if (const auto module = table_.resolve(cuda::Kind::module, code)) {
    return add_all(cuda::Kind::function, static_cast<CUmodule>(*module), api_.cuModuleGetFunctionCount,
                   api_.cuModuleEnumerateFunctions, CUfunction{});
  }
  if (const auto library = table_.resolve(cuda::Kind::library, code)) {
    return add_all(cuda::Kind::kernel, static_cast<CUlibrary>(*library), api_.cuLibraryGetKernelCount,
                   api_.cuLibraryEnumerateKernels, CUkernel{});
  }
#endif
  return CUDA_SUCCESS;
}

// Fails if the driver does not report the kernel's need. It reports none in a broken context, and a later
// context would take the need for 0.
CUresult MemoryCharges::grow_local_memory(ContextState& context, const HandleTable::Launchable& kernel) {
  KernelMemory& memory = *kernel.memory;
  if ((memory.devices & bit_of_device(context.device)) == 0) {
    CUresult result =
        add_local_bytes(cuda::kind_of(kernel.handle), kernel.object, context.device, &memory.bytes);
    const auto code = images_.find(kernel.owner);
    if (result == CUDA_SUCCESS && code != images_.end() && code->second.launches_kernels) {
      result = add_local_bytes_of_all(kernel.owner, context.device, &memory.bytes);
    }
    if (result != CUDA_SUCCESS) return result;
    memory.devices |= bit_of_device(context.device);
  }
  return grow_local_memory(context, memory.bytes);
}

CUresult MemoryCharges::grow_local_memory(ContextState& context, uint64_t bytes_per_thread) {
  // Query the initial limit before anything makes it grow: a driver may raise the limit to the need of a
  // kernel.
  if (context.local.at_first == 0) {
    const CUcontext before = current_context();
    size_t stack = 0;
    const bool told = api_.cuCtxGetLimit && make_current(api_, context.object) == CUDA_SUCCESS &&
                      api_.cuCtxGetLimit(&stack, CU_LIMIT_STACK_SIZE) == CUDA_SUCCESS;
    make_current(api_, before);
    context.local.at_first = context.local.bytes = told ? std::max<uint64_t>(stack, 1) : 1;
  }
  if (bytes_per_thread <= context.local.bytes) return CUDA_SUCCESS;
  const uint64_t all = local_memory(bytes_per_thread, context.device),
                 more = all - std::min(all, context.local.charged);
  if (const CUresult result = memory_.charge(context.device, more); result != CUDA_SUCCESS) return result;
  context.local.bytes = bytes_per_thread;
  context.local.charged += more;
  context.charged += more;
  return CUDA_SUCCESS;
}

void MemoryCharges::restore_local_memory(ContextState& context, const ContextState::LocalMemory& before) {
  const uint64_t more = context.local.charged - before.charged;
  if (more == 0) return;
  memory_.uncharge(context.device, more);
  memory_.undo_peak(context.device);
  context.charged -= more;
  context.local.bytes = std::max(before.bytes, context.local.at_first);
  context.local.charged = before.charged;
}

// Lowering the limit releases nothing: see ContextState::LocalMemory.
CUresult MemoryCharges::set_stack_limit(ContextState& context, size_t value) {
  const ContextState::LocalMemory before = context.local;
  CUresult result = grow_local_memory(context, value);
  if (result != CUDA_SUCCESS) return result;
  result = api_.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, value);
  if (result != CUDA_SUCCESS) restore_local_memory(context, before);
  return result;
}

}  // namespace gpupool::worker
