#include "server/worker/handlers/guards.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <unordered_map>

#include "protocol/calls/device_address.h"
#include "server/worker/handlers/array_guards.h"
#include "server/worker/handlers/copy_guards.h"
#include "server/worker/handlers/memory_guards.h"
#include "server/worker/handlers/multicast_guards.h"
#include "server/worker/handlers/stream_guards.h"
#include "server/worker/session/session.h"

namespace gpupool::worker::guards {
namespace {

#define REAL(name) t_session->guarded.name

CUresult unload_module(CUmodule module) {
  // The module's context, whichever context is current.
  const ContextState* const context = t_session->table.resolved_in();
  return unload_after_kept_commands(context ? context->object : nullptr, 0,
                                    [module, real = REAL(cuModuleUnload)] { return real(module); });
}
#if CUDA_VERSION >= 12000
CUresult unload_library(CUlibrary library) {
  return unload_after_kept_commands(nullptr, 0,
                                    [library, real = REAL(cuLibraryUnload)] { return real(library); });
}
#endif

#if CUDA_VERSION >= 12000
// The driver reads as many elements as the rank says. The row has checked the lengths of arrays that are
// present.
bool all_there(cuuint32_t rank, std::initializer_list<const void*> arrays) {
  return rank != 0 && std::find(arrays.begin(), arrays.end(), nullptr) == arrays.end();
}
CUresult encode_tiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                      const cuuint64_t* dim, const cuuint64_t* strides, const cuuint32_t* box,
                      const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                      CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                      CUtensorMapFloatOOBfill fill) {
  if (!map || !all_there(rank, {dim, box, element_strides}) || (rank > 1 && !strides))
    return CUDA_ERROR_INVALID_VALUE;
  return REAL(cuTensorMapEncodeTiled)(map, type, rank, address, dim, strides, box, element_strides,
                                      interleave, swizzle, promotion, fill);
}
CUresult encode_im2col(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                       const cuuint64_t* dim, const cuuint64_t* strides, const int* lower, const int* upper,
                       cuuint32_t channels, cuuint32_t pixels, const cuuint32_t* element_strides,
                       CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                       CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  if (!map || !all_there(rank, {dim, strides, lower, upper, element_strides}))
    return CUDA_ERROR_INVALID_VALUE;
  return REAL(cuTensorMapEncodeIm2col)(map, type, rank, address, dim, strides, lower, upper, channels, pixels,
                                       element_strides, interleave, swizzle, promotion, fill);
}
#endif

#if CUDA_VERSION >= 12080
CUresult encode_im2col_wide(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                            const cuuint64_t* dim, const cuuint64_t* strides, int lower, int upper,
                            cuuint32_t channels, cuuint32_t pixels, const cuuint32_t* element_strides,
                            CUtensorMapInterleave interleave, CUtensorMapIm2ColWideMode mode,
                            CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                            CUtensorMapFloatOOBfill fill) {
  if (!map || !all_there(rank, {dim, strides, element_strides})) return CUDA_ERROR_INVALID_VALUE;
  return REAL(cuTensorMapEncodeIm2colWide)(map, type, rank, address, dim, strides, lower, upper, channels,
                                           pixels, element_strides, interleave, mode, swizzle, promotion,
                                           fill);
}
#endif

struct Wrapper {
  std::string_view name;
  void* (*function)();  // returns the wrapper; its address is not a constant expression
};
#define GUARD(name, wrapper) \
  {#name, [] { return reinterpret_cast<void*>(static_cast<decltype(&::name)>(&wrapper)); }},
constexpr Wrapper kWrappers[] = {
#include "server/worker/handlers/guards.def"
};
#undef GUARD

constexpr const Wrapper* find_wrapper(std::string_view name) {
  for (const Wrapper& wrapper : kWrappers) {
    if (wrapper.name == name) return &wrapper;
  }
  return nullptr;
}

namespace rows {
using namespace cuda::role;
using cuda::Kind;
#define CUDA_CALL(id, name, mode, ...)                                    \
  static_assert(!cuda::kNeedsWrapper<__VA_ARGS__> || find_wrapper(#name), \
                #name ": a row with guarded_device_address needs a wrapper in guards.def");
#define CUDA_CALL_CUSTOM_EXPORT CUDA_CALL
#define CUDA_BY_HAND(name)
#include "protocol/calls/calls.def"
#undef CUDA_CALL
#undef CUDA_CALL_CUSTOM_EXPORT
#undef CUDA_BY_HAND
}  // namespace rows

}  // namespace

CUresult unload_after_kept_commands(CUcontext context, uint64_t handle, PostponedUnloads::Unload unload) {
  Session& session = *t_session;
  if (session.code.postponed_unloads.full() || (!session.graphs.launching() && session.backlog.empty()))
    return unload();
  session.code.postponed_unloads.add(context, handle, std::move(unload));
  return CUDA_SUCCESS;
}

void Calls::load(const SymbolLookup& symbol) {
#define GUARD_CALLS(name) name = reinterpret_cast<decltype(&::name)>(symbol(#name));
#define GUARD(name, wrapper) GUARD_CALLS(name)
#include "server/worker/handlers/guards.def"
#undef GUARD
}

void* Calls::wrapper(std::string_view name) const {
  static const auto by_name = [] {
    std::unordered_map<std::string_view, const Wrapper*> all;
    for (const Wrapper& wrapper : kWrappers) all.emplace(wrapper.name, &wrapper);
    return all;
  }();
  const auto found = by_name.find(name);
  return found == by_name.end() ? nullptr : found->second->function();
}

}  // namespace gpupool::worker::guards
