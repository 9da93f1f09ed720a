// Comparisons. For the code of instructions (instructions.h).
#pragma once
#include "server/softgpu/jit/emitter.h"

namespace gpupool::softgpu::codegen {

llvm::Value* compare(Emitter& e, Decoded& i, std::string_view op, Type type, llvm::Value* a, llvm::Value* b);

}  // namespace gpupool::softgpu::codegen
