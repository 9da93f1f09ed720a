#include "server/softgpu/exec/checked_read.h"

#include <algorithm>
#include <cstring>

#include "server/softgpu/exec/context.h"
#include "server/softgpu/memory/address_space.h"

namespace gpupool::softgpu {

bool read_checked(void* to, uint64_t address, uint64_t bytes) {
  if (!in_range(address, bytes) && !is_registered_host(address, bytes, false)) return false;
  return softgpu_copy_checked(to, reinterpret_cast<const void*>(address), bytes) == 0;
}

int64_t read_string_checked(char* to, uint64_t capacity, uint64_t address) {
  if (capacity == 0) return -1;
  uint64_t length = 0;
  while (length < capacity - 1) {
    // Reads do not cross a 64-byte line, so that a string at the end of its page does not touch the next
    // page.
    const uint64_t bytes = std::min(capacity - 1 - length, 64 - (address + length) % 64);
    bool read = read_checked(to + length, address + length, bytes);
    uint64_t got = bytes;
    if (!read) {  // registered host memory may end within the line: read single bytes
      got = 1;
      read = read_checked(to + length, address + length, 1);
    }
    if (!read) return -1;
    if (const void* end = std::memchr(to + length, 0, got)) return static_cast<const char*>(end) - to;
    length += got;
  }
  to[length] = '\0';
  return static_cast<int64_t>(length);
}

}  // namespace gpupool::softgpu
