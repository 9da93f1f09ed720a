// Blocks of a cluster: their barrier, addresses in each other's shared memory, bulk copies between them.
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

// An operand of a bulk copy as a generic address; in shared memory all its bytes lie in one window.
llvm::Value* FunctionCodegen::bulk_address(Decoded& i, size_t operand, std::string_view space, llvm::Value* bytes) {
  if (space == "global") return resolve(i, i.operand(operand), Space::global).value;
  llvm::Value* address = resolve(i, i.operand(operand), Space::shared).value;
  return cluster_to_generic(address, bytes);
}

// cp.async.bulk between global and shared memory and between windows of a cluster, in one dimension. Copied at once.
void FunctionCodegen::cp_bulk(Decoded& i) {
  if (i.take_any({"commit_group", "wait_group"})) {
    i.take("read");
    return i.done();
  }
  if (i.take("prefetch")) {
    i.take_any({"L2", "global", "L2::cache_hint"});
    return i.done();
  }
  if (i.take("tensor")) i.fail("copies by tensor maps are not supported");
  std::string_view target = i.take_next(), source = i.take_next();
  bool signals = i.take("mbarrier::complete_tx::bytes"), multicast = i.take("multicast::cluster");
  i.take_any({"bulk_group", "L2::cache_hint"});
  i.done();
  auto is_shared = [](std::string_view space) { return space == "shared::cluster" || space == "shared::cta"; };
  bool to_shared = is_shared(target);
  if (!(to_shared && (source == "global" || source == "shared::cta")) && !(target == "global" && source == "shared::cta"))
    i.fail("only copies between global and shared memory are supported");
  if (multicast && (!signals || source != "global")) i.fail("only copies from global memory go to several blocks");
  llvm::Type* word = b_.getInt64Ty();
  llvm::Value* bytes = read(i, 2, Type::u32);
  llvm::Value* wide = b_.CreateZExt(bytes, word);
  llvm::Value* from = bulk_address(i, 1, source, bytes);
  if (multicast) {
    llvm::Value* to = resolve(i, i.operand(0), Space::shared).value;
    llvm::Value* barrier = resolve(i, i.operand(3), Space::shared).value;
    call_runtime("softgpu_bulk_multicast", b_.getVoidTy(),
                 {thread_, to, from, wide, barrier, read(i, 4, Type::u16)});
    return;
  }
  llvm::Value* to = bulk_address(i, 0, target, bytes);
  llvm::Value* barrier = signals ? mbarrier_pointer(i, 3, Space::shared_cluster) : nullptr;
  call_runtime("softgpu_bulk_copy", b_.getVoidTy(), {thread_, to, from, wide});
  if (barrier) call_runtime("softgpu_mbarrier_transfer", word, {barrier, b_.CreateNeg(wide)});
}

}  // namespace gpupool::softgpu
