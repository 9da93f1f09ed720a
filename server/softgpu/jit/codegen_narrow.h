// Conversions to and from narrow floating point. For the code of instructions (instructions.h).
#pragma once
#include "server/softgpu/jit/codegen_float.h"
#include "server/softgpu/jit/emitter.h"

namespace gpupool::softgpu::codegen {

// Returns false if neither type is a narrow one.
bool cvt_narrow(Emitter& e, Decoded& i);
void cvt_stochastic(Emitter& e, Decoded& i);
void cvt_tf32(Emitter& e, Decoded& i, FloatMode mode);
llvm::Value* saturate_half(Emitter& e, llvm::Value* half, Type type);

}  // namespace gpupool::softgpu::codegen
