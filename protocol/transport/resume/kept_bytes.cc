#include "protocol/transport/resume/kept_bytes.h"

#include <algorithm>
#include <cstring>

namespace gpupool::transport {

void KeptBytes::append(std::span<const iovec> buffers, size_t bytes) {
  if (bytes > most_ - std::min(size(), most_)) {
    end_ += bytes;
    drop_before(end_);
    return;
  }
  for (const iovec& buffer : buffers) {
    const size_t part = std::min(buffer.iov_len, bytes);
    put(static_cast<const std::byte*>(buffer.iov_base), part);
    bytes -= part;
    if (bytes == 0) return;
  }
}

void KeptBytes::put(const std::byte* from, size_t bytes) {
  while (bytes != 0) {
    const uint64_t at = end_ - first_;
    if (at / kBlockBytes == blocks_.size()) {
      if (spare_.empty()) {
        blocks_.push_back(std::make_unique_for_overwrite<std::byte[]>(kBlockBytes));
      } else {
        blocks_.push_back(std::move(spare_.back()));
        spare_.pop_back();
      }
    }
    const size_t step = std::min(bytes, kBlockBytes - at % kBlockBytes);
    std::memcpy(blocks_.back().get() + at % kBlockBytes, from, step);
    from += step;
    bytes -= step;
    end_ += step;
  }
}

void KeptBytes::drop_before(uint64_t position) {
  begin_ = std::max(begin_, position);
  while (!blocks_.empty() && first_ + kBlockBytes <= begin_) {
    if (spare_.size() < kSpareBlocks) spare_.push_back(std::move(blocks_.front()));
    blocks_.pop_front();
    first_ += kBlockBytes;
  }
  if (blocks_.empty()) first_ = begin_ - begin_ % kBlockBytes;
}

std::vector<iovec> KeptBytes::from(uint64_t position, size_t parts) const {
  std::vector<iovec> found;
  while (position < end_ && found.size() < parts) {
    const uint64_t at = position - first_;
    const uint64_t step = std::min(kBlockBytes - at % kBlockBytes, end_ - position);
    found.push_back({blocks_[at / kBlockBytes].get() + at % kBlockBytes, step});
    position += step;
  }
  return found;
}

}  // namespace gpupool::transport
