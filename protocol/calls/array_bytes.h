// Sizes of texels and arrays, for the client library, the worker and softgpu. Pure functions, any thread.
#pragma once
#include <cstdint>

#include "protocol/driver/cuda_header.h"

namespace gpupool::cuda {

// Bytes of a texel. 0: the format does not have this number of channels, or has no texels of its own
// (block-compressed and planar formats).
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
      // CU_AD_FORMAT_UNORM_INT8X1 to SNORM_INT16X4, whose numbers imply how many channels they have.
      if (number < 0xc0 || number > 0xcb) return 0;
      const int place = number - 0xc0;
      const unsigned own = place % 3 == 2 ? 4 : static_cast<unsigned>(place % 3) + 1;
      return channels == own ? own * (place / 3 % 2 == 0 ? 1 : 2) : 0;
    }
  }
  return channels == 1 || channels == 2 || channels == 4 ? bytes * channels : 0;
}

// Bytes of all texels. The caller has checked the array's size, so the product does not overflow.
constexpr uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR& shape) {
  const uint64_t rows = uint64_t{shape.Height == 0 ? 1 : shape.Height} * (shape.Depth == 0 ? 1 : shape.Depth);
  return rows * shape.Width * texel_bytes(shape.Format, shape.NumChannels);
}

// True for block-compressed, planar and packed YUV formats, which are known but not supported.
constexpr bool is_unsupported_format(CUarray_format format) {
  const int number = static_cast<int>(format);
  return (number >= 0x91 && number <= 0xa9) || (number >= 0xb0 && number <= 0xb5);
}

}  // namespace gpupool::cuda
