// Barriers and warp operations: calls of the executor, which may switch to other threads of the block.
#include "server/softgpu/jit/codegen_cluster.h"
#include "server/softgpu/jit/instructions.h"
#include "server/softgpu/jit/support.h"

namespace gpupool::softgpu::codegen {
namespace {

void warp_barrier(Emitter& e, Decoded& i);

}  // namespace

// bar and barrier: sync, red, arrive; bar.warp.sync; barrier.cluster.
void bar(Emitter& e, Decoded& i) {
  if (i.take("warp")) return warp_barrier(e, i);
  if (i.take("cluster")) return cluster_barrier(e, i);
  i.take_any({"cta", "aligned"});
  bool sync = i.take("sync"), arrive = i.take("arrive"), reduce = i.take("red");
  std::string_view op = reduce ? i.take_one({"popc", "and", "or"}) : std::string_view{};
  std::optional<Type> type = i.maybe_type();
  i.done();
  size_t count = i.operand_count();
  llvm::Value* thread_count = e.i32(0);
  auto read_count = [&](size_t n) { return e.read(i, n, Type::u32); };
  llvm::Type* number = e.builder.getInt32Ty();
  if (sync || arrive) {
    if (count < 1 || count > 2 || (arrive && count != 2)) i.fail("wrong number of operands");
    llvm::Value* barrier = e.read(i, 0, Type::u32);
    if (count == 2) thread_count = read_count(1);
    if (arrive)
      e.call_runtime("softgpu_barrier_arrive", e.builder.getVoidTy(), {e.thread, barrier, thread_count});
    else
      e.call_runtime(
          "softgpu_barrier", number,
          {e.thread, barrier, thread_count, e.i32(static_cast<uint32_t>(BarrierReduction::none)), e.i32(0)});
    return;
  }
  if (op.empty() || !type || count < 3 || count > 4) i.fail("expected sync, arrive or red");
  llvm::Value* barrier = e.read(i, 1, Type::u32);
  if (count == 4) thread_count = read_count(2);
  BarrierReduction kind = op == "popc"  ? BarrierReduction::popc
                          : op == "and" ? BarrierReduction::conjunction
                                        : BarrierReduction::disjunction;
  llvm::Value* predicate = e.builder.CreateZExt(e.read_predicate(i.operand(count - 1)), number);
  llvm::Value* result =
      e.call_runtime("softgpu_barrier", number,
                     {e.thread, barrier, thread_count, e.i32(static_cast<uint32_t>(kind)), predicate});
  if (op == "popc")
    e.write(i.operand(0), result, Type::u32);
  else
    e.write(i.operand(0), e.builder.CreateICmpNE(result, e.i32(0)), Type::pred);
}

namespace {

void warp_barrier(Emitter& e, Decoded& i) {
  i.take_any({"sync", "cta"});
  i.done(1);
  e.call_runtime("softgpu_warp_sync", e.builder.getVoidTy(), {e.thread, e.read(i, 0, Type::u32)});
}

// The runtime distinguishes lanes by the call site, so LLVM must not merge calls in different branches.
llvm::Value* active_mask(Emitter& e) {
  auto* const call =
      llvm::cast<llvm::CallInst>(e.call_runtime("softgpu_active_mask", e.builder.getInt32Ty(), {e.thread}));
  call->setConvergent();
  call->addFnAttr(llvm::Attribute::NoMerge);
  return call;
}

}  // namespace

void activemask(Emitter& e, Decoded& i) {
  i.type();
  i.done(1);
  e.write(i.operand(0), active_mask(e), Type::u32);
}

void vote(Emitter& e, Decoded& i) {
  bool sync = i.take("sync");
  std::string_view op = i.take_one({"all", "any", "uni", "ballot"});
  i.type();
  i.done(sync ? 3 : 2);
  llvm::Type* number = e.builder.getInt32Ty();
  VoteMode mode = op == "all"   ? VoteMode::all
                  : op == "any" ? VoteMode::any
                  : op == "uni" ? VoteMode::uniform
                                : VoteMode::ballot;
  if (op.empty()) i.fail("the operation is missing");
  llvm::Value* mask = sync ? e.read(i, 2, Type::u32) : active_mask(e);
  llvm::Value* predicate = e.builder.CreateZExt(e.read_predicate(i.operand(1)), number);
  llvm::Value* result =
      e.call_runtime("softgpu_vote", number, {e.thread, e.i32(static_cast<uint32_t>(mode)), predicate, mask});
  if (op == "ballot")
    e.write(i.operand(0), result, Type::u32);
  else
    e.write(i.operand(0), e.builder.CreateICmpNE(result, e.i32(0)), Type::pred);
}

void match(Emitter& e, Decoded& i) {
  std::string_view op = i.take_one({"any", "all"});
  i.take("sync");
  Type type = i.type();
  i.done(3);
  if (op.empty() || !ptx::is_untyped(type) || ptx::bits_of(type) < 32 || ptx::bits_of(type) > 64)
    i.fail("expected .b32 or .b64");
  llvm::Type* number = e.builder.getInt32Ty();
  llvm::Value* value = e.convert_bits(e.read(i, 1, type), e.builder.getInt64Ty(), false);
  llvm::Value* mask = e.read(i, 2, Type::u32);
  if (op == "any")
    return e.write(i.operand(0), e.call_runtime("softgpu_match_any", number, {e.thread, value, mask}),
                   Type::u32);
  auto [target, predicate] = e.split_pair(i, i.operand(0));
  llvm::Value* equal = e.temporary(number);
  e.write(*target, e.call_runtime("softgpu_match_all", number, {e.thread, value, mask, equal}), Type::u32);
  if (predicate)
    e.write(*predicate, e.builder.CreateICmpNE(e.builder.CreateLoad(number, equal), e.i32(0)), Type::pred);
}

void shfl(Emitter& e, Decoded& i) {
  bool sync = i.take("sync");
  std::string_view op = i.take_one({"up", "down", "bfly", "idx"});
  Type type = i.type();
  i.done(sync ? 5 : 4);
  if (type != Type::b32 || op.empty()) i.fail("expected a mode and .b32");
  llvm::Type* number = e.builder.getInt32Ty();
  ShuffleMode mode = op == "up"     ? ShuffleMode::up
                     : op == "down" ? ShuffleMode::down
                     : op == "bfly" ? ShuffleMode::butterfly
                                    : ShuffleMode::index;
  llvm::Value* mask = sync ? e.read(i, 4, Type::u32) : active_mask(e);
  llvm::Value* in_range = e.temporary(number);
  llvm::Value* value = e.read(i, 1, Type::u32);
  llvm::Value* result = e.call_runtime("softgpu_shuffle", number,
                                       {e.thread, e.i32(static_cast<uint32_t>(mode)), value,
                                        e.read(i, 2, Type::u32), e.read(i, 3, Type::u32), mask, in_range});
  auto [target, predicate] = e.split_pair(i, i.operand(0));
  e.write(*target, result, Type::u32);
  if (predicate)
    e.write(*predicate, e.builder.CreateICmpNE(e.builder.CreateLoad(number, in_range), e.i32(0)), Type::pred);
}

void redux(Emitter& e, Decoded& i) {
  i.take("sync");
  std::string_view op = i.take_one({"add", "min", "max", "and", "or", "xor"});
  const bool magnitude = i.take("abs"), nan = i.take("NaN");
  Type type = i.type();
  i.done(3);
  if (type == Type::f32) {
    if (op != "min" && op != "max") i.fail("f32 supports only .min and .max");
    const uint32_t code = kReduxFloat | (op == "max" ? kReduxMaximum : 0) |
                          (magnitude ? kReduxMagnitude : 0) | (nan ? kReduxNan : 0);
    return e.write(i.operand(0),
                   e.call_runtime("softgpu_redux", e.builder.getInt32Ty(),
                                  {e.thread, e.i32(code), e.read(i, 1, Type::u32), e.read(i, 2, Type::u32)}),
                   Type::u32);
  }
  if (op.empty() || ptx::is_float(type) || ptx::bits_of(type) != 32 || magnitude || nan)
    i.fail("expected an operation and a 32-bit type");
  bool is_signed = ptx::is_signed(type);
  uint32_t code = op == "add"   ? 0
                  : op == "min" ? (is_signed ? 1 : 2)
                  : op == "max" ? (is_signed ? 3 : 4)
                  : op == "and" ? 5
                  : op == "or"  ? 6
                                : 7;
  e.write(i.operand(0),
          e.call_runtime("softgpu_redux", e.builder.getInt32Ty(),
                         {e.thread, e.i32(code), e.read(i, 1, Type::u32), e.read(i, 2, Type::u32)}),
          type);
}

// Elects the lowest lane of the mask.
void elect(Emitter& e, Decoded& i) {
  i.take("sync");
  i.done(2);
  auto [target, predicate] = e.split_pair(i, i.operand(0));
  llvm::Value* mask = e.read(i, 1, Type::u32);
  e.call_runtime("softgpu_warp_sync", e.builder.getVoidTy(), {e.thread, mask});
  llvm::Value* leader = e.builder.CreateBinaryIntrinsic(llvm::Intrinsic::cttz, mask, e.builder.getFalse());
  e.write(*target, leader, Type::u32);
  llvm::Value* lane = e.thread_field(offsetof(ThreadContext, lane), kWarpSize);
  if (predicate) e.write(*predicate, e.builder.CreateICmpEQ(lane, leader), Type::pred);
}

void nanosleep(Emitter& e, Decoded& i) {
  i.type();
  i.done(1);
  e.read(i, 0, Type::u32);
  e.call_runtime("softgpu_yield", e.builder.getVoidTy(), {e.thread});
}

}  // namespace gpupool::softgpu::codegen
