// Clusters: the barrier of their blocks, and addresses in each other's shared memory.
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
  write(i.operand(0), call_runtime("softgpu_map_to_rank", b_.getInt64Ty(), {thread_, generic, rank}),
        Type::u64);
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

// softgpu cannot cancel blocks that have not started, which the ISA allows: try_cancel always reports that no
// block was cancelled.
void FunctionCodegen::clusterlaunchcontrol(Decoded& i) {
  if (i.take("try_cancel")) {
    const bool in_shared = i.take("shared::cta"), to_all = i.take("multicast::cluster::all");
    if (!i.take("async") || !i.take("mbarrier::complete_tx::bytes") || !i.take("b128"))
      i.fail("expected .async, .mbarrier::complete_tx::bytes and .b128");
    i.done(2);
    auto address = [&](size_t n) -> llvm::Value* {
      if (in_shared) return resolve(i, i.operand(n), Space::shared).value;
      llvm::Value* generic = resolve(i, i.operand(n), Space::generic).value;
      return call_runtime("softgpu_generic_to_cluster", b_.getInt64Ty(), {thread_, generic});
    };
    call_runtime("softgpu_cancel_nothing", b_.getVoidTy(), {thread_, address(0), address(1), i32(to_all)});
    return;
  }
  if (!i.take("query_cancel")) i.fail("expected .try_cancel or .query_cancel");
  if (i.take("is_canceled")) {
    if (!i.take("pred") || !i.take("b128")) i.fail("expected .pred.b128");
    i.done(2);
    read(i, 1, Type::b128);
    return write(i.operand(0), b_.getFalse(), Type::pred);
  }
  // The index of the cancelled block; undefined if none was cancelled, as here.
  const bool all = i.take("get_first_ctaid");
  if (!all && i.take_one({"get_first_ctaid::x", "get_first_ctaid::y", "get_first_ctaid::z"}).empty())
    i.fail("unknown query");
  if (all && !i.take("v4")) i.fail("expected .v4");
  if (!i.take("b32") || !i.take("b128")) i.fail("expected .b32.b128");
  i.done(2);
  const Operand& target = i.operand(0);
  if (!all) return write(target, i32(0), Type::b32);
  if (target.kind != Operand::Kind::vector || target.count != 4) i.fail("expected four registers");
  for (const Operand& one : i.elements(target)) write(one, i32(0), Type::b32);
}

}  // namespace gpupool::softgpu
