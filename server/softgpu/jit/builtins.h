// Functions that PTX calls and no PTX defines: softgpu has them (exec/abi.h, exec/device_runtime.h).
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
  std::string_view name;  // in PTX, where find_builtin knows it by more than one
  const char* symbol;     // in generated code
  void* address;
  Value result;
  std::vector<Value> arguments;
  bool returns = true;
};

std::span<const Builtin> builtins();
// An index into builtins().
std::optional<uint32_t> find_builtin(std::string_view name);
// Is that the name of a function of CUDA's device runtime, whether it is there or not?
bool is_of_device_runtime(std::string_view name);

}  // namespace gpupool::softgpu
