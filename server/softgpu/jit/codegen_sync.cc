// Barriers and warp operations: calls of the executor, which may switch to other threads of the block.
#include "server/softgpu/jit/codegen.h"
#include "server/softgpu/jit/support.h"

namespace gpupool::softgpu {

// bar and barrier: sync, red, arrive; bar.warp.sync; barrier.cluster.
void FunctionCodegen::bar(Decoded& i) {
  if (i.take("warp")) return warp_barrier(i);
  if (i.take("cluster")) return cluster_barrier(i);
  i.take_any({"cta", "aligned"});
  bool sync = i.take("sync"), arrive = i.take("arrive"), reduce = i.take("red");
  std::string_view op = reduce ? i.take_one({"popc", "and", "or"}) : std::string_view{};
  std::optional<Type> type = i.maybe_type();
  i.done();
  size_t count = i.operand_count();
  llvm::Value* thread_count = i32(0);
  auto read_count = [&](size_t n) { return read(i, n, Type::u32); };
  llvm::Type* number = b_.getInt32Ty();
  if (sync || arrive) {
    if (count < 1 || count > 2 || (arrive && count != 2)) i.fail("wrong number of operands");
    llvm::Value* barrier = read(i, 0, Type::u32);
    if (count == 2) thread_count = read_count(1);
    if (arrive)
      call_runtime("softgpu_barrier_arrive", b_.getVoidTy(), {thread_, barrier, thread_count});
    else
      call_runtime(
          "softgpu_barrier", number,
          {thread_, barrier, thread_count, i32(static_cast<uint32_t>(BarrierReduction::none)), i32(0)});
    return;
  }
  if (op.empty() || !type || count < 3 || count > 4) i.fail("expected sync, arrive or red");
  llvm::Value* barrier = read(i, 1, Type::u32);
  if (count == 4) thread_count = read_count(2);
  BarrierReduction kind = op == "popc"  ? BarrierReduction::popc
                          : op == "and" ? BarrierReduction::conjunction
                                        : BarrierReduction::disjunction;
  llvm::Value* predicate = b_.CreateZExt(read_predicate(i.operand(count - 1)), number);
  llvm::Value* result =
      call_runtime("softgpu_barrier", number,
                   {thread_, barrier, thread_count, i32(static_cast<uint32_t>(kind)), predicate});
  if (op == "popc")
    write(i.operand(0), result, Type::u32);
  else
    write(i.operand(0), b_.CreateICmpNE(result, i32(0)), Type::pred);
}

void FunctionCodegen::warp_barrier(Decoded& i) {
  i.take_any({"sync", "cta"});
  i.done(1);
  call_runtime("softgpu_warp_sync", b_.getVoidTy(), {thread_, read(i, 0, Type::u32)});
}

// The runtime distinguishes lanes by the call site, so LLVM must not merge calls in different branches.
llvm::Value* FunctionCodegen::active_mask() {
  auto* const call =
      llvm::cast<llvm::CallInst>(call_runtime("softgpu_active_mask", b_.getInt32Ty(), {thread_}));
  call->setConvergent();
  call->addFnAttr(llvm::Attribute::NoMerge);
  return call;
}

void FunctionCodegen::activemask(Decoded& i) {
  i.type();
  i.done(1);
  write(i.operand(0), active_mask(), Type::u32);
}

void FunctionCodegen::vote(Decoded& i) {
  bool sync = i.take("sync");
  std::string_view op = i.take_one({"all", "any", "uni", "ballot"});
  i.type();
  i.done(sync ? 3 : 2);
  llvm::Type* number = b_.getInt32Ty();
  VoteMode mode = op == "all"   ? VoteMode::all
                  : op == "any" ? VoteMode::any
                  : op == "uni" ? VoteMode::uniform
                                : VoteMode::ballot;
  if (op.empty()) i.fail("the operation is missing");
  llvm::Value* mask = sync ? read(i, 2, Type::u32) : active_mask();
  llvm::Value* predicate = b_.CreateZExt(read_predicate(i.operand(1)), number);
  llvm::Value* result =
      call_runtime("softgpu_vote", number, {thread_, i32(static_cast<uint32_t>(mode)), predicate, mask});
  if (op == "ballot")
    write(i.operand(0), result, Type::u32);
  else
    write(i.operand(0), b_.CreateICmpNE(result, i32(0)), Type::pred);
}

void FunctionCodegen::match(Decoded& i) {
  std::string_view op = i.take_one({"any", "all"});
  i.take("sync");
  Type type = i.type();
  i.done(3);
  if (op.empty() || !ptx::is_untyped(type) || ptx::bits_of(type) < 32 || ptx::bits_of(type) > 64)
    i.fail("expected .b32 or .b64");
  llvm::Type* number = b_.getInt32Ty();
  llvm::Value* value = convert_bits(read(i, 1, type), b_.getInt64Ty(), false);
  llvm::Value* mask = read(i, 2, Type::u32);
  if (op == "any")
    return write(i.operand(0), call_runtime("softgpu_match_any", number, {thread_, value, mask}), Type::u32);
  auto [target, predicate] = split_pair(i, i.operand(0));
  llvm::Value* equal = temporary(number);
  write(*target, call_runtime("softgpu_match_all", number, {thread_, value, mask, equal}), Type::u32);
  if (predicate) write(*predicate, b_.CreateICmpNE(b_.CreateLoad(number, equal), i32(0)), Type::pred);
}

void FunctionCodegen::shfl(Decoded& i) {
  bool sync = i.take("sync");
  std::string_view op = i.take_one({"up", "down", "bfly", "idx"});
  Type type = i.type();
  i.done(sync ? 5 : 4);
  if (type != Type::b32 || op.empty()) i.fail("expected a mode and .b32");
  llvm::Type* number = b_.getInt32Ty();
  ShuffleMode mode = op == "up"     ? ShuffleMode::up
                     : op == "down" ? ShuffleMode::down
                     : op == "bfly" ? ShuffleMode::butterfly
                                    : ShuffleMode::index;
  llvm::Value* mask = sync ? read(i, 4, Type::u32) : active_mask();
  llvm::Value* in_range = temporary(number);
  llvm::Value* value = read(i, 1, Type::u32);
  llvm::Value* result = call_runtime("softgpu_shuffle", number,
                                     {thread_, i32(static_cast<uint32_t>(mode)), value, read(i, 2, Type::u32),
                                      read(i, 3, Type::u32), mask, in_range});
  auto [target, predicate] = split_pair(i, i.operand(0));
  write(*target, result, Type::u32);
  if (predicate) write(*predicate, b_.CreateICmpNE(b_.CreateLoad(number, in_range), i32(0)), Type::pred);
}

void FunctionCodegen::redux(Decoded& i) {
  i.take("sync");
  std::string_view op = i.take_one({"add", "min", "max", "and", "or", "xor"});
  const bool magnitude = i.take("abs"), nan = i.take("NaN");
  Type type = i.type();
  i.done(3);
  if (type == Type::f32) {
    if (op != "min" && op != "max") i.fail("f32 supports only .min and .max");
    const uint32_t code = kReduxFloat | (op == "max" ? kReduxMaximum : 0) |
                          (magnitude ? kReduxMagnitude : 0) | (nan ? kReduxNan : 0);
    return write(i.operand(0),
                 call_runtime("softgpu_redux", b_.getInt32Ty(),
                              {thread_, i32(code), read(i, 1, Type::u32), read(i, 2, Type::u32)}),
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
  write(i.operand(0),
        call_runtime("softgpu_redux", b_.getInt32Ty(),
                     {thread_, i32(code), read(i, 1, Type::u32), read(i, 2, Type::u32)}),
        type);
}

// Elects the lowest lane of the mask.
void FunctionCodegen::elect(Decoded& i) {
  i.take("sync");
  i.done(2);
  auto [target, predicate] = split_pair(i, i.operand(0));
  llvm::Value* mask = read(i, 1, Type::u32);
  call_runtime("softgpu_warp_sync", b_.getVoidTy(), {thread_, mask});
  llvm::Value* leader = b_.CreateBinaryIntrinsic(llvm::Intrinsic::cttz, mask, b_.getFalse());
  write(*target, leader, Type::u32);
  llvm::Value* lane = thread_field(offsetof(ThreadContext, lane), kWarpSize);
  if (predicate) write(*predicate, b_.CreateICmpEQ(lane, leader), Type::pred);
}

void FunctionCodegen::nanosleep(Decoded& i) {
  i.type();
  i.done(1);
  read(i, 0, Type::u32);
  call_runtime("softgpu_yield", b_.getVoidTy(), {thread_});
}

}  // namespace gpupool::softgpu
