// Functions that PTX code calls without defining them; softgpu implements them (exec/abi.h,
// exec/device_runtime.h). Used by the linker, the code generator and the engine. Thread-safe.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace gpupool::softgpu {

struct Builtin {
  struct Value {
    uint32_t bytes = 0;      // 0: no result
    bool is_struct = false;  // passed by address
  };
  std::string_view name;  // name in PTX; find_builtin() accepts further names for some
  const char* symbol;     // name in generated code
  void* address;
  Value result;
  std::vector<Value> arguments;
  bool returns = true;
};

std::span<const Builtin> builtins();
// Returns an index into builtins(), or nullopt.
std::optional<uint32_t> find_builtin(std::string_view name);
// Returns true for names of CUDA's device runtime, implemented or not.
bool is_device_runtime_name(std::string_view name);

}  // namespace gpupool::softgpu
