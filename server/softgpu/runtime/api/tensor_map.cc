// Tensor maps: descriptions of tensors for the bulk copies between global and shared memory of compute
// capability 9. A CUtensorMap is opaque; softgpu has a layout of its own (jit/tensor.h). The tensor's address
// is not accessed here.
#include "server/softgpu/jit/tensor.h"
#include "server/softgpu/runtime/api/call.h"

#if CUDA_VERSION >= 12000

#include <cstring>

using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace {

constexpr unsigned kMaxRank = kMaxTensorRank;
// Values of enumerations of cuda.h, which older headers lack.
constexpr int kLastType = 15, k16U4Align8 = 13, k16U4Align16 = 14, k16U6Align16 = 15;
constexpr int kLastSwizzle = 6;

static_assert(kTensorMapBytes == sizeof(CUtensorMap));

struct Tensor {
  CUtensorMapDataType type;
  unsigned rank;
  const void* address;
  const cuuint64_t* sizes;
  const cuuint64_t* strides;
  const cuuint32_t* element_strides;
  CUtensorMapInterleave interleave;
  CUtensorMapSwizzle swizzle;
  CUtensorMapL2promotion promotion;
  CUtensorMapFloatOOBfill fill;
};

bool is_packed(int type) {
  return type == k16U4Align8 || type == k16U4Align16 || type == k16U6Align16;
}
bool is_wide_packed(int type) {
  return type == k16U4Align16 || type == k16U6Align16;
}

// Bytes of a box's inner dimension. Packed elements have fewer than eight bits.
uint64_t inner_bytes(int type, uint64_t elements) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8: return elements;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16: return elements * 2;
    case CU_TENSOR_MAP_DATA_TYPE_UINT64:
    case CU_TENSOR_MAP_DATA_TYPE_INT64:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64: return elements * 8;
    case k16U4Align8: return elements / 2;
    case k16U4Align16:
    case k16U6Align16: return elements;  // including the gaps
    default: return elements * 4;
  }
}

bool is_float(int type) {
  return type >= CU_TENSOR_MAP_DATA_TYPE_FLOAT16 && type <= CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ;
}

bool aligned(const void* address, int type, CUtensorMapInterleave interleave) {
  const uint64_t alignment = interleave == CU_TENSOR_MAP_INTERLEAVE_32B || is_wide_packed(type) ? 32 : 16;
  return reinterpret_cast<uintptr_t>(address) % alignment == 0;
}

bool valid(const Tensor& tensor, unsigned least_rank) {
  const int type = tensor.type, interleave = tensor.interleave, swizzle = tensor.swizzle;
  if (type < 0 || type > kLastType || interleave < 0 || interleave > CU_TENSOR_MAP_INTERLEAVE_32B ||
      swizzle < 0 || swizzle > kLastSwizzle || tensor.promotion < 0 ||
      tensor.promotion > CU_TENSOR_MAP_L2_PROMOTION_L2_256B || tensor.fill < 0 ||
      tensor.fill > CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA) {
    return false;
  }
  if (tensor.rank < least_rank || tensor.rank > kMaxRank ||
      (interleave != CU_TENSOR_MAP_INTERLEAVE_NONE && tensor.rank < 3))
    return false;
  if (!tensor.sizes || (!tensor.strides && tensor.rank > 1) || !tensor.element_strides) return false;
  if (!aligned(tensor.address, type, tensor.interleave)) return false;
  if (interleave == CU_TENSOR_MAP_INTERLEAVE_32B && swizzle != CU_TENSOR_MAP_SWIZZLE_32B) return false;
  if (type == k16U6Align16 && interleave != CU_TENSOR_MAP_INTERLEAVE_NONE) return false;
  if (tensor.fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE && !is_float(type)) return false;
  if (is_wide_packed(type) && swizzle != CU_TENSOR_MAP_SWIZZLE_NONE &&
      swizzle != CU_TENSOR_MAP_SWIZZLE_128B && swizzle != 4 && !(swizzle == 6 && type == k16U6Align16)) {
    return false;
  }
  for (unsigned i = 0; i < tensor.rank; ++i) {
    if (tensor.sizes[i] == 0 || tensor.sizes[i] > uint64_t{1} << 32) return false;
    const bool ignored = i == 0 && interleave == CU_TENSOR_MAP_INTERLEAVE_NONE;
    if (!ignored && (tensor.element_strides[i] == 0 || tensor.element_strides[i] > 8)) return false;
  }
  if (is_packed(type) && tensor.sizes[0] % (type == k16U4Align8 ? 2 : 128) != 0) return false;
  const uint64_t unit = interleave == CU_TENSOR_MAP_INTERLEAVE_32B || is_wide_packed(type) ? 32 : 16;
  for (unsigned i = 0; i + 1 < tensor.rank; ++i) {
    if (tensor.strides[i] % unit != 0 || tensor.strides[i] >= uint64_t{1} << 40) return false;
  }
  return true;
}

