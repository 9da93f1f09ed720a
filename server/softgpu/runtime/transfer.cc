#include "server/softgpu/runtime/transfer.h"

#include <algorithm>
#include <cstring>
#include <shared_mutex>

#include "server/softgpu/memory/address_space.h"

namespace gpupool::softgpu {
namespace {

uint64_t extent(const Transfer& transfer, uint64_t pitch, uint64_t slice) {
  if (transfer.bytes() == 0) return 0;
  return (transfer.depth - 1) * slice + (transfer.height - 1) * pitch + transfer.width;
}

void fill_bytes(void* destination, uint32_t value, uint32_t value_width, uint64_t bytes) {
  switch (value_width) {
    case 1:
      std::memset(destination, static_cast<int>(value & 0xff), bytes);
      break;
    case 2:
      std::fill_n(static_cast<uint16_t*>(destination), bytes / 2, static_cast<uint16_t>(value));
      break;
    default:
      std::fill_n(static_cast<uint32_t*>(destination), bytes / 4, value);
      break;
  }
}

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
  // Only memory of ours can go away behind the program's back; other host memory is the program's own affair.
  if (in_range(transfer.destination, 1) &&
      !memory.accessible(transfer.destination, transfer.destination_extent(), true)) {
    return TransferStep::bad_address;
  }
  if (!transfer.is_fill() && in_range(transfer.source, 1) &&
      !memory.accessible(transfer.source, transfer.source_extent(), false)) {
    return TransferStep::bad_address;
  }
  const uint64_t rows = transfer.height * transfer.depth;
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
