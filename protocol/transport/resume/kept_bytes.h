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

  // Appends the first `bytes` of the gather list. Large buffers within lent memory are not copied.
  void append(std::span<const iovec> buffers, size_t bytes);
  // The next `bytes` of the stream need not be kept: drops them, and all before them.
  void skip(size_t bytes);
  // Drops what lies before `position`, which may not be beyond end().
  void drop_before(uint64_t position);
  // Memory that stays as it is until take_back(); replaces what was lent before.
  void lend(std::span<const std::byte> memory) { lent_ = memory; }
  // Copies what is kept within this memory only.
  void take_back(std::span<const std::byte> memory);
  // True if the stream can be sent again from `position`.
  bool holds(uint64_t position) const { return begin_ <= position && position <= end_; }
  // The kept bytes from `position` on, at most `parts` buffers, valid until the next call of another
  // function. `position` must be held.
  std::vector<iovec> from(uint64_t position, size_t parts) const;

  uint64_t end() const { return end_; }  // bytes appended since the start
  size_t size() const { return end_ - begin_; }

 private:
  static constexpr size_t kBlockBytes = 64 * 1024;
  static constexpr size_t kSpareBlocks = 16;
  static constexpr size_t kLeastLent = 16 * 1024;  // copying less costs no more than an entry
  using Block = std::unique_ptr<std::byte[]>;
  struct Piece {
    uint64_t begin = 0;  // position
    size_t size = 0;
    const std::byte* data = nullptr;  // in `block`, or lent
    Block block;
    size_t room = 0;  // bytes that can still be appended to `block`
    uint64_t end() const { return begin + size; }
  };

  void put(const std::byte* from, size_t bytes);
  bool is_lent(const std::byte* from, size_t bytes) const;
  void add_block();

  size_t most_;
  uint64_t begin_ = 0, end_ = 0;
  std::deque<Piece> pieces_;  // without gaps; the first one may begin before begin_
  std::vector<Block> spare_;  // of kBlockBytes, for reuse
  std::span<const std::byte> lent_;
};

}  // namespace gpupool::transport
