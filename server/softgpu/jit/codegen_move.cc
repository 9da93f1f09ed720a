// Moves between registers, between state spaces, and from global to shared memory.
#include "server/softgpu/jit/codegen.h"

namespace gpupool::softgpu {

void FunctionCodegen::cvta(Decoded& i) {
  bool to = i.take("to");
  Space space = take_space(i);
  Type type = i.type();
  i.done(2);
  if (space == Space::generic) i.fail("a state space is missing");
  if (space == Space::shared_cluster) {
    llvm::Value* address = convert_bits(read(i, 1, type), b_.getInt64Ty(), false);
    return write(i.operand(0),
                 to ? call_runtime("softgpu_generic_to_cluster", b_.getInt64Ty(), {thread_, address})
                    : cluster_to_generic(address, i32(0)),
                 Type::u64);
  }
  llvm::Value* value = read(i, 1, space == Space::shared && !to ? Type::u64 : type);
  if (space == Space::shared) {
    llvm::Value* base = convert_bits(shared_base(), value->getType(), false);
    if (!to) {
      value = b_.CreateAdd(value, base);
    } else {
      // Handles pointers into other windows of the cluster, too.
      llvm::Type* word = b_.getInt64Ty();
      llvm::Value* generic = convert_bits(value, word, false);
      llvm::Value* offset = b_.CreateSub(generic, shared_base());
      llvm::Value* total = block_field(offsetof(BlockContext, total_shared_bytes), b_.getInt32Ty());
      llvm::AllocaInst* result = temporary(word);
      b_.CreateStore(offset, result);
      auto *elsewhere = new_block("elsewhere"), *after = new_block("after");
      b_.CreateCondBr(b_.CreateICmpULE(offset, b_.CreateZExt(total, word)), after, elsewhere);
      b_.SetInsertPoint(elsewhere);
      b_.CreateStore(call_runtime("softgpu_generic_to_cluster", word, {thread_, generic}), result);
      start_block(after);
      value = convert_bits(b_.CreateLoad(word, result), value->getType(), false);
    }
  }
  write(i.operand(0), value, type);
  remember_base(i.operand(0), i.operand(1), nullptr);
}

void FunctionCodegen::isspacep(Decoded& i) {
  std::string_view space = i.take_one(
      {"global", "shared", "shared::cta", "shared::cluster", "local", "const", "param", "param::entry"});
  i.done(2);
  llvm::Value* address = read(i, 1, Type::u64);
  auto inside = [&](llvm::Value* base, llvm::Value* size) {
    return b_.CreateICmpULT(b_.CreateSub(address, base), size);
  };
  auto in_shared = [&] {
    return inside(shared_base(),
                  b_.CreateZExt(block_field(offsetof(BlockContext, total_shared_bytes), b_.getInt32Ty()),
                                b_.getInt64Ty()));
  };
  // Local variables lie on this thread's stack, close to the current frame.
  auto in_local = [&] {
    llvm::Value* top =
        b_.CreateIntrinsic(llvm::Intrinsic::frameaddress, {llvm::PointerType::get(m_.context, 0)}, {i32(0)});
    llvm::Value* frame = b_.CreatePtrToInt(top, b_.getInt64Ty());
    constexpr uint64_t kReach = 16 * 1024;
    return inside(b_.CreateSub(frame, i64(kReach)), i64(2 * kReach));
  };
  auto in_parameters = [&] {
    uint64_t size = 0;
    if (f_.is_kernel) {
      for (const ptx::Variable& parameter : f_.parameters) {
        size = (size + parameter.alignment - 1) & ~uint64_t{parameter.alignment - 1};
        size += parameter.size;
      }
    }
    return inside(block_field(offsetof(BlockContext, params), b_.getInt64Ty()), i64(size));
  };
  auto in_cluster = [&] { return b_.CreateICmpNE(cluster_rank_of(address), i32(UINT32_MAX)); };
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
    result = b_.getFalse();
  else if (space == "global")
    result = b_.CreateNot(b_.CreateOr(in_cluster(), in_local()));
  else
    i.fail("a state space is missing");
  write(i.operand(0), result, Type::pred);
}

void FunctionCodegen::mov(Decoded& i) {
  Type type = i.type();
  i.done(2);
  const Operand& target = i.operand(0);
  const Operand& source = i.operand(1);
  if (target.kind == Operand::Kind::vector || source.kind == Operand::Kind::vector)
    return mov_vector(i, type);
  write(target, read(source, type), type);
  remember_base(target, source, nullptr);
}

// mov.b32 d, {a, b} and mov.b32 {a, b}, d: the first element is the least significant.
void FunctionCodegen::mov_vector(Decoded& i, Type type) {
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
  llvm::Type* whole = m_.int_type(bits);
  auto elements = i.elements(vector);
  if (packs) {
    llvm::Value* value = llvm::ConstantInt::get(whole, 0);
    for (uint32_t n = 0; n < count; ++n)
      value = b_.CreateOr(value,
                          b_.CreateShl(b_.CreateZExt(read(elements[n], element), whole), uint64_t{n} * part));
    write(target, value, type);
    return;
  }
  llvm::Value* value = convert_bits(read(source, type), whole, false);
  for (uint32_t n = 0; n < count; ++n)
    write(elements[n], b_.CreateTrunc(b_.CreateLShr(value, uint64_t{n} * part), m_.int_type(part)), element);
}

// cp.async copies at once, so committing and waiting do nothing.
void FunctionCodegen::cp(Decoded& i) {
  const bool reduces = i.take("reduce");
  if (!i.take("async")) i.fail("expected .async");
  if (i.take("bulk")) return cp_bulk(i, reduces);
  if (reduces) i.fail("expected .bulk");
  if (i.take("mbarrier")) return cp_mbarrier_arrive(i);
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
  llvm::Type* type = m_.int_type(bytes * 8);
  llvm::Value* to = checked_pointer(i, resolve(i, i.operand(0), Space::shared), bytes, true, false);
  Address from = resolve(i, i.operand(1), Space::global);
  if (count_of_operands < 4) {
    llvm::Value* value =
        b_.CreateAlignedLoad(type, checked_pointer(i, from, bytes, false, false), llvm::Align(1));
    b_.CreateAlignedStore(value, to, llvm::Align(1));
    return;
  }
  // A source size below `bytes` fills the rest with zeros; a true ignore-src predicate means size 0.
  const Operand& limit = i.operand(3);
  bool ignore = limit.kind == Operand::Kind::reg && f_.registers[limit.index].type == Type::pred;
  llvm::Value* count =
      ignore ? b_.CreateSelect(read_predicate(limit), i32(0), i32(bytes)) : read(limit, Type::u32);
  auto *copy = new_block("copy"), *after = new_block("after");
  b_.CreateAlignedStore(llvm::ConstantInt::get(type, 0), to, llvm::Align(1));
  b_.CreateCondBr(b_.CreateICmpEQ(count, i32(0)), after, copy);
  b_.SetInsertPoint(copy);
  llvm::Value* value =
      b_.CreateAlignedLoad(type, checked_pointer(i, from, bytes, false, false), llvm::Align(1));
  llvm::Value* missing = b_.CreateMul(b_.CreateSub(i32(bytes), select_min(count, i32(bytes), false)), i32(8));
  llvm::Value* wide = b_.CreateZExt(missing, type);
  value = b_.CreateLShr(b_.CreateShl(value, wide), wide);  // count is at least 1, so the shift is in range
  b_.CreateAlignedStore(value, to, llvm::Align(1));
  start_block(after);
}

}  // namespace gpupool::softgpu
