// Gather lists, as send_some() takes them.
#pragma once
#include <sys/uio.h>

#include <cstddef>
#include <span>

namespace gpupool::transport {

inline size_t size_of(std::span<const iovec> buffers) {
  size_t total = 0;
  for (const iovec& buffer : buffers) total += buffer.iov_len;
  return total;
}

}  // namespace gpupool::transport
