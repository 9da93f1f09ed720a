// What the texels of an array take.
#pragma once
#include <cstdint>

#include "protocol/cuda/cuda_header.h"

namespace gpupool::cuda {

// 0: no such format with so many channels, or one without texels of its own (block-compressed and planar formats).
constexpr uint32_t texel_bytes(CUarray_format format, unsigned channels) {
  const int number = static_cast<int>(format);
  uint32_t bytes = 0;
  switch (number) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: bytes = 1; break;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: bytes = 2; break;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: bytes = 4; break;
    case 0x50: return channels == 4 ? 4 : 0;  // CU_AD_FORMAT_UNORM_INT_101010_2
    default: {
      // CU_AD_FORMAT_UNORM_INT8X1 to SNORM_INT16X4, which say how many channels there are.
      if (number < 0xc0 || number > 0xcb) return 0;
      const int place = number - 0xc0;
      const unsigned own = place % 3 == 2 ? 4 : static_cast<unsigned>(place % 3) + 1;
      return channels == own ? own * (place / 3 % 2 == 0 ? 1 : 2) : 0;
    }
  }
  return channels == 1 || channels == 2 || channels == 4 ? bytes * channels : 0;
}

// Of all texels, one after the other, in a place where the array's size has been checked.
constexpr uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR& shape) {
  const uint64_t rows = uint64_t{shape.Height == 0 ? 1 : shape.Height} * (shape.Depth == 0 ? 1 : shape.Depth);
  return rows * shape.Width * texel_bytes(shape.Format, shape.NumChannels);
}

// Block-compressed, planar and packed YUV formats: known, but not offered.
constexpr bool is_compound(CUarray_format format) {
  const int number = static_cast<int>(format);
  return (number >= 0x91 && number <= 0xa9) || (number >= 0xb0 && number <= 0xb5);
}

}  // namespace gpupool::cuda
