// Tensor maps.
#define __CUDA_API_VERSION_INTERNAL  // declares every version under its own name
#include <cuda.h>

#include <cstring>

#include "tests/parity/show.h"

namespace parity {

void tensor_maps() {
  alignas(128) CUtensorMap map{}, other{};
  CUdeviceptr tensor = 0;
  cuMemAlloc_v2(&tensor, 1 << 20);
  cuuint64_t sizes[5] = {64, 32, 8, 4, 2}, strides[4] = {128, 4096, 32768, 131072};
  cuuint32_t box[5] = {32, 8, 1, 1, 1}, steps[5] = {1, 1, 1, 1, 1};
  const auto encode = [&](CUtensorMap* to, cuuint32_t rank, CUdeviceptr address) {
    return cuTensorMapEncodeTiled(to, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, rank, reinterpret_cast<void*>(address),
                                  sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                  CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  SHOW(cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3, reinterpret_cast<void*>(tensor),
                              sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                              CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  SHOW(encode(&other, 3, tensor));
  std::printf("the same: %d\n", std::memcmp(&map, &other, sizeof map) == 0);
  SHOW(cuTensorMapReplaceAddress(&map, reinterpret_cast<void*>(tensor + 4096)));
  SHOW(encode(&other, 3, tensor + 4096));
  std::printf("the same: %d\n", std::memcmp(&map, &other, sizeof map) == 0);
  SHOW(cuTensorMapReplaceAddress(&map, reinterpret_cast<void*>(tensor + 4)));
  SHOW(cuTensorMapReplaceAddress(nullptr, reinterpret_cast<void*>(tensor)));
  CUtensorMap nothing{};
  SHOW(cuTensorMapReplaceAddress(&nothing, reinterpret_cast<void*>(tensor)));
  SHOW(encode(nullptr, 3, tensor));
  SHOW(encode(reinterpret_cast<CUtensorMap*>(reinterpret_cast<char*>(&map) + 8), 3, tensor));
  SHOW(encode(&map, 0, tensor));
  SHOW(encode(&map, 6, tensor));
  SHOW(encode(&map, 0xffffffff, tensor));
  SHOW(encode(&map, 1, tensor));
  SHOW(encode(&map, 5, tensor));
  SHOW(encode(&map, 3, tensor + 8));
  box[0] = 3;
  SHOW(encode(&map, 3, tensor));
  box[0] = 300;
  SHOW(encode(&map, 3, tensor));
  box[0] = 32;
  strides[0] = 100;
  SHOW(encode(&map, 3, tensor));
  strides[0] = 128;
  sizes[1] = 0;
  SHOW(encode(&map, 3, tensor));
  sizes[1] = 32;
  steps[1] = 9;
  SHOW(encode(&map, 3, tensor));
  steps[1] = 1;
  SHOW(cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3, reinterpret_cast<void*>(tensor),
                              nullptr, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                              CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  int lower[3] = {-1, -1, -1}, upper[3] = {1, 1, 1};
  const auto columns = [&](cuuint32_t rank, cuuint32_t channels, cuuint32_t pixels) {
    return cuTensorMapEncodeIm2col(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, rank,
                                   reinterpret_cast<void*>(tensor), sizes, strides, lower, upper, channels,
                                   pixels, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                   CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  SHOW(cuTensorMapEncodeIm2col(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4, reinterpret_cast<void*>(tensor),
                               sizes, strides, lower, upper, 64, 128, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                               CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  SHOW(columns(4, 64, 128));
  SHOW(columns(2, 64, 128));
  SHOW(columns(4, 300, 128));
  SHOW(columns(4, 64, 2000));
  lower[0] = -1000;
  SHOW(columns(4, 64, 128));
  const auto wide = [&](CUtensorMapSwizzle swizzle) {
    return cuTensorMapEncodeIm2colWide(
        &map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4, reinterpret_cast<void*>(tensor), sizes, strides, -1, 1, 64,
        128, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_IM2COL_WIDE_MODE_W, swizzle,
        CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  SHOW(cuTensorMapEncodeIm2colWide(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4, reinterpret_cast<void*>(tensor),
                                   sizes, strides, -1, 1, 64, 128, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                   CU_TENSOR_MAP_IM2COL_WIDE_MODE_W, CU_TENSOR_MAP_SWIZZLE_128B,
                                   CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  SHOW(wide(CU_TENSOR_MAP_SWIZZLE_NONE));
  cuMemFree_v2(tensor);
}

}  // namespace parity
