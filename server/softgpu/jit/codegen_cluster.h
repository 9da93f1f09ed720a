// Addresses in the shared memory of clusters. For the code of instructions (instructions.h).
#pragma once
#include "server/softgpu/jit/emitter.h"

namespace gpupool::softgpu::codegen {

void cluster_barrier(Emitter& e, Decoded& i);
llvm::Value* cluster_to_generic(Emitter& e, llvm::Value* address, llvm::Value* bytes);
llvm::Value* cluster_rank_of(Emitter& e, llvm::Value* generic);

}  // namespace gpupool::softgpu::codegen
