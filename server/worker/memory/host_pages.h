// Host memory for the contents of device memory: excluded from core dumps, in huge pages where possible. Any
// thread.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

namespace gpupool::worker {

// Returns null if no memory is available.
inline std::byte* take_host_pages(uint64_t bytes) {
  void* const pages = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return nullptr;
  ::madvise(pages, bytes, MADV_DONTDUMP);
  ::madvise(pages, bytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(pages);
}

inline void release_host_pages(std::byte* pages, uint64_t bytes) {
  ::munmap(pages, bytes);
}

}  // namespace gpupool::worker
