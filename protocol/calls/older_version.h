// The common body of the older versions of functions (CUDA_OLDER of calls.def): converts each argument to the
// type that the newer function has in its place, calls that, and converts what it returned. Sizes above 32
// bits become the largest 32-bit number. An address above 32 bits cannot be returned: the call then fails
// with CUDA_ERROR_OUT_OF_MEMORY if it is that of new memory, which is freed again, else with
// CUDA_ERROR_INVALID_VALUE. No state; any thread that may call the newer function.
#pragma once
#include <algorithm>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>

#include "protocol/calls/box.h"
#include "protocol/driver/exports.h"

namespace gpupool::cuda {

// --- Structs: the generations have fields of the same names ---

inline void convert(CUDA_MEMCPY2D& to, const CUDA_MEMCPY2D_v1& from) {
  set_rectangle(to, from);
}
inline void convert(CUDA_MEMCPY3D& to, const CUDA_MEMCPY3D_v1& from) {
  set_box(to, from);
}
template <class To, class From>
  requires requires(From from) { from.NumChannels; }
void convert(To& to, const From& from) {
  to.Width = static_cast<decltype(to.Width)>(from.Width);
  to.Height = static_cast<decltype(to.Height)>(from.Height);
  to.Format = from.Format;
  to.NumChannels = from.NumChannels;
  if constexpr (requires { from.Flags; }) {
    to.Depth = static_cast<decltype(to.Depth)>(from.Depth);
    to.Flags = from.Flags;
  }
}

// --- Arguments ---

// An argument of an older function, given as `Old` and passed on as `New`. fits() and give_back() are called
// after the newer function has succeeded.
template <class Old, class New>
struct OlderArgument {
  Old given;
  New argument() { return static_cast<New>(given); }
  bool fits() const { return true; }
  void give_back() const {}
};

// A number that the newer function returns with more bits. CUdeviceptr and size_t are different types, which
// tells an address from a size.
template <class Old, class New>
  requires(std::is_integral_v<Old> && std::is_integral_v<New> && !std::is_same_v<Old, New>)
struct OlderArgument<Old*, New*> {
  static constexpr bool kIsAddress = std::is_same_v<New, CUdeviceptr>;
  static constexpr New kMost = std::numeric_limits<Old>::max();
  Old* given;
  New wide = 0;
  New* argument() { return given ? &wide : nullptr; }
  bool fits() const { return !kIsAddress || wide <= kMost; }
  void give_back() const {
    if (given) *given = static_cast<Old>(std::min(wide, kMost));
  }
};

template <class Old, class New>
  requires(std::is_class_v<Old> && !std::is_same_v<Old, New>)
struct OlderArgument<const Old*, const New*> {
  const Old* given;
  New made{};
  const New* argument() {
    if (given) convert(made, *given);
    return given ? &made : nullptr;
  }
  bool fits() const { return true; }
  void give_back() const {}
};

template <class Old, class New>
  requires(std::is_class_v<Old> && !std::is_const_v<Old> && !std::is_same_v<Old, New>)
struct OlderArgument<Old*, New*> {
  Old* given;
  New made{};
  New* argument() { return given ? &made : nullptr; }
  bool fits() const { return true; }
  void give_back() const {
    if (!given) return;
    *given = {};
    convert(*given, made);
  }
};

// --- Functions ---

template <class Function>
struct Parameters;
template <class... A>
struct Parameters<CUresult (*)(A...)> {
  using Types = std::tuple<A...>;
};

// `Free` (or nullptr): frees the memory whose address the first parameter returns. `Further`: the arguments
// of the newer function behind those of the older one.
template <class Function, auto Newer, auto Free, auto... Further>
struct OlderVersion;

template <class... A, auto Newer, auto Free, auto... Further>
struct OlderVersion<CUresult (*)(A...), Newer, Free, Further...> {
  static CUresult call(A... given) { return run(std::index_sequence_for<A...>{}, given...); }
  // The _ptsz variant.
  static CUresult call_per_thread(A... given) { return call(or_per_thread(given)...); }

 private:
  using New = typename Parameters<decltype(Newer)>::Types;
  static_assert(sizeof...(A) + sizeof...(Further) == std::tuple_size_v<New>,
                "the newer function has another number of parameters");

  template <size_t... I>
  static CUresult run(std::index_sequence<I...>, A... given) {
    std::tuple<OlderArgument<A, std::tuple_element_t<I, New>>...> arguments{{given}...};
    const CUresult result = Newer(std::get<I>(arguments).argument()..., Further...);
    if (result != CUDA_SUCCESS) return result;
    if (!(std::get<I>(arguments).fits() && ...)) {
      if constexpr (std::is_null_pointer_v<decltype(Free)>)
        return CUDA_ERROR_INVALID_VALUE;
      else
        return Free(std::get<0>(arguments).wide), CUDA_ERROR_OUT_OF_MEMORY;
    }
    (std::get<I>(arguments).give_back(), ...);
    return result;
  }
};

}  // namespace gpupool::cuda
