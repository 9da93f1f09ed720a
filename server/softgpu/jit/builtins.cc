#include "server/softgpu/jit/builtins.h"

#include <type_traits>

#include "server/softgpu/exec/abi.h"
#include "server/softgpu/exec/device_runtime.h"

namespace gpupool::softgpu {
namespace {

template <class T>
constexpr Builtin::Value value_of() {
  if constexpr (std::is_void_v<T>)
    return {};
  else if constexpr (std::is_pointer_v<T>)
    return {sizeof(std::remove_pointer_t<T>), true};
  else
    return {sizeof(T), false};
}

// Derives the calling convention from the function's type.
template <class Result, class... Arguments>
Builtin builtin(std::string_view name, const char* symbol, Result (*function)(ThreadContext*, Arguments...)) {
  return {name, symbol, reinterpret_cast<void*>(function), value_of<Result>(), {value_of<Arguments>()...}};
}

std::vector<Builtin> make_builtins() {
#define BUILTIN(name, function) builtin(name, #function, &function)
  std::vector<Builtin> made = {
      BUILTIN("vprintf", softgpu_vprintf),
      BUILTIN("__assertfail", softgpu_assertfail),
      BUILTIN("malloc", softgpu_malloc),
      BUILTIN("free", softgpu_free),
      BUILTIN("cudaGraphSetConditional", softgpu_set_condition),
#define DEVICE_FUNCTION(result, name, arguments) BUILTIN(#name, softgpu_##name),
#include "server/softgpu/exec/device_runtime.def"
#undef DEVICE_FUNCTION
  };
#undef BUILTIN
  made[1].returns = false;
  return made;
}

// CUDA 12 and later use the names __cudaCDP2<name>; the suffix _ptsz is used for per-thread default streams.
constexpr std::string_view kNewPrefix = "__cudaCDP2", kPrefix = "cuda", kPerThread = "_ptsz";

}  // namespace

std::span<const Builtin> builtins() {
  static const std::vector<Builtin> kBuiltins = make_builtins();
  return kBuiltins;
}

std::optional<uint32_t> find_builtin(std::string_view name) {
  const bool is_new = name.starts_with(kNewPrefix);
  if (is_new) name.remove_prefix(kNewPrefix.size());
  if (name.ends_with(kPerThread)) name.remove_suffix(kPerThread.size());
  const auto all = builtins();
  for (uint32_t n = 0; n < all.size(); ++n)
    if (is_new ? all[n].name.starts_with(kPrefix) && all[n].name.substr(kPrefix.size()) == name
               : all[n].name == name)
      return n;
  return std::nullopt;
}

bool is_device_runtime_name(std::string_view name) {
  return name.starts_with(kPrefix) || name.starts_with("__cuda");
}

}  // namespace gpupool::softgpu
