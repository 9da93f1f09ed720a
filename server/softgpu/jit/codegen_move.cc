// Moves between registers, between state spaces, and from global to shared memory.
#include "server/softgpu/jit/codegen_bulk.h"
#include "server/softgpu/jit/codegen_cluster.h"
#include "server/softgpu/jit/codegen_mbarrier.h"
#include "server/softgpu/jit/codegen_memory.h"
#include "server/softgpu/jit/instructions.h"

namespace gpupool::softgpu::codegen {
namespace {

void mov_vector(Emitter& e, Decoded& i, Type type);

}  // namespace

void cvta(Emitter& e, Decoded& i) {
  bool to = i.take("to");
  Space space = take_space(e, i);
  Type type = i.type();
  i.done(2);
  if (space == Space::generic) i.fail("a state space is missing");
  if (space == Space::shared_cluster) {
    llvm::Value* address = e.convert_bits(e.read(i, 1, type), e.builder.getInt64Ty(), false);
    return e.write(
        i.operand(0),
        to ? e.call_runtime("softgpu_generic_to_cluster", e.builder.getInt64Ty(), {e.thread, address})
           : cluster_to_generic(e, address, e.i32(0)),
        Type::u64);
  }
  llvm::Value* value = e.read(i, 1, space == Space::shared && !to ? Type::u64 : type);
  if (space == Space::shared) {
    llvm::Value* base = e.convert_bits(shared_base(e), value->getType(), false);
    if (!to) {
      value = e.builder.CreateAdd(value, base);
    } else {
      // Handles pointers into other windows of the cluster, too.
      llvm::Type* word = e.builder.getInt64Ty();
      llvm::Value* generic = e.convert_bits(value, word, false);
      llvm::Value* offset = e.builder.CreateSub(generic, shared_base(e));
      llvm::Value* total = e.block_field(offsetof(BlockContext, total_shared_bytes), e.builder.getInt32Ty());
      llvm::AllocaInst* result = e.temporary(word);
      e.builder.CreateStore(offset, result);
      auto *elsewhere = e.new_block("elsewhere"), *after = e.new_block("after");
      e.builder.CreateCondBr(e.builder.CreateICmpULE(offset, e.builder.CreateZExt(total, word)), after,
                             elsewhere);
      e.builder.SetInsertPoint(elsewhere);
      e.builder.CreateStore(e.call_runtime("softgpu_generic_to_cluster", word, {e.thread, generic}), result);
      e.start_block(after);
      value = e.convert_bits(e.builder.CreateLoad(word, result), value->getType(), false);
    }
  }
  e.write(i.operand(0), value, type);
  remember_base(e, i.operand(0), i.operand(1), nullptr);
}

void isspacep(Emitter& e, Decoded& i) {
  std::string_view space = i.take_one(
      {"global", "shared", "shared::cta", "shared::cluster", "local", "const", "param", "param::entry"});
  i.done(2);
  llvm::Value* address = e.read(i, 1, Type::u64);
  auto inside = [&](llvm::Value* base, llvm::Value* size) {
    return e.builder.CreateICmpULT(e.builder.CreateSub(address, base), size);
  };
  auto in_shared = [&] {
    return inside(shared_base(e),
                  e.builder.CreateZExt(
                      e.block_field(offsetof(BlockContext, total_shared_bytes), e.builder.getInt32Ty()),
                      e.builder.getInt64Ty()));
  };
  // Local variables lie on this thread's stack, close to the current frame.
  auto in_local = [&] {
    llvm::Value* top = e.builder.CreateIntrinsic(llvm::Intrinsic::frameaddress,
                                                 {llvm::PointerType::get(e.module.context, 0)}, {e.i32(0)});
    llvm::Value* frame = e.builder.CreatePtrToInt(top, e.builder.getInt64Ty());
    constexpr uint64_t kReach = 16 * 1024;
    return inside(e.builder.CreateSub(frame, e.i64(kReach)), e.i64(2 * kReach));
  };
  auto in_parameters = [&] {
    uint64_t size = 0;
    if (e.source.is_kernel) {
      for (const ptx::Variable& parameter : e.source.parameters) {
        size = (size + parameter.alignment - 1) & ~uint64_t{parameter.alignment - 1};
        size += parameter.size;
      }
    }
    return inside(e.block_field(offsetof(BlockContext, params), e.builder.getInt64Ty()), e.i64(size));
  };
  auto in_cluster = [&] { return e.builder.CreateICmpNE(cluster_rank_of(e, address), e.i32(UINT32_MAX)); };
  llvm::Value* result;
  if (space == "shared::cluster")
    result = in_cluster();
  else if (space.substr(0, 6) == "shared")
    result = in_shared();
  else if (space == "local")
    result = in_local();
  else if (space.substr(0, 5) == "param")
    result = in_parameters();
  else if (space == "const")
    result = e.builder.getFalse();
  else if (space == "global")
    result = e.builder.CreateNot(e.builder.CreateOr(in_cluster(), in_local()));
  else
    i.fail("a state space is missing");
  e.write(i.operand(0), result, Type::pred);
}

void mov(Emitter& e, Decoded& i) {
  Type type = i.type();
  i.done(2);
  const Operand& target = i.operand(0);
  const Operand& source = i.operand(1);
  if (target.kind == Operand::Kind::vector || source.kind == Operand::Kind::vector)
    return mov_vector(e, i, type);
  e.write(target, e.read(source, type), type);
  remember_base(e, target, source, nullptr);
}

namespace {

// mov.b32 d, {a, b} and mov.b32 {a, b}, d: the first element is the least significant.
void mov_vector(Emitter& e, Decoded& i, Type type) {
  const Operand& target = i.operand(0);
  const Operand& source = i.operand(1);
  bool packs = source.kind == Operand::Kind::vector;
  const Operand& vector = packs ? source : target;
  uint32_t bits = ptx::bits_of(type), count = vector.count;
  if (packs && target.kind == Operand::Kind::vector) i.fail("both operands are vectors");
  if (type == Type::pred || (count != 2 && count != 4) || bits % count || bits / count < 8)
    i.fail("the vector's width is wrong");
  uint32_t part = bits / count;
  Type element = part == 8 ? Type::b8 : part == 16 ? Type::b16 : part == 32 ? Type::b32 : Type::b64;
  llvm::Type* whole = e.module.int_type(bits);
  auto elements = i.elements(vector);
  if (packs) {
    llvm::Value* value = llvm::ConstantInt::get(whole, 0);
    for (uint32_t n = 0; n < count; ++n)
      value = e.builder.CreateOr(
          value,
          e.builder.CreateShl(e.builder.CreateZExt(e.read(elements[n], element), whole), uint64_t{n} * part));
    e.write(target, value, type);
    return;
  }
  llvm::Value* value = e.convert_bits(e.read(source, type), whole, false);
  for (uint32_t n = 0; n < count; ++n)
    e.write(elements[n],
            e.builder.CreateTrunc(e.builder.CreateLShr(value, uint64_t{n} * part), e.module.int_type(part)),
            element);
}

}  // namespace

// cp.async copies at once, so committing and waiting do nothing.
void cp(Emitter& e, Decoded& i) {
  const bool reduces = i.take("reduce");
  if (!i.take("async")) i.fail("expected .async");
  if (i.take("bulk")) return cp_bulk(e, i, reduces);
  if (reduces) i.fail("expected .bulk");
  if (i.take("mbarrier")) return cp_mbarrier_arrive(e, i);
  if (i.take_any({"commit_group", "wait_group", "wait_all"})) return i.done();
  i.take_any({"ca", "cg"});
  if (!i.take_one({"shared", "shared::cta"}).size() || !i.take("global"))
    i.fail("only global to shared is supported");
  // The cache policy is the last operand.
  const size_t count_of_operands = i.operand_count() - (i.take("L2::cache_hint") ? 1 : 0);
  i.take_cache_hints();
  i.done();
  const Operand& size = i.operand(2);
  if (size.kind != Operand::Kind::integer || (size.value != 4 && size.value != 8 && size.value != 16))
    i.fail("the size must be 4, 8 or 16");
  auto bytes = static_cast<uint32_t>(size.value);
  llvm::Type* type = e.module.int_type(bytes * 8);
  llvm::Value* to = checked_pointer(e, i, resolve(e, i, i.operand(0), Space::shared), bytes, true, false);
  Address from = resolve(e, i, i.operand(1), Space::global);
  if (count_of_operands < 4) {
    llvm::Value* value =
        e.builder.CreateAlignedLoad(type, checked_pointer(e, i, from, bytes, false, false), llvm::Align(1));
    e.builder.CreateAlignedStore(value, to, llvm::Align(1));
    return;
  }
  // A source size below `bytes` fills the rest with zeros; a true ignore-src predicate means size 0.
  const Operand& limit = i.operand(3);
  bool ignore = limit.kind == Operand::Kind::reg && e.source.registers[limit.index].type == Type::pred;
  llvm::Value* count = ignore ? e.builder.CreateSelect(e.read_predicate(limit), e.i32(0), e.i32(bytes))
                              : e.read(limit, Type::u32);
  auto *copy = e.new_block("copy"), *after = e.new_block("after");
  e.builder.CreateAlignedStore(llvm::ConstantInt::get(type, 0), to, llvm::Align(1));
  e.builder.CreateCondBr(e.builder.CreateICmpEQ(count, e.i32(0)), after, copy);
  e.builder.SetInsertPoint(copy);
  llvm::Value* value =
      e.builder.CreateAlignedLoad(type, checked_pointer(e, i, from, bytes, false, false), llvm::Align(1));
  llvm::Value* missing = e.builder.CreateMul(
      e.builder.CreateSub(e.i32(bytes), e.select_min(count, e.i32(bytes), false)), e.i32(8));
  llvm::Value* wide = e.builder.CreateZExt(missing, type);
  value = e.builder.CreateLShr(e.builder.CreateShl(value, wide),
                               wide);  // count is at least 1, so the shift is in range
  e.builder.CreateAlignedStore(value, to, llvm::Align(1));
  e.start_block(after);
}

}  // namespace gpupool::softgpu::codegen
