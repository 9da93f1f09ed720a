// Gather lists, as send_some() takes them.
#pragma once
#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <span>

namespace gpupool::transport {

inline size_t size_of(std::span<const iovec> buffers) {
  size_t total = 0;
  for (const iovec& buffer : buffers) total += buffer.iov_len;
  return total;
}

// Removes the first `sent` bytes, and then the empty buffers at the front: nothing is left if all was sent.
inline void drop_sent(std::span<iovec>& buffers, size_t sent) {
  while (!buffers.empty()) {
    iovec& first = buffers.front();
    const size_t step = std::min(sent, first.iov_len);
    first.iov_base = static_cast<std::byte*>(first.iov_base) + step;
    first.iov_len -= step;
    sent -= step;
    if (first.iov_len != 0) return;
    buffers = buffers.subspan(1);
  }
}

}  // namespace gpupool::transport
