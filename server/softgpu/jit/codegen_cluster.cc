// Blocks of a cluster: their barrier, and addresses in each other's shared memory.
#include "server/softgpu/jit/codegen.h"

namespace gpupool::softgpu {

void FunctionCodegen::cluster_barrier(Decoded& i) {
  bool arrive = i.take("arrive"), wait = i.take("wait");
  i.take_any({"release", "relaxed", "acquire", "aligned"});
  i.done(0);
  if (arrive == wait) i.fail("expected arrive or wait");
  call_runtime(arrive ? "softgpu_cluster_arrive" : "softgpu_cluster_wait", b_.getVoidTy(), {thread_});
}

llvm::Value* FunctionCodegen::cluster_to_generic(llvm::Value* address, llvm::Value* bytes) {
  return call_runtime("softgpu_cluster_to_generic", b_.getInt64Ty(),
                      {thread_, convert_bits(address, b_.getInt64Ty(), false), bytes});
}

llvm::Value* FunctionCodegen::cluster_rank_of(llvm::Value* generic) {
  return call_runtime("softgpu_cluster_rank", b_.getInt32Ty(), {thread_, generic});
}

void FunctionCodegen::mapa(Decoded& i) {
  bool in_shared = i.take("shared::cluster");
  Type type = i.type();
  i.done(3);
  if (type != Type::u32 && type != Type::u64) i.fail("expected .u32 or .u64");
  llvm::Value* rank = read(i, 2, Type::u32);
  if (in_shared) {
    llvm::Value* offset = b_.CreateAnd(convert_bits(read(i, 1, type), b_.getInt32Ty(), false),
                                       i32((1u << kClusterAddressBits) - 1));
    llvm::Value* upper = b_.CreateShl(b_.CreateAdd(rank, i32(1)), kClusterAddressBits);
    return write(i.operand(0), b_.CreateOr(offset, upper), Type::u32);
  }
  llvm::Value* generic = convert_bits(read(i, 1, type), b_.getInt64Ty(), false);
  write(i.operand(0), call_runtime("softgpu_map_to_rank", b_.getInt64Ty(), {thread_, generic, rank}), Type::u64);
}

void FunctionCodegen::getctarank(Decoded& i) {
  bool in_shared = i.take("shared::cluster");
  Type type = i.type();
  i.done(2);
  if (type != Type::u32 && type != Type::u64) i.fail("expected .u32 or .u64");
  llvm::Value* address = convert_bits(read(i, 1, type), b_.getInt64Ty(), false);
  if (in_shared) address = cluster_to_generic(address, i32(0));
  write(i.operand(0), cluster_rank_of(address), Type::u32);
}

}  // namespace gpupool::softgpu
