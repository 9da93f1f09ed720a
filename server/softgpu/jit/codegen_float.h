// Floating point: modes, operands and arithmetic. For the code of instructions (instructions.h).
#pragma once
#include "server/softgpu/jit/emitter.h"

namespace gpupool::softgpu::codegen {

// How an instruction rounds and what it does to its operands and its result.
struct FloatMode {
  Rounding rounding = Rounding::none;
  bool flush = false, saturate = false, relu = false;
  bool zero_outside = false;  // .oob: a factor from outside a tensor gives 0
};

// Takes these modifiers of the instruction.
FloatMode take_float_mode(Emitter& e, Decoded& i);
// Reads an operand, and flushes a subnormal number to zero if `flush`.
llvm::Value* read_float(Emitter& e, Decoded& i, size_t index, Type type, bool flush);
// Applies what the mode says of the result.
llvm::Value* finish_float(Emitter& e, llvm::Value* value, Type type, const FloatMode& mode);
void float_binary(Emitter& e, Decoded& i, Type type, FloatMode mode);
void float_fma(Emitter& e, Decoded& i, Type type, FloatMode mode);
void float_div(Emitter& e, Decoded& i, Type type, FloatMode mode, bool approximate);
// For integers, too.
void float_abs_neg(Emitter& e, Decoded& i);
void float_min_max(Emitter& e, Decoded& i, Type type, FloatMode mode, bool nan, bool magnitude);
llvm::Value* minimum(Emitter& e, llvm::Value* a, llvm::Value* b, bool maximum, bool propagate_nan);

}  // namespace gpupool::softgpu::codegen
