// Copies between rows of bytes that are `pitch` bytes apart in memory and the same rows packed. Used by all
// copies of rectangles in client and worker. No state, any thread.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gpupool::wire {

// Joins rows without gaps on any side into one row.
template <class Count, class... Pitch>
constexpr void join_rows(Count& width, Count& rows, Pitch... pitches) {
  if (rows == 1 || ((pitches != width) || ...)) return;
  width *= rows;
  rows = 1;
}

// Locates the packed bytes [offset, offset + bytes) in the unpacked rows: calls visit(offset in the rows'
// memory, offset relative to `offset`, size) for each row. Stops and returns false when visit() returns
// false.
template <class Visit>
bool for_each_row(uint64_t width, uint64_t pitch, uint64_t offset, uint64_t bytes, Visit&& visit) {
  if (pitch == width) return bytes == 0 || visit(offset, uint64_t{0}, bytes);
  for (uint64_t at = 0; at < bytes;) {
    const uint64_t column = (offset + at) % width;
    const uint64_t part = std::min(bytes - at, width - column);
    if (!visit((offset + at) / width * pitch + column, at, part)) return false;
    at += part;
  }
  return true;
}

inline void pack_rows(const std::byte* rows, uint64_t width, uint64_t pitch, uint64_t offset,
                      std::byte* packed, uint64_t bytes) {
  for_each_row(width, pitch, offset, bytes, [&](uint64_t from, uint64_t to, uint64_t size) {
    std::memcpy(packed + to, rows + from, size);
    return true;
  });
}
inline void spread_rows(std::byte* rows, uint64_t width, uint64_t pitch, uint64_t offset,
                        const std::byte* packed, uint64_t bytes) {
  for_each_row(width, pitch, offset, bytes, [&](uint64_t to, uint64_t from, uint64_t size) {
    std::memcpy(rows + to, packed + from, size);
    return true;
  });
}

}  // namespace gpupool::wire
