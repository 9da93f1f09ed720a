// Runtime functions of generated code besides those of exec/: arithmetic without a fast LLVM instruction,
// mbarriers, and bulk copies. The arithmetic functions are pure and thread-safe; the others run on the pool
// thread of the block.
#pragma once
#include <cstdint>
#include <span>

#include "server/softgpu/exec/abi.h"

namespace gpupool::softgpu {

constexpr uint16_t kOutsideHalf = 0x7EFF;  // NaN that stands for an element outside of a tensor

// Operations of softgpu_directed_f32 and softgpu_directed_f64.
constexpr uint32_t kAdd = 0, kSubtract = 1, kMultiply = 2, kFma = 3, kDivide = 4, kSquareRoot = 5;

// Flags of softgpu_redux operations on f32; values below kReduxFloat are integer operations.
constexpr uint32_t kReduxFloat = 8, kReduxMaximum = 1, kReduxMagnitude = 2, kReduxNan = 4;

extern "C" {
float softgpu_half_to_float(uint32_t half);
uint32_t softgpu_float_to_half(float value, uint32_t rounding);  // a Rounding
uint32_t softgpu_float_to_bf16(float value, uint32_t rounding);
// Adds pending bytes to an mbarrier; a negative number subtracts them and may complete the phase. Returns the
// previous state.
uint64_t softgpu_mbarrier_transfer(uint64_t* barrier, uint64_t bytes);
}

bool host_converts_half();  // true if the host converts between f16 and f32 in hardware

struct RuntimeSymbol {
  const char* name;
  void* address;
};
// All functions that generated code may call, except builtins(): the executor's, those of jit/, and the C
// library's that LLVM itself uses.
std::span<const RuntimeSymbol> runtime_symbols();

}  // namespace gpupool::softgpu
