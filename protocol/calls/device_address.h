// The roles of device addresses (roles.h): they travel as values, and the worker checks before the call that
// the bytes which the call accesses are the session's own. parameter.h describes `Memory`. No state.
#pragma once
#include <optional>
#include <tuple>
#include <type_traits>

#include "protocol/calls/parameter.h"

namespace gpupool::cuda {

// The value of parameter N, which is a size or count.
template <size_t N, class Args>
uint64_t size_argument(const Args& args) {
  static_assert(std::is_same_v<std::tuple_element_t<N, Args>, size_t>,
                "the size of a device address's bytes is a parameter of type size_t");
  return std::get<N>(args);
}

inline CUresult valid_if(bool valid) {
  return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

template <size_t Bytes>
struct Parameter<role::device_address<Bytes>, CUdeviceptr> : ValueParameter<CUdeviceptr> {
  template <class Args, class Memory>
  static CUresult check_memory(CUdeviceptr address, const Args&, const Memory& memory) {
    return valid_if(memory.owns(address, Bytes));
  }
};

template <size_t N, size_t Item>
struct Parameter<role::device_range<N, Item>, CUdeviceptr> : ValueParameter<CUdeviceptr> {
  template <class Args, class Memory>
  static CUresult check_memory(CUdeviceptr address, const Args& args, const Memory& memory) {
    uint64_t bytes = 0;
    return valid_if(!__builtin_mul_overflow(size_argument<N>(args), Item, &bytes) &&
                    memory.owns(address, bytes));
  }
};

template <size_t N, size_t Item>
struct Parameter<role::device_range_or_null<N, Item>, CUdeviceptr>
    : Parameter<role::device_range<N, Item>, CUdeviceptr> {
  template <class Args, class Memory>
  static CUresult check_memory(CUdeviceptr address, const Args& args, const Memory& memory) {
    if (address == 0) return CUDA_SUCCESS;
    return Parameter<role::device_range<N, Item>, CUdeviceptr>::check_memory(address, args, memory);
  }
};

template <size_t Pitch, size_t Width, size_t Rows, size_t Item>
struct Parameter<role::device_rows<Pitch, Width, Rows, Item>, CUdeviceptr> : ValueParameter<CUdeviceptr> {
  // Returns the number of bytes from the first to the last; nullopt on overflow.
  template <class Args>
  static std::optional<uint64_t> extent(const Args& args) {
    uint64_t width = 0, bytes = 0;
    if (__builtin_mul_overflow(size_argument<Width>(args), Item, &width)) return std::nullopt;
    const uint64_t rows = size_argument<Rows>(args);
    if (width == 0 || rows == 0) return 0;
    if (__builtin_mul_overflow(size_argument<Pitch>(args), rows - 1, &bytes) ||
        __builtin_add_overflow(bytes, width, &bytes))
      return std::nullopt;
    return bytes;
  }
  template <class Args, class Memory>
  static CUresult check_memory(CUdeviceptr address, const Args& args, const Memory& memory) {
    const std::optional<uint64_t> bytes = extent(args);
    return valid_if(bytes && (*bytes == 0 || memory.owns(address, *bytes)));
  }
};

template <>
struct Parameter<role::session_address, CUdeviceptr> : ValueParameter<CUdeviceptr> {
  template <class Args, class Memory>
  static CUresult check_memory(CUdeviceptr address, const Args&, const Memory& memory) {
    return valid_if(memory.in_range(address, 1));
  }
};
template <size_t N>
struct Parameter<role::session_range<N>, CUdeviceptr> : ValueParameter<CUdeviceptr> {
  template <class Args, class Memory>
  static CUresult check_memory(CUdeviceptr address, const Args& args, const Memory& memory) {
    return valid_if(memory.in_range(address, size_argument<N>(args)));
  }
};

template <>
struct Parameter<role::guarded_device_address, CUdeviceptr> : ValueParameter<CUdeviceptr> {};

// True if a row's wrapper in the worker has to check an address.
template <class... Roles>
constexpr bool kNeedsWrapper = (std::is_same_v<Roles, role::guarded_device_address> || ...);

}  // namespace gpupool::cuda
