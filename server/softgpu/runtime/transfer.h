// A copy or fill by the host, described once and carried out in pieces.
//
// A transfer owns nothing and can be copied. Its addresses are never trusted: each piece is checked against
// the memory map with the access lock held, so that freeing the memory meanwhile ends the transfer and not
// the process.
#pragma once
#include <cstdint>

#include "server/softgpu/runtime/memory_map.h"

namespace gpupool::softgpu {

// A box of bytes: `depth` slices of `height` rows of `width` bytes.
struct Transfer {
  uint64_t destination = 0;
  uint64_t source = 0;  // copies only
  uint64_t width = 0;   // bytes of a row
  uint64_t height = 1;
  uint64_t depth = 1;
  uint64_t destination_pitch = 0, destination_slice = 0;  // bytes between rows and between slices
  uint64_t source_pitch = 0, source_slice = 0;
  uint32_t fill_width = 0;  // 0: a copy; 1, 2 or 4: fill with this many bytes of `fill_value`
  uint32_t fill_value = 0;

  static Transfer copy(uint64_t destination, uint64_t source, uint64_t bytes);
  static Transfer fill(uint64_t destination, uint32_t value, uint32_t value_width, uint64_t count);

  uint64_t bytes() const { return width * height * depth; }
  bool is_fill() const { return fill_width != 0; }
  // Bytes from the first byte touched to the end of the last; 0 for an empty transfer.
  uint64_t destination_extent() const;
  uint64_t source_extent() const;
};

enum class TransferStep { more, finished, bad_address };

// The progress of a transfer.
class TransferCursor {
 public:
  // Carries out the next piece, of at most `limit` bytes.
  TransferStep advance(const Transfer& transfer, const MemoryMap& memory, uint64_t limit);

 private:
  uint64_t row_ = 0;     // counted across all slices
  uint64_t column_ = 0;  // bytes of the row that are done
};

}  // namespace gpupool::softgpu
