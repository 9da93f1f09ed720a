// Atomic operations and fences. Scopes are ignored: every operation is atomic for all threads of the host.
#include "server/softgpu/jit/codegen_float.h"
#include "server/softgpu/jit/codegen_half.h"
#include "server/softgpu/jit/codegen_mbarrier.h"
#include "server/softgpu/jit/codegen_memory.h"
#include "server/softgpu/jit/instructions.h"

namespace gpupool::softgpu::codegen {
namespace {

using llvm::AtomicOrdering;
using llvm::AtomicRMWInst;

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

// The modifiers of an atomic instruction.
struct Atomic {
  bool has_result = false;
  bool announces = false;  // subtracts the bytes from an mbarrier afterwards
  std::string_view op;
  Type type = Type::u32;
  uint32_t bytes = 0, width = 1;  // of an element; number of elements
  Space space = Space::generic;
  AtomicOrdering order = AtomicOrdering::Monotonic;
  bool is_cas() const { return op == "cas"; }
  size_t first() const { return has_result ? 1 : 0; }  // index of the address's operand
};

AtomicOrdering take_order(Decoded& i) {
  if (i.take("acq_rel")) return AtomicOrdering::AcquireRelease;
  if (i.take("acquire")) return AtomicOrdering::Acquire;
  if (i.take("release")) return AtomicOrdering::Release;
  return AtomicOrdering::Monotonic;
}

Atomic take_atomic(Emitter& e, Decoded& i, bool has_result) {
  Atomic a{.has_result = has_result};
  // red.async subtracts the bytes from an mbarrier afterwards, except with .mmio.
  const bool async = !has_result && i.take("async");
  a.announces = async && !i.take("mmio");
  if (a.announces && !i.take("mbarrier::complete_tx::bytes"))
    i.fail("expected .mbarrier::complete_tx::bytes");
  a.order = take_order(i);
  i.take("relaxed");
  i.take_any({"cta", "cluster", "gpu", "sys"});
  a.space = take_space(e, i);
  if (a.announces) a.space = Space::shared_cluster;
  i.take_any({"noftz", "L2::cache_hint"});
  a.width = i.take("v2") ? 2 : i.take("v4") ? 4 : i.take("v8") ? 8 : 1;
  a.op = i.take_one({"add", "min", "max", "inc", "dec", "and", "or", "xor", "exch", "cas"});
  a.type = i.type();
  a.bytes = ptx::bytes_of(a.type);
  i.done();
  if (a.op.empty()) i.fail("the operation is missing");
  if (i.operand_count() < a.first() + (a.is_cas() ? 3 : 2)) i.fail("an operand is missing");
  if (!has_result && (a.is_cas() || a.op == "exch")) i.fail("red does not support this operation");
  if (a.type == Type::pred || a.bytes < 2 || a.bytes > 16 || (a.bytes == 16 && !a.is_cas() && a.op != "exch"))
    i.fail("atomic operations of this width are not supported");
  const bool is_half = ptx::is_half(a.type);
  if (a.width > 1 && (a.bytes * a.width > 16 || !(a.type == Type::f32 || is_half) ||
                      !(a.op == "add" || (is_half && (a.op == "min" || a.op == "max")))))
    i.fail("vector atomics support .add (f16 and bf16 also .min and .max) on at most 16 bytes");
  return a;
}

// Operations that are one LLVM instruction. Returns nullopt for others.
std::optional<AtomicRMWInst::BinOp> single_operation(const Atomic& a) {
  if (a.op == "exch") return AtomicRMWInst::Xchg;
  if (ptx::is_float(a.type)) {
    if (a.op == "add" && (a.type == Type::f32 || a.type == Type::f64)) return AtomicRMWInst::FAdd;
    return std::nullopt;
  }
  const bool is_signed = ptx::is_signed(a.type);
  if (a.op == "add") return AtomicRMWInst::Add;
  if (a.op == "and") return AtomicRMWInst::And;
  if (a.op == "or") return AtomicRMWInst::Or;
  if (a.op == "xor") return AtomicRMWInst::Xor;
  if (a.op == "min") return is_signed ? AtomicRMWInst::Min : AtomicRMWInst::UMin;
  if (a.op == "max") return is_signed ? AtomicRMWInst::Max : AtomicRMWInst::UMax;
  return std::nullopt;  // inc, dec
}

// The next value of inc and dec, which wrap at `limit`.
llvm::Value* step(Emitter& e, bool up, llvm::Value* value, llvm::Value* limit) {
  if (up)
    return e.builder.CreateSelect(e.builder.CreateICmpUGE(value, limit), e.i32(0),
                                  e.builder.CreateAdd(value, e.i32(1)));
  llvm::Value* wraps =
      e.builder.CreateOr(e.builder.CreateICmpEQ(value, e.i32(0)), e.builder.CreateICmpUGT(value, limit));
  return e.builder.CreateSelect(wraps, limit, e.builder.CreateSub(value, e.i32(1)));
}

// The next value of operations on floating point that LLVM does not have.
llvm::Value* combine_floats(Emitter& e, const Atomic& a, llvm::Value* value, llvm::Value* with) {
  if (a.type == Type::f32 || a.type == Type::f64) {
    llvm::Type* ir = e.module.ir_type(a.type);
    return e.convert_bits(
        minimum(e, e.convert_bits(value, ir, false), e.convert_bits(with, ir, false), a.op == "max", false),
        e.module.int_type(a.bytes * 8), false);
  }
  return for_halves(e, a.type, {value, with}, [&](Type half, std::vector<llvm::Value*> values) {
    return half_arithmetic(e, a.op, half, values, FloatMode{});
  });
}

// Updates one element. `read` reads an operand's bits. Returns the old bits.
llvm::Value* update(Emitter& e, Decoded& i, const Atomic& a, llvm::Value* pointer,
                    const std::function<llvm::Value*(size_t)>& read) {
  const llvm::MaybeAlign alignment(a.bytes);
  llvm::Value* with = read(a.first() + 1);
  if (a.is_cas()) {
    llvm::Value* next = read(a.first() + 2);
    auto* result =
        e.builder.CreateAtomicCmpXchg(pointer, with, next, alignment, a.order,
                                      llvm::AtomicCmpXchgInst::getStrongestFailureOrdering(a.order));
    return e.builder.CreateExtractValue(result, 0);
  }
  if (const auto operation = single_operation(a)) {
    if (*operation == AtomicRMWInst::FAdd) with = e.convert_bits(with, e.module.ir_type(a.type), false);
    return e.builder.CreateAtomicRMW(*operation, pointer, with, alignment, a.order);
  }
  if (a.op == "inc" || a.op == "dec") {
    if (a.type != Type::u32) i.fail("inc and dec take .u32");
    return atomic_loop(e, pointer, a.type, a.order,
                       [&](llvm::Value* value) { return step(e, a.op == "inc", value, with); });
  }
  if (a.op != "add" && a.op != "min" && a.op != "max") i.fail("this operation does not exist for this type");
  return atomic_loop(e, pointer, a.type, a.order,
                     [&](llvm::Value* value) { return combine_floats(e, a, value, with); });
}

// atom and red, including 128-bit operations and vectors, whose elements are updated one by one.
void atomic(Emitter& e, Decoded& i, bool has_result) {
  const Atomic a = take_atomic(e, i, has_result);
  llvm::Value* whole =
      checked_pointer(e, i, resolve(e, i, i.operand(a.first()), a.space), a.bytes * a.width, true, true);
  llvm::Type* bits = e.module.int_type(a.bytes * 8);
  auto elements = [&](size_t n) -> std::span<const Operand> {
    const Operand& operand = i.operand(n);
    if (a.width == 1) return {&operand, 1};
    if (operand.kind != Operand::Kind::vector || operand.count != a.width)
      i.fail("the vector's width is wrong");
    return i.elements(operand);
  };
  std::vector<llvm::Value*> olds;
  for (uint32_t n = 0; n < a.width; ++n) {
    llvm::Value* pointer =
        n ? e.builder.CreateConstGEP1_64(e.builder.getInt8Ty(), whole, uint64_t{n} * a.bytes) : whole;
    olds.push_back(update(e, i, a, pointer, [&](size_t index) {
      return e.convert_bits(e.read(elements(index)[n], a.type), bits, false);
    }));
  }
  if (a.announces) {
    llvm::Value* barrier = mbarrier_pointer(e, i, 2, Space::shared_cluster);
    e.call_runtime("softgpu_mbarrier_transfer", e.builder.getInt64Ty(), {barrier, e.i64(-uint64_t{a.bytes})});
  }
  for (uint32_t n = 0; n < a.width && has_result; ++n)
    e.write(elements(0)[n], e.convert_bits(olds[n], e.module.ir_type(a.type), false), a.type);
}

}  // namespace

void atom(Emitter& e, Decoded& i) {
  atomic(e, i, true);
}
void red(Emitter& e, Decoded& i) {
  atomic(e, i, false);
}

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
