// Clusters: the barrier of their blocks, and addresses in each other's shared memory.
#include "server/softgpu/jit/codegen_cluster.h"

#include "server/softgpu/jit/codegen_memory.h"
#include "server/softgpu/jit/instructions.h"

namespace gpupool::softgpu::codegen {

void cluster_barrier(Emitter& e, Decoded& i) {
  bool arrive = i.take("arrive"), wait = i.take("wait");
  i.take_any({"release", "relaxed", "acquire", "aligned"});
  i.done(0);
  if (arrive == wait) i.fail("expected arrive or wait");
  e.call_runtime(arrive ? "softgpu_cluster_arrive" : "softgpu_cluster_wait", e.builder.getVoidTy(),
                 {e.thread});
}

llvm::Value* cluster_to_generic(Emitter& e, llvm::Value* address, llvm::Value* bytes) {
  return e.call_runtime("softgpu_cluster_to_generic", e.builder.getInt64Ty(),
                        {e.thread, e.convert_bits(address, e.builder.getInt64Ty(), false), bytes});
}

llvm::Value* cluster_rank_of(Emitter& e, llvm::Value* generic) {
  return e.call_runtime("softgpu_cluster_rank", e.builder.getInt32Ty(), {e.thread, generic});
}

void mapa(Emitter& e, Decoded& i) {
  bool in_shared = i.take("shared::cluster");
  Type type = i.type();
  i.done(3);
  if (type != Type::u32 && type != Type::u64) i.fail("expected .u32 or .u64");
  llvm::Value* rank = e.read(i, 2, Type::u32);
  if (in_shared) {
    llvm::Value* offset =
        e.builder.CreateAnd(e.convert_bits(e.read(i, 1, type), e.builder.getInt32Ty(), false),
                            e.i32((1u << kClusterAddressBits) - 1));
    llvm::Value* upper = e.builder.CreateShl(e.builder.CreateAdd(rank, e.i32(1)), kClusterAddressBits);
    return e.write(i.operand(0), e.builder.CreateOr(offset, upper), Type::u32);
  }
  llvm::Value* generic = e.convert_bits(e.read(i, 1, type), e.builder.getInt64Ty(), false);
  e.write(i.operand(0),
          e.call_runtime("softgpu_map_to_rank", e.builder.getInt64Ty(), {e.thread, generic, rank}),
          Type::u64);
}

void getctarank(Emitter& e, Decoded& i) {
  bool in_shared = i.take("shared::cluster");
  Type type = i.type();
  i.done(2);
  if (type != Type::u32 && type != Type::u64) i.fail("expected .u32 or .u64");
  llvm::Value* address = e.convert_bits(e.read(i, 1, type), e.builder.getInt64Ty(), false);
  if (in_shared) address = cluster_to_generic(e, address, e.i32(0));
  e.write(i.operand(0), cluster_rank_of(e, address), Type::u32);
}

// softgpu cannot cancel blocks that have not started, which the ISA allows: try_cancel always reports that no
// block was cancelled.
void clusterlaunchcontrol(Emitter& e, Decoded& i) {
  if (i.take("try_cancel")) {
    const bool in_shared = i.take("shared::cta"), to_all = i.take("multicast::cluster::all");
    if (!i.take("async") || !i.take("mbarrier::complete_tx::bytes") || !i.take("b128"))
      i.fail("expected .async, .mbarrier::complete_tx::bytes and .b128");
    i.done(2);
    auto address = [&](size_t n) -> llvm::Value* {
      if (in_shared) return resolve(e, i, i.operand(n), Space::shared).value;
      llvm::Value* generic = resolve(e, i, i.operand(n), Space::generic).value;
      return e.call_runtime("softgpu_generic_to_cluster", e.builder.getInt64Ty(), {e.thread, generic});
    };
    e.call_runtime("softgpu_cancel_nothing", e.builder.getVoidTy(),
                   {e.thread, address(0), address(1), e.i32(to_all)});
    return;
  }
  if (!i.take("query_cancel")) i.fail("expected .try_cancel or .query_cancel");
  if (i.take("is_canceled")) {
    if (!i.take("pred") || !i.take("b128")) i.fail("expected .pred.b128");
    i.done(2);
    e.read(i, 1, Type::b128);
    return e.write(i.operand(0), e.builder.getFalse(), Type::pred);
  }
  // The index of the cancelled block; undefined if none was cancelled, as here.
  const bool all = i.take("get_first_ctaid");
  if (!all && i.take_one({"get_first_ctaid::x", "get_first_ctaid::y", "get_first_ctaid::z"}).empty())
    i.fail("unknown query");
  if (all && !i.take("v4")) i.fail("expected .v4");
  if (!i.take("b32") || !i.take("b128")) i.fail("expected .b32.b128");
  i.done(2);
  const Operand& target = i.operand(0);
  if (!all) return e.write(target, e.i32(0), Type::b32);
  if (target.kind != Operand::Kind::vector || target.count != 4) i.fail("expected four registers");
  for (const Operand& one : i.elements(target)) e.write(one, e.i32(0), Type::b32);
}

}  // namespace gpupool::softgpu::codegen
