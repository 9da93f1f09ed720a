// Atomic operations and fences. Scopes are ignored: every operation is atomic for all threads of the host.
#include "server/softgpu/jit/codegen_float.h"
#include "server/softgpu/jit/codegen_half.h"
#include "server/softgpu/jit/codegen_mbarrier.h"
#include "server/softgpu/jit/codegen_memory.h"
#include "server/softgpu/jit/instructions.h"

namespace gpupool::softgpu::codegen {
namespace {

void atomic(Emitter& e, Decoded& i, bool has_result);

}  // namespace

using llvm::AtomicOrdering;
using llvm::AtomicRMWInst;

void atom(Emitter& e, Decoded& i) {
  atomic(e, i, true);
}
void red(Emitter& e, Decoded& i) {
  atomic(e, i, false);
}

namespace {

// Compare-and-swap loop. `update` maps the old bits to the new ones.
llvm::Value* atomic_loop(Emitter& e, llvm::Value* pointer, Type type, AtomicOrdering order,
                         const std::function<llvm::Value*(llvm::Value*)>& update) {
  uint32_t bytes = ptx::bytes_of(type);
  llvm::Type* bits = e.module.int_type(bytes * 8);
  llvm::LoadInst* first = e.builder.CreateAlignedLoad(bits, pointer, llvm::Align(bytes));
  first->setAtomic(AtomicOrdering::Monotonic);
  auto* before = e.builder.GetInsertBlock();
  auto *loop = e.new_block("atomic"), *done = e.new_block("done");
  e.builder.CreateBr(loop);
  e.builder.SetInsertPoint(loop);
  llvm::PHINode* old = e.builder.CreatePHI(bits, 2);
  old->addIncoming(first, before);
  llvm::Value* next = update(old);
  auto* result = e.builder.CreateAtomicCmpXchg(pointer, old, next, llvm::MaybeAlign(bytes), order,
                                               llvm::AtomicCmpXchgInst::getStrongestFailureOrdering(order));
  old->addIncoming(e.builder.CreateExtractValue(result, 0), e.builder.GetInsertBlock());
  e.builder.CreateCondBr(e.builder.CreateExtractValue(result, 1), done, loop);
  e.builder.SetInsertPoint(done);
  return old;
}

// atom and red, including 128-bit operations and vectors, whose elements are updated one by one.
void atomic(Emitter& e, Decoded& i, bool has_result) {
  AtomicOrdering order = AtomicOrdering::Monotonic;
  // red.async subtracts the bytes from an mbarrier afterwards, except with .mmio.
  const bool async = !has_result && i.take("async"), announces = async && !i.take("mmio");
  if (announces && !i.take("mbarrier::complete_tx::bytes")) i.fail("expected .mbarrier::complete_tx::bytes");
  if (i.take("acq_rel"))
    order = AtomicOrdering::AcquireRelease;
  else if (i.take("acquire"))
    order = AtomicOrdering::Acquire;
  else if (i.take("release"))
    order = AtomicOrdering::Release;
  i.take("relaxed");
  i.take_any({"cta", "cluster", "gpu", "sys"});
  Space space = take_space(e, i);
  if (announces) space = Space::shared_cluster;
  i.take_any({"noftz", "L2::cache_hint"});
  const uint32_t width = i.take("v2") ? 2 : i.take("v4") ? 4 : i.take("v8") ? 8 : 1;
  std::string_view op = i.take_one({"add", "min", "max", "inc", "dec", "and", "or", "xor", "exch", "cas"});
  Type type = i.type();
  i.done();
  bool cas = op == "cas";
  size_t first = has_result ? 1 : 0;
  if (op.empty()) i.fail("the operation is missing");
  if (i.operand_count() < first + (cas ? 3 : 2)) i.fail("an operand is missing");
  if (!has_result && (cas || op == "exch")) i.fail("red does not support this operation");
  uint32_t bytes = ptx::bytes_of(type);
  if (type == Type::pred || bytes < 2 || bytes > 16 || (bytes == 16 && !cas && op != "exch"))
    i.fail("atomic operations of this width are not supported");
  if (width > 1 && (bytes * width > 16 || !(type == Type::f32 || ptx::is_half(type)) ||
                    !(op == "add" || (ptx::is_half(type) && (op == "min" || op == "max")))))
    i.fail("vector atomics support .add (f16 and bf16 also .min and .max) on at most 16 bytes");
  llvm::Value* whole =
      checked_pointer(e, i, resolve(e, i, i.operand(first), space), bytes * width, true, true);
  llvm::Type* bits = e.module.int_type(bytes * 8);
  llvm::MaybeAlign alignment(bytes);
  auto elements = [&](size_t n) -> std::span<const Operand> {
    const Operand& operand = i.operand(n);
    if (width == 1) return {&operand, 1};
    if (operand.kind != Operand::Kind::vector || operand.count != width)
      i.fail("the vector's width is wrong");
    return i.elements(operand);
  };
  std::vector<llvm::Value*> olds;
  for (uint32_t n = 0; n < width; ++n) {
    llvm::Value* pointer =
        n ? e.builder.CreateConstGEP1_64(e.builder.getInt8Ty(), whole, uint64_t{n} * bytes) : whole;
    auto bits_of_operand = [&](size_t index) {
      return e.convert_bits(e.read(elements(index)[n], type), bits, false);
    };
    llvm::Value* b = bits_of_operand(first + 1);
    llvm::Value* old = nullptr;
    auto rmw = [&](AtomicRMWInst::BinOp kind, llvm::Value* value) {
      old = e.builder.CreateAtomicRMW(kind, pointer, value, alignment, order);
    };
    bool integer = !ptx::is_float(type);
    if (cas) {
      llvm::Value* next = bits_of_operand(first + 2);
      auto* result = e.builder.CreateAtomicCmpXchg(
          pointer, b, next, alignment, order, llvm::AtomicCmpXchgInst::getStrongestFailureOrdering(order));
      old = e.builder.CreateExtractValue(result, 0);
    } else if (op == "exch") {
      rmw(AtomicRMWInst::Xchg, b);
    } else if (op == "inc" || op == "dec") {
      if (type != Type::u32) i.fail("inc and dec take .u32");
      bool up = op == "inc";
      old = atomic_loop(e, pointer, type, order, [&](llvm::Value* value) {
        if (up)
          return e.builder.CreateSelect(e.builder.CreateICmpUGE(value, b), e.i32(0),
                                        e.builder.CreateAdd(value, e.i32(1)));
        llvm::Value* wraps =
            e.builder.CreateOr(e.builder.CreateICmpEQ(value, e.i32(0)), e.builder.CreateICmpUGT(value, b));
        return e.builder.CreateSelect(wraps, b, e.builder.CreateSub(value, e.i32(1)));
      });
    } else if (integer) {
      bool is_signed = ptx::is_signed(type);
      if (op == "add")
        rmw(AtomicRMWInst::Add, b);
      else if (op == "and")
        rmw(AtomicRMWInst::And, b);
      else if (op == "or")
        rmw(AtomicRMWInst::Or, b);
      else if (op == "xor")
        rmw(AtomicRMWInst::Xor, b);
      else if (op == "min")
        rmw(is_signed ? AtomicRMWInst::Min : AtomicRMWInst::UMin, b);
      else
        rmw(is_signed ? AtomicRMWInst::Max : AtomicRMWInst::UMax, b);
    } else if (op == "add" && (type == Type::f32 || type == Type::f64)) {
      rmw(AtomicRMWInst::FAdd, e.convert_bits(b, e.module.ir_type(type), false));
    } else if (op == "add" || op == "min" || op == "max") {
      old = atomic_loop(e, pointer, type, order, [&](llvm::Value* value) -> llvm::Value* {
        if (type == Type::f32 || type == Type::f64) {
          llvm::Type* ir = e.module.ir_type(type);
          return e.convert_bits(
              minimum(e, e.convert_bits(value, ir, false), e.convert_bits(b, ir, false), op == "max", false),
              bits, false);
        }
        return for_halves(e, type, {value, b}, [&](Type half, std::vector<llvm::Value*> values) {
          return half_arithmetic(e, op, half, values, FloatMode{});
        });
      });
    } else {
      i.fail("this operation does not exist for this type");
    }
    olds.push_back(old);
  }
  if (announces) {
    llvm::Value* barrier = mbarrier_pointer(e, i, 2, Space::shared_cluster);
    e.call_runtime("softgpu_mbarrier_transfer", e.builder.getInt64Ty(), {barrier, e.i64(-uint64_t{bytes})});
  }
  for (uint32_t n = 0; n < width && has_result; ++n)
    e.write(elements(0)[n], e.convert_bits(olds[n], e.module.ir_type(type), false), type);
}

}  // namespace

void membar(Emitter& e, Decoded& i) {
  i.take_any({"cta", "gl", "sys", "gpu", "proxy", "alias"});
  i.done(0);
  e.builder.CreateFence(AtomicOrdering::SequentiallyConsistent);
}

void fence(Emitter& e, Decoded& i) {
  bool weaker = i.take_any({"acq_rel", "acquire", "release"});
  i.take("sc");
  i.take("proxy");  // other proxies (async, alias, tensormap) access the same memory here
  i.take_any({"async", "alias", "async.global", "global", "shared::cta", "async::generic", "mbarrier_init",
              "cta", "cluster", "gpu", "sys", "sync_restrict::shared::cta", "sync_restrict::shared::cluster",
              "shared::cluster", "tensormap::generic", "async.shared::cta", "async.shared::cluster"});
  i.done();  // the address range of a tensormap fence is ignored
  e.builder.CreateFence(weaker ? AtomicOrdering::AcquireRelease : AtomicOrdering::SequentiallyConsistent);
}

}  // namespace gpupool::softgpu::codegen
