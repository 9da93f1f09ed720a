// Arithmetic of half precision. For the code of instructions (instructions.h).
#pragma once
#include <functional>

#include "server/softgpu/jit/codegen_float.h"
#include "server/softgpu/jit/emitter.h"

namespace gpupool::softgpu::codegen {

void half_binary(Emitter& e, Decoded& i, Type type, FloatMode mode);
void half_fma(Emitter& e, Decoded& i, Type type, FloatMode mode);
llvm::Value* for_halves(Emitter& e, Type type, std::initializer_list<llvm::Value*> operands,
                        const std::function<llvm::Value*(Type, std::vector<llvm::Value*>)>& operation);
llvm::Value* half_to_float(Emitter& e, llvm::Value* half, Type type);
llvm::Value* float_to_half(Emitter& e, llvm::Value* value, Type type, Rounding rounding);
llvm::Value* half_arithmetic(Emitter& e, std::string_view op, Type type,
                             const std::vector<llvm::Value*>& halves, FloatMode mode);

}  // namespace gpupool::softgpu::codegen
