// The end of a byte stream that may have to be sent again: the bytes that were sent and that the peer has not
// acknowledged, by their position in the stream. Not thread-safe.
#pragma once
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

namespace gpupool::transport {

class KeptBytes {
 public:
  // `most`: bytes to keep. If more are unacknowledged, all are dropped, and holds() is false for every
  // position before end().
  explicit KeptBytes(size_t most) : most_(most) {}

  // Appends the first `bytes` of the gather list.
  void append(std::span<const iovec> buffers, size_t bytes);
  // Drops what lies before `position`, which may not be beyond end().
  void drop_before(uint64_t position);
  // True if the stream can be sent again from `position`.
  bool holds(uint64_t position) const { return begin_ <= position && position <= end_; }
  // The kept bytes from `position` on, at most `parts` buffers, valid until the next call of append() or
  // drop_before(). `position` must be held.
  std::vector<iovec> from(uint64_t position, size_t parts) const;

  uint64_t end() const { return end_; }  // bytes appended since the start
  size_t size() const { return end_ - begin_; }

 private:
  static constexpr size_t kBlockBytes = 64 * 1024;
  static constexpr size_t kSpareBlocks = 16;
  using Block = std::unique_ptr<std::byte[]>;

  void put(const std::byte* from, size_t bytes);

  const size_t most_;
  uint64_t begin_ = 0, end_ = 0;
  uint64_t first_ = 0;        // position of blocks_.front(), a multiple of kBlockBytes
  std::deque<Block> blocks_;  // without gaps from first_ on
  std::vector<Block> spare_;  // for reuse
};

}  // namespace gpupool::transport
