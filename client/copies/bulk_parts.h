// Cuts the rows of a copy into bulk copies that respect the limits of wire::BulkCopy. Used by transfer.cc and
// server_copy.cc. No state.
#pragma once
#include <algorithm>

#include "client/copies/transfer.h"
#include "protocol/wire/copies.h"

namespace gpupool::client {

struct BulkPart {
  uint64_t host;    // offset in bytes from the start of the copy
  uint64_t device;  // offset in bytes, likewise
  uint64_t width;
  uint64_t rows;
};

// Calls visit(part, is_last) for each part in order; stops at the first result that is not CUDA_SUCCESS and
// returns it.
template <class Visit>
CUresult for_each_bulk_part(const Rows& rows, Visit&& visit) {
  if (rows.count != 1 && rows.width <= wire::kBulkChunkBytes) {
    const uint64_t most = wire::kMaxBulkCopyBytes / rows.width;
    for (uint64_t row = 0; row < rows.count; row += most) {
      const uint64_t count = std::min(most, rows.count - row);
      const CUresult result =
          visit(BulkPart{row * rows.host_pitch, row * rows.device_pitch, rows.width, count},
                row + count == rows.count);
      if (result != CUDA_SUCCESS) return result;
    }
    return CUDA_SUCCESS;
  }
  for (uint64_t row = 0; row < rows.count; ++row) {
    for (uint64_t at = 0; at < rows.width; at += wire::kMaxBulkCopyBytes) {
      const uint64_t width = std::min(wire::kMaxBulkCopyBytes, rows.width - at);
      const CUresult result =
          visit(BulkPart{row * rows.host_pitch + at, row * rows.device_pitch + at, width, 1},
                row + 1 == rows.count && at + width == rows.width);
      if (result != CUDA_SUCCESS) return result;
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace gpupool::client
