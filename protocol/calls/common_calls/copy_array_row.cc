// Copies of one row from or to an array (CUDA_ROW_COPY of calls.def), with their per-thread variants. Each is
// a copy of a rectangle of height 1. The types of a function's parameters say what it copies: the destination
// and the source, each an array and an offset in bytes, a device address, or a pointer of the program; then
// the number of bytes, and the stream of an asynchronous copy.
#include <tuple>

#include "protocol/driver/export_function.h"

namespace {

template <class Function>
struct RowCopy;

template <class... A>
struct RowCopy<CUresult (*)(A...)> {
  static CUresult call(A... given) { return copy(false, given...); }
  static CUresult call_per_thread(A... given) { return copy(true, given...); }

 private:
  template <size_t I>
  using Type = std::tuple_element_t<I, std::tuple<A...>>;
  template <size_t I>
  static constexpr size_t kWidth = std::is_same_v<Type<I>, CUarray> ? 2 : 1;
  static constexpr size_t kFrom = kWidth<0>, kBytes = kFrom + kWidth<kFrom>;
  static constexpr bool kAsync = kBytes + 1 < sizeof...(A);

  static CUresult copy(bool per_thread, A... given) {
    const std::tuple<A...> arguments(given...);
    CUDA_MEMCPY2D row{};
    row.WidthInBytes = std::get<kBytes>(arguments);
    row.Height = 1;
    if constexpr (kWidth<0> == 2) {
      row.dstMemoryType = CU_MEMORYTYPE_ARRAY;
      row.dstArray = std::get<0>(arguments);
      row.dstXInBytes = std::get<1>(arguments);
    } else if constexpr (std::is_same_v<Type<0>, CUdeviceptr>) {
      row.dstMemoryType = CU_MEMORYTYPE_DEVICE;
      row.dstDevice = std::get<0>(arguments);
    } else {
      row.dstMemoryType = CU_MEMORYTYPE_HOST;
      row.dstHost = std::get<0>(arguments);
    }
    if constexpr (kWidth<kFrom> == 2) {
      row.srcMemoryType = CU_MEMORYTYPE_ARRAY;
      row.srcArray = std::get<kFrom>(arguments);
      row.srcXInBytes = std::get<kFrom + 1>(arguments);
    } else if constexpr (std::is_same_v<Type<kFrom>, CUdeviceptr>) {
      row.srcMemoryType = CU_MEMORYTYPE_DEVICE;
      row.srcDevice = std::get<kFrom>(arguments);
    } else {
      row.srcMemoryType = CU_MEMORYTYPE_HOST;
      row.srcHost = std::get<kFrom>(arguments);
    }
    if constexpr (kAsync) {
      const CUstream stream = std::get<kBytes + 1>(arguments);
      return per_thread ? cuMemcpy2DAsync_v2_ptsz(&row, stream) : cuMemcpy2DAsync_v2(&row, stream);
    } else {
      return per_thread ? cuMemcpy2D_v2_ptds(&row) : cuMemcpy2D_v2(&row);
    }
  }
};

}  // namespace

#define CUDA_ROW_COPY(name)                                       \
  GPUPOOL_EXPORT_FUNCTION(name, RowCopy<decltype(&::name)>::call) \
  GPUPOOL_EXPORT_FUNCTION(name##_ptds, RowCopy<decltype(&::name)>::call_per_thread)
#define CUDA_ROW_COPY_ASYNC(name)                                 \
  GPUPOOL_EXPORT_FUNCTION(name, RowCopy<decltype(&::name)>::call) \
  GPUPOOL_EXPORT_FUNCTION(name##_ptsz, RowCopy<decltype(&::name)>::call_per_thread)

#define CUDA_CALL(...)
#define CUDA_CALL_CUSTOM_EXPORT(...)
#define CUDA_BY_HAND(name)
#include "protocol/calls/calls.def"
#undef CUDA_CALL
#undef CUDA_CALL_CUSTOM_EXPORT
#undef CUDA_BY_HAND