// Without interleaving, a box's inner dimension must fit the swizzle's span.
bool fits_swizzle(const Tensor& tensor, uint64_t elements) {
  if (tensor.interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || tensor.swizzle == CU_TENSOR_MAP_SWIZZLE_NONE)
    return true;
  const uint64_t span = tensor.swizzle == CU_TENSOR_MAP_SWIZZLE_32B   ? 32
                        : tensor.swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 64
                                                                      : 128;
  return inner_bytes(tensor.type, elements) <= span;
}

TensorMap lay_out(const Tensor& tensor, TensorForm form) {
  TensorMap layout{};
  layout.address = reinterpret_cast<uintptr_t>(tensor.address);
  for (unsigned i = 0; i < tensor.rank; ++i) {
    layout.sizes[i] = static_cast<uint32_t>(tensor.sizes[i] - 1);
    layout.element_strides[i] = static_cast<uint8_t>(tensor.element_strides[i]);
    if (i + 1 < tensor.rank) layout.strides[i] = tensor.strides[i];
  }
  layout.form = form;
  layout.type = static_cast<uint8_t>(tensor.type);
  layout.rank = static_cast<uint8_t>(tensor.rank);
  layout.interleave = static_cast<uint8_t>(tensor.interleave);
  layout.swizzle = static_cast<uint8_t>(tensor.swizzle);
  layout.promotion = static_cast<uint8_t>(tensor.promotion);
  layout.fill = static_cast<uint8_t>(tensor.fill);
  return layout;
}

void write(const TensorMap& layout, CUtensorMap* map) {
  *map = {};
  std::memcpy(map, &layout, sizeof layout);
}

bool valid_target(const CUtensorMap* map) {
  return map != nullptr && reinterpret_cast<uintptr_t>(map) % 64 == 0;
}

bool valid_channels(const Tensor& tensor, unsigned channels, unsigned pixels) {
  return channels != 0 && channels <= 256 && pixels != 0 && pixels <= 1024 &&
         (!is_wide_packed(tensor.type) || channels == 128) && fits_swizzle(tensor, channels);
}

}  // namespace

