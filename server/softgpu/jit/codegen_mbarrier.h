// Barriers in memory. For the code of instructions (instructions.h).
#pragma once
#include "server/softgpu/jit/emitter.h"

namespace gpupool::softgpu::codegen {

llvm::Value* mbarrier_pointer(Emitter& e, Decoded& i, size_t operand, Space space);
void cp_mbarrier_arrive(Emitter& e, Decoded& i);

}  // namespace gpupool::softgpu::codegen
