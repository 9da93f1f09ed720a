// Checks whether the program has memory at an address. A system call on unmapped memory would fail in the
// middle of a message, which would end the session. Stateless; any thread.
#pragma once
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>

#include "client/memory/host_pages.h"

namespace gpupool::client {

inline bool is_host_range_mapped(uint64_t address, uint64_t bytes) {
  constexpr uint64_t kPages = 4096;  // pages per mincore() call
  unsigned char resident[kPages];
  const uint64_t page = HostPages::page(), end = address + bytes;
  for (uint64_t at = address / page * page; at < end; at += kPages * page) {
    const uint64_t part = std::min(end - at, kPages * page);
    if (::mincore(reinterpret_cast<void*>(static_cast<uintptr_t>(at)), part, resident) != 0) return false;
  }
  return true;
}

}  // namespace gpupool::client