CUDA_EXPORT CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                            void* address, const cuuint64_t* sizes, const cuuint64_t* strides,
                                            const cuuint32_t* box, const cuuint32_t* element_strides,
                                            CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                            CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  return call_in_context([&](Context&) {
    const Tensor tensor{type,       rank,    address,   sizes, strides, element_strides,
                        interleave, swizzle, promotion, fill};
    if (!valid_target(map) || !valid(tensor, 1) || box == nullptr) return CUDA_ERROR_INVALID_VALUE;
    TensorMap layout = lay_out(tensor, TensorForm::tiled);
    for (unsigned i = 0; i < rank; ++i) {
      if (box[i] == 0 || box[i] > 256) return CUDA_ERROR_INVALID_VALUE;
      layout.box[i] = static_cast<uint16_t>(box[i]);
    }
    if (is_wide_packed(type) && box[0] != 128) return CUDA_ERROR_INVALID_VALUE;
    if (interleave == CU_TENSOR_MAP_INTERLEAVE_NONE && inner_bytes(type, box[0]) % 16 != 0)
      return CUDA_ERROR_INVALID_VALUE;
    if (!fits_swizzle(tensor, box[0])) return CUDA_ERROR_INVALID_VALUE;
    write(layout, map);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuTensorMapEncodeIm2col(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                             void* address, const cuuint64_t* sizes,
                                             const cuuint64_t* strides, const int* lower, const int* upper,
                                             cuuint32_t channels, cuuint32_t pixels,
                                             const cuuint32_t* element_strides,
                                             CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                             CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  return call_in_context([&](Context&) {
    const Tensor tensor{type,       rank,    address,   sizes, strides, element_strides,
                        interleave, swizzle, promotion, fill};
    if (!valid_target(map) || !valid(tensor, 3) || lower == nullptr || upper == nullptr ||
        !valid_channels(tensor, channels, pixels)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    TensorMap layout = lay_out(tensor, TensorForm::im2col);
    const int most = rank == 3 ? 1 << 15 : rank == 4 ? 1 << 7 : 1 << 4;
    for (unsigned i = 0; i + 2 < rank; ++i) {
      if (lower[i] < -most || lower[i] >= most || upper[i] < -most || upper[i] >= most)
        return CUDA_ERROR_INVALID_VALUE;
      layout.lower[i] = static_cast<int16_t>(lower[i]);
      layout.upper[i] = static_cast<int16_t>(upper[i]);
    }
    layout.box[0] = static_cast<uint16_t>(channels);
    layout.box[1] = static_cast<uint16_t>(pixels);
    write(layout, map);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuTensorMapReplaceAddress(CUtensorMap* map, void* address) {
  return call_in_context([&](Context&) {
    if (!valid_target(map)) return CUDA_ERROR_INVALID_VALUE;
    TensorMap layout;
    std::memcpy(&layout, map, sizeof layout);
    if (layout.form < TensorForm::tiled || layout.form > TensorForm::im2col_wide)
      return CUDA_ERROR_INVALID_VALUE;
    if (!aligned(address, layout.type, static_cast<CUtensorMapInterleave>(layout.interleave)))
      return CUDA_ERROR_INVALID_VALUE;
    layout.address = reinterpret_cast<uintptr_t>(address);
    write(layout, map);
    return CUDA_SUCCESS;
  });
}

#if CUDA_VERSION >= 12080
CUDA_EXPORT CUresult cuTensorMapEncodeIm2colWide(
    CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address, const cuuint64_t* sizes,
    const cuuint64_t* strides, int lower, int upper, cuuint32_t channels, cuuint32_t pixels,
    const cuuint32_t* element_strides, CUtensorMapInterleave interleave, CUtensorMapIm2ColWideMode mode,
    CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  return call_in_context([&](Context&) {
    const Tensor tensor{type,       rank,    address,   sizes, strides, element_strides,
                        interleave, swizzle, promotion, fill};
    const bool known_mode =
        mode == CU_TENSOR_MAP_IM2COL_WIDE_MODE_W || mode == CU_TENSOR_MAP_IM2COL_WIDE_MODE_W128;
    if (!valid_target(map) || !valid(tensor, 3) || !known_mode || lower < INT16_MIN || lower > INT16_MAX ||
        upper < INT16_MIN || upper > INT16_MAX || swizzle < CU_TENSOR_MAP_SWIZZLE_64B || swizzle > 4 ||
        !valid_channels(tensor, channels, pixels)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    TensorMap layout = lay_out(tensor, TensorForm::im2col_wide);
    layout.mode = static_cast<uint8_t>(mode);
    layout.lower[0] = static_cast<int16_t>(lower);
    layout.upper[0] = static_cast<int16_t>(upper);
    layout.box[0] = static_cast<uint16_t>(channels);
    layout.box[1] = static_cast<uint16_t>(pixels);
    write(layout, map);
    return CUDA_SUCCESS;
  });
}
#endif
#endif
