#include "protocol/transport/shm/ring.h"

#include <algorithm>
#include <cstring>

namespace gpupool::transport::shm {

void RingWriter::put(const std::byte* from, size_t bytes) {
  const size_t at = written_ & (capacity_ - 1);
  const size_t front = std::min(bytes, capacity_ - at);
  std::memcpy(data_ + at, from, front);
  std::memcpy(data_, from + front, bytes - front);
  written_ += bytes;
}

void RingReader::get(std::byte* to, size_t bytes) const {
  const size_t at = read_.load(std::memory_order_relaxed) & (capacity_ - 1);
  const size_t front = std::min(bytes, capacity_ - at);
  std::memcpy(to, data_ + at, front);
  std::memcpy(to + front, data_, bytes - front);
}

}  // namespace gpupool::transport::shm
