// What generated code calls besides softgpu_* of exec/abi.h: arithmetic that LLVM has no fast instruction
// for. Pure functions, safe from any thread.
#pragma once
#include <cstdint>
#include <span>

#include "server/softgpu/exec/abi.h"

namespace gpupool::softgpu {

constexpr uint16_t kOutsideHalf = 0x7EFF;  // the NaN that stands for an element beyond a tensor's edge

// Operations of softgpu_directed_*.
constexpr uint32_t kAdd = 0, kSubtract = 1, kMultiply = 2, kFma = 3, kDivide = 4, kSquareRoot = 5;

// Operations of softgpu_redux on f32, beside those on integers.
constexpr uint32_t kReduxFloat = 8, kReduxMaximum = 1, kReduxMagnitude = 2, kReduxNan = 4;

extern "C" {
float softgpu_half_to_float(uint32_t half);
uint32_t softgpu_float_to_half(float value, uint32_t rounding);  // a Rounding
uint32_t softgpu_float_to_bf16(float value, uint32_t rounding);
// Announces bytes to an mbarrier or, negative, takes as many off; returns what it was.
uint64_t softgpu_mbarrier_transfer(uint64_t* barrier, uint64_t bytes);
}

bool host_converts_half();  // the host converts between f16 and f32 in hardware

struct RuntimeSymbol {
  const char* name;
  void* address;
};
// Every function that generated code may call: the executor's, this file's, and the C library's that LLVM
// itself uses.
std::span<const RuntimeSymbol> runtime_symbols();

}  // namespace gpupool::softgpu
