// Tensor maps: what their 128 bytes mean is the business of the server's driver, so that it encodes them.
#include "client/call.h"
#include "protocol/cuda/exports.h"

#if CUDA_VERSION >= 12000

using namespace gpupool::client;

namespace {

// As CUDA wants the map's place.
template <class Row, class... Arguments>
CUresult run(CUtensorMap* map, Arguments... arguments) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = ready_with_context(&session, &context); result != CUDA_SUCCESS) return result;
    if (!map || reinterpret_cast<uintptr_t>(map) % 64 != 0) return CUDA_ERROR_INVALID_VALUE;
    return Row::at({session, context}, {map, arguments...});
  });
}

constexpr cuuint32_t kMaxRank = 5;

}  // namespace

// A rank that cannot be would have the arrays read too far.
CUDA_EXPORT CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address, const cuuint64_t* sizes,
                                            const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* element_strides,
                                            CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                            CUtensorMapFloatOOBfill fill) {
  if (rank > kMaxRank) return CUDA_ERROR_INVALID_VALUE;
  return run<rows::cuTensorMapEncodeTiled>(map, type, rank, address, sizes, strides, box, element_strides, interleave, swizzle, promotion, fill);
}

CUDA_EXPORT CUresult cuTensorMapEncodeIm2col(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address, const cuuint64_t* sizes,
                                             const cuuint64_t* strides, const int* lower, const int* upper, cuuint32_t channels,
                                             cuuint32_t pixels, const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                                             CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  if (rank > kMaxRank) return CUDA_ERROR_INVALID_VALUE;
  return run<rows::cuTensorMapEncodeIm2col>(map, type, rank, address, sizes, strides, lower, upper, channels, pixels, element_strides, interleave,
                                            swizzle, promotion, fill);
}

CUDA_EXPORT CUresult cuTensorMapReplaceAddress(CUtensorMap* map, void* address) {
  return run<rows::cuTensorMapReplaceAddress>(map, address);
}

#if CUDA_VERSION >= 12080
CUDA_EXPORT CUresult cuTensorMapEncodeIm2colWide(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                                 const cuuint64_t* sizes, const cuuint64_t* strides, int lower, int upper,
                                                 cuuint32_t channels, cuuint32_t pixels, const cuuint32_t* element_strides,
                                                 CUtensorMapInterleave interleave, CUtensorMapIm2ColWideMode mode, CUtensorMapSwizzle swizzle,
                                                 CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  if (rank > kMaxRank) return CUDA_ERROR_INVALID_VALUE;
  return run<rows::cuTensorMapEncodeIm2colWide>(map, type, rank, address, sizes, strides, lower, upper, channels, pixels, element_strides,
                                                interleave, mode, swizzle, promotion, fill);
}
#endif
#endif
