#include "protocol/transport/resume/kept_bytes.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace gpupool::transport {

void KeptBytes::append(std::span<const iovec> buffers, size_t bytes) {
  if (bytes > most_ - std::min(size(), most_)) return skip(bytes);
  for (const iovec& buffer : buffers) {
    const size_t part = std::min(buffer.iov_len, bytes);
    const auto* const from = static_cast<const std::byte*>(buffer.iov_base);
    if (is_lent(from, part)) {
      pieces_.push_back({.begin = end_, .size = part, .data = from, .block = nullptr});
      end_ += part;
    } else {
      put(from, part);
    }
    bytes -= part;
    if (bytes == 0) return;
  }
}

bool KeptBytes::is_lent(const std::byte* from, size_t bytes) const {
  return bytes >= kLeastLent && from >= lent_.data() && from + bytes <= lent_.data() + lent_.size();
}

void KeptBytes::skip(size_t bytes) {
  end_ += bytes;
  drop_before(end_);
}

void KeptBytes::add_block() {
  Piece piece{.begin = end_, .data = nullptr, .block = nullptr, .room = kBlockBytes};
  if (spare_.empty()) {
    piece.block = std::make_unique_for_overwrite<std::byte[]>(kBlockBytes);
  } else {
    piece.block = std::move(spare_.back());
    spare_.pop_back();
  }
  piece.data = piece.block.get();
  pieces_.push_back(std::move(piece));
}

void KeptBytes::put(const std::byte* from, size_t bytes) {
  while (bytes != 0) {
    if (pieces_.empty() || pieces_.back().room == 0) add_block();
    Piece& last = pieces_.back();
    const size_t step = std::min(bytes, last.room);
    std::memcpy(last.block.get() + last.size, from, step);
    last.size += step;
    last.room -= step;
    from += step;
    bytes -= step;
    end_ += step;
  }
}

void KeptBytes::drop_before(uint64_t position) {
  begin_ = std::max(begin_, position);
  while (!pieces_.empty() && pieces_.front().end() <= begin_) {
    Piece& first = pieces_.front();
    if (pieces_.size() == 1 && first.room != 0) {  // reuse its memory, which is in the cache
      first.room += first.size;
      first.size = 0;
      first.begin = end_;
      return;
    }
    // Blocks of another size come from take_back().
    if (first.block && first.room + first.size == kBlockBytes && spare_.size() < kSpareBlocks)
      spare_.push_back(std::move(first.block));
    pieces_.pop_front();
  }
}

void KeptBytes::take_back(std::span<const std::byte> memory) {
  for (Piece& piece : pieces_) {
    if (piece.block || piece.data + piece.size <= memory.data() ||
        piece.data >= memory.data() + memory.size())
      continue;
    const size_t dropped = begin_ - std::min(begin_, piece.begin);
    piece.block = std::make_unique_for_overwrite<std::byte[]>(piece.size);
    std::memcpy(piece.block.get() + dropped, piece.data + dropped, piece.size - dropped);
    piece.data = piece.block.get();
  }
}

std::vector<iovec> KeptBytes::from(uint64_t position, size_t parts) const {
  std::vector<iovec> found;
  auto piece = std::upper_bound(pieces_.begin(), pieces_.end(), position,
                                [](uint64_t at, const Piece& one) { return at < one.end(); });
  for (; piece != pieces_.end() && found.size() < parts; ++piece) {
    const size_t before = position - piece->begin;
    if (piece->size != before)
      found.push_back({const_cast<std::byte*>(piece->data) + before, piece->size - before});
    position = piece->end();
  }
  return found;
}

}  // namespace gpupool::transport
