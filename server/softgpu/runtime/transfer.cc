#include "server/softgpu/runtime/transfer.h"

#include <algorithm>
#include <cstring>
#include <shared_mutex>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "server/softgpu/memory/address_space.h"

namespace gpupool::softgpu {
namespace {

uint64_t extent(const Transfer& transfer, uint64_t pitch, uint64_t slice) {
  if (transfer.bytes() == 0) return 0;
  return (transfer.depth - 1) * slice + (transfer.height - 1) * pitch + transfer.width;
}

void fill_bytes(void* destination, uint32_t value, uint32_t value_width, uint64_t bytes) {
  switch (value_width) {
    case 1: std::memset(destination, static_cast<int>(value & 0xff), bytes); break;
    case 2: std::fill_n(static_cast<uint16_t*>(destination), bytes / 2, static_cast<uint16_t>(value)); break;
    default: std::fill_n(static_cast<uint32_t*>(destination), bytes / 4, value); break;
  }
}

// From this size on, no cache keeps the beginning until the end. Stores that bypass the caches avoid reading
// every line of the destination before it is overwritten: a third of the traffic.
constexpr uint64_t kStreamedBytes = 128 << 20;

#ifdef __SSE2__
void stream_line(std::byte* to, const std::byte* from) {
  const auto* const in = reinterpret_cast<const __m128i*>(from);
  auto* const out = reinterpret_cast<__m128i*>(to);
  const __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1);
  const __m128i c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);
  _mm_stream_si128(out, a);
  _mm_stream_si128(out + 1, b);
  _mm_stream_si128(out + 2, c);
  _mm_stream_si128(out + 3, d);
}

void copy_past_cache(std::byte* to, const std::byte* from, uint64_t bytes) {
  constexpr uint64_t kLine = 64, kPage = 4096, kPages = 4;
  const uint64_t odd = std::min(-reinterpret_cast<uint64_t>(to) % kLine, bytes);
  std::memcpy(to, from, odd);
  to += odd, from += odd, bytes -= odd;
  // Several pages at a time, because one sequential stream does not saturate the memory.
  for (; bytes >= kPages * kPage; to += kPages * kPage, from += kPages * kPage, bytes -= kPages * kPage) {
    for (uint64_t line = 0; line < kPage; line += kLine) {
      for (uint64_t page = 0; page < kPages * kPage; page += kPage)
        stream_line(to + page + line, from + page + line);
    }
  }
  _mm_sfence();
  std::memcpy(to, from, bytes);
}
#else
void copy_past_cache(std::byte* to, const std::byte* from, uint64_t bytes) {
  std::memcpy(to, from, bytes);
}
#endif

}  // namespace

Transfer Transfer::copy(uint64_t destination, uint64_t source, uint64_t bytes) {
  Transfer transfer;
  transfer.destination = destination;
  transfer.source = source;
  transfer.width = bytes;
  return transfer;
}

Transfer Transfer::fill(uint64_t destination, uint32_t value, uint32_t value_width, uint64_t count) {
  Transfer transfer;
  transfer.destination = destination;
  transfer.width = count * value_width;
  transfer.fill_width = value_width;
  transfer.fill_value = value;
  return transfer;
}

uint64_t Transfer::destination_extent() const {
  return extent(*this, destination_pitch, destination_slice);
}
uint64_t Transfer::source_extent() const {
  return is_fill() ? 0 : extent(*this, source_pitch, source_slice);
}

TransferStep TransferCursor::advance(const Transfer& transfer, const MemoryMap& memory, uint64_t limit) {
  if (transfer.bytes() == 0) return TransferStep::finished;
  std::shared_lock guard(memory.access_lock());
  // Only memory in softgpu's range can be freed by other calls; the program is responsible for its own
  // memory.
  if (in_range(transfer.destination, 1) &&
      !memory.accessible(transfer.destination, transfer.destination_extent(), true)) {
    return TransferStep::bad_address;
  }
  if (!transfer.is_fill() && in_range(transfer.source, 1) &&
      !memory.accessible(transfer.source, transfer.source_extent(), false)) {
    return TransferStep::bad_address;
  }
  const uint64_t rows = transfer.height * transfer.depth;
  const bool overlaps = transfer.source < transfer.destination + transfer.destination_extent() &&
                        transfer.destination < transfer.source + transfer.source_extent();
  const bool streamed = transfer.bytes() >= kStreamedBytes && !overlaps;
  uint64_t left = limit;
  while (row_ < rows) {
    const uint64_t slice = row_ / transfer.height, row = row_ % transfer.height;
    const uint64_t bytes = std::min(left, transfer.width - column_);
    auto* destination =
        reinterpret_cast<std::byte*>(transfer.destination + slice * transfer.destination_slice +
                                     row * transfer.destination_pitch + column_);
    if (transfer.is_fill()) {
      fill_bytes(destination, transfer.fill_value, transfer.fill_width, bytes);
    } else {
      const auto* source = reinterpret_cast<const std::byte*>(
          transfer.source + slice * transfer.source_slice + row * transfer.source_pitch + column_);
      if (streamed)
        copy_past_cache(destination, source, bytes);
      else
        std::memmove(destination, source, bytes);
    }
    column_ += bytes;
    left -= bytes;
    if (column_ == transfer.width) {
      column_ = 0;
      ++row_;
    }
    if (left == 0) break;
  }
  return row_ == rows ? TransferStep::finished : TransferStep::more;
}

}  // namespace gpupool::softgpu
