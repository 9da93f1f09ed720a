#include "server/worker/memory/shared_host_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <vector>

namespace gpupool::worker {
namespace {

size_t byte_limit() {
  return static_cast<size_t>(::sysconf(_SC_PHYS_PAGES)) / 2 * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

// True for memory of exactly this size whose pages are allocated and that cannot shrink.
bool is_safe(int descriptor, uint64_t size) {
  struct stat about {};
  struct statfs system {};
  const int seals = ::fcntl(descriptor, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && ::fstatfs(descriptor, &system) == 0 &&
         system.f_type == TMPFS_MAGIC && ::fstat(descriptor, &about) == 0 && about.st_size >= 0 &&
         static_cast<uint64_t>(about.st_size) == size && static_cast<uint64_t>(about.st_blocks) * 512 >= size;
}

// Maps at the preferred address if nothing of this process is there, which the client must not be able to
// replace, otherwise anywhere. MAP_POPULATE avoids a page fault per page in the first copy.
void* map(int descriptor, uint64_t size, uint64_t preferred) {
  constexpr uint64_t kLowest = uint64_t{1} << 32, kHighest = uint64_t{1} << 47;
  const bool usable = preferred >= kLowest && preferred < kHighest && size <= kHighest - preferred;
  void* const hint = reinterpret_cast<void*>(static_cast<uintptr_t>(usable ? preferred : 0));
  return ::mmap(hint, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor, 0);
}

}  // namespace

CUresult SharedHostMemory::add(ContextState& context, uint64_t id, int descriptor, uint64_t size,
                               uint64_t preferred, uint64_t* device) {
  *device = 0;
  if (!api_.cuMemHostRegister_v2 || !api_.cuMemHostUnregister) return CUDA_ERROR_NOT_SUPPORTED;
  if (size == 0 || !is_safe(descriptor, size)) return CUDA_ERROR_INVALID_VALUE;
  {
    const std::lock_guard lock(mutex_);
    if (memories_.contains(id)) return CUDA_ERROR_INVALID_VALUE;
    if (memories_.size() >= kMaxSharedHostMemory || size > byte_limit() - total_)
      return CUDA_ERROR_OUT_OF_MEMORY;
  }
  void* const start = map(descriptor, size, preferred);
  if (start == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  const unsigned flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
  if (const CUresult result = api_.cuMemHostRegister_v2(start, size, flags); result != CUDA_SUCCESS) {
    ::munmap(start, size);
    return result;
  }
  CUdeviceptr found = 0;
  if (api_.cuMemHostGetDevicePointer_v2 &&
      api_.cuMemHostGetDevicePointer_v2(&found, start, 0) == CUDA_SUCCESS)
    *device = found;
  const std::lock_guard lock(mutex_);
  memories_.emplace(id, Memory{&context, static_cast<std::byte*>(start), size, false});
  total_ += size;
  return CUDA_SUCCESS;
}

std::byte* SharedHostMemory::find(const ContextState& context, uint64_t id, uint64_t offset, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = memories_.find(id);
  if (found == memories_.end() || found->second.released || found->second.context != &context) return nullptr;
  const Memory& memory = found->second;
  return offset <= memory.size && bytes <= memory.size - offset ? memory.start + offset : nullptr;
}

void SharedHostMemory::release(uint64_t id) {
  const CUcontext context = [&]() -> CUcontext {
    const std::lock_guard lock(mutex_);
    const auto found = memories_.find(id);
    if (found == memories_.end() || found->second.released) return nullptr;
    found->second.released = true;
    return found->second.context->object;
  }();
  if (!context) return;
  // If no thread is available, the memory is unmapped with its context.
  (void)waits_.submit(context, "unregistering shared host memory", [this, id, context] {
    make_current(api_, context);
    api_.cuCtxSynchronize();
    Memory memory{};
    {
      const std::lock_guard lock(mutex_);
      // Only removed by this task, or by the end of the context, which waits for this task.
      memory = memories_.at(id);
    }
    unmap(memory);
    {
      const std::lock_guard lock(mutex_);
      memories_.erase(id);
    }
    make_current(api_, nullptr);
  });
}

void SharedHostMemory::drop_context(const ContextState& context) {
  std::vector<Memory> dropped;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(memories_, [&](const auto& entry) {
      if (entry.second.context != &context) return false;
      dropped.push_back(entry.second);
      return true;
    });
  }
  for (const Memory& memory : dropped) unmap(memory);
}

void SharedHostMemory::unmap(const Memory& memory) {
  api_.cuMemHostUnregister(memory.start);
  ::munmap(memory.start, memory.size);
  const std::lock_guard lock(mutex_);
  total_ -= memory.size;
}

}  // namespace gpupool::worker
