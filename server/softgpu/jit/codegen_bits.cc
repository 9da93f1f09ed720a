// Bitwise instructions. PTX clamps shift amounts where LLVM makes them undefined, so every amount is clamped
// here.
#include "server/softgpu/jit/codegen.h"

namespace gpupool::softgpu {

void FunctionCodegen::logic(Decoded& i) {
  Type type = i.type();
  i.done(3);
  if (ptx::is_float(type)) i.fail("expected a bit type");
  llvm::Value* a = read(i, 1, type);
  llvm::Value* b = read(i, 2, type);
  std::string_view op = i.opcode();
  write(i.operand(0),
        op == "and"  ? b_.CreateAnd(a, b)
        : op == "or" ? b_.CreateOr(a, b)
                     : b_.CreateXor(a, b),
        type);
}

void FunctionCodegen::lnot(Decoded& i) {
  Type type = i.type();
  i.done(2);
  if (ptx::is_float(type)) i.fail("expected a bit type");
  write(i.operand(0), b_.CreateNot(read(i, 1, type)), type);
}

void FunctionCodegen::cnot(Decoded& i) {
  Type type = i.type();
  i.done(2);
  if (ptx::is_float(type) || type == Type::pred) i.fail("expected a bit type");
  write(i.operand(0), b_.CreateZExt(b_.CreateIsNull(read(i, 1, type)), m_.ir_type(type)), type);
}

void FunctionCodegen::lop3(Decoded& i) {
  std::string_view with = i.take_one({"or", "and"});
  Type type = i.type();
  const Operand& table = i.operand(4);
  if (type != Type::b32 || table.kind != Operand::Kind::integer) i.fail("expected .b32 and a constant table");
  i.done(with.empty() ? 5 : 6);
  llvm::Value* a = read(i, 1, type);
  llvm::Value* b = read(i, 2, type);
  llvm::Value* c = read(i, 3, type);
  auto choose = [&](llvm::Value* by, llvm::Value* one, llvm::Value* zero) -> llvm::Value* {
    llvm::Value* all = i32(~0u);
    llvm::Value* none = i32(0);
    if (one == zero) return one;
    if (one == all && zero == none) return by;
    if (one == none && zero == all) return b_.CreateNot(by);
    if (zero == none) return b_.CreateAnd(by, one);
    if (one == all) return b_.CreateOr(by, zero);
    if (one == none) return b_.CreateAnd(b_.CreateNot(by), zero);
    if (zero == all) return b_.CreateOr(b_.CreateNot(by), one);
    return b_.CreateXor(zero, b_.CreateAnd(by, b_.CreateXor(one, zero)));
  };
  auto lut = static_cast<uint32_t>(table.value);
  auto bit = [&](uint32_t n) { return i32(lut >> n & 1 ? ~0u : 0); };
  auto by_c = [&](uint32_t n) { return choose(c, bit(n | 1), bit(n)); };
  // An exclusive or appears as two halves of the table that complement each other.
  auto by_b = [&](uint32_t n) -> llvm::Value* {
    if ((lut >> n & 3) == (~(lut >> (n | 2)) & 3)) return b_.CreateXor(b, by_c(n));
    return choose(b, by_c(n | 2), by_c(n));
  };
  llvm::Value* result =
      (lut & 15) == (~(lut >> 4) & 15) ? b_.CreateXor(a, by_b(0)) : choose(a, by_b(4), by_b(0));
  if (with.empty()) return write(i.operand(0), result, type);
  auto [target, predicate] = split_pair(i, i.operand(0));
  write(*target, result, type);
  llvm::Value* any = b_.CreateICmpNE(result, i32(0));
  llvm::Value* q = read_predicate(i.operand(5));
  if (predicate) write(*predicate, with == "or" ? b_.CreateOr(any, q) : b_.CreateAnd(any, q), Type::pred);
}

llvm::Value* FunctionCodegen::shift_left(llvm::Value* value, llvm::Value* amount) {
  llvm::Type* type = value->getType();
  uint32_t bits = type->getIntegerBitWidth();
  amount = convert_bits(amount, type, false);
  llvm::Value* fits = b_.CreateICmpULT(amount, llvm::ConstantInt::get(type, bits));
  llvm::Value* masked = b_.CreateAnd(amount, llvm::ConstantInt::get(type, bits - 1));
  return b_.CreateSelect(fits, b_.CreateShl(value, masked), llvm::ConstantInt::get(type, 0));
}

llvm::Value* FunctionCodegen::shift_right(llvm::Value* value, llvm::Value* amount, bool arithmetic) {
  llvm::Type* type = value->getType();
  uint32_t bits = type->getIntegerBitWidth();
  amount = convert_bits(amount, type, false);
  llvm::Value* last = llvm::ConstantInt::get(type, bits - 1);
  if (arithmetic) return b_.CreateAShr(value, select_min(amount, last, false));
  llvm::Value* fits = b_.CreateICmpULE(amount, last);
  return b_.CreateSelect(fits, b_.CreateLShr(value, b_.CreateAnd(amount, last)),
                         llvm::ConstantInt::get(type, 0));
}

void FunctionCodegen::shift(Decoded& i) {
  Type type = i.type();
  i.done(3);
  if (ptx::is_float(type) || type == Type::pred || ptx::bits_of(type) < 16)
    i.fail("expected 16, 32 or 64 bits");
  llvm::Value* value = read(i, 1, type);
  llvm::Value* amount = read(i, 2, Type::u32);
  if (value->getType()->getIntegerBitWidth() < 32) {  // clamp before the amount is truncated
    amount = select_min(amount, i32(255), false);
  }
  write(i.operand(0),
        i.opcode() == "shl" ? shift_left(value, amount) : shift_right(value, amount, ptx::is_signed(type)),
        type);
}

void FunctionCodegen::shf(Decoded& i) {
  std::string_view direction = i.take_one({"l", "r"}), mode = i.take_one({"clamp", "wrap"});
  Type type = i.type();
  i.done(4);
  if (type != Type::b32 || direction.empty() || mode.empty()) i.fail("expected a direction, a mode and .b32");
  llvm::Value* low = read(i, 1, type);
  llvm::Value* high = read(i, 2, type);
  llvm::Value* amount = read(i, 3, Type::u32);
  bool left = direction == "l";
  if (mode == "wrap") {
    write(i.operand(0), intrinsic(left ? llvm::Intrinsic::fshl : llvm::Intrinsic::fshr, {high, low, amount}),
          type);
    return;
  }
  llvm::Type* word = b_.getInt64Ty();
  llvm::Value* both = b_.CreateOr(b_.CreateShl(b_.CreateZExt(high, word), 32), b_.CreateZExt(low, word));
  llvm::Value* by = b_.CreateZExt(select_min(amount, i32(32), false), word);
  llvm::Value* shifted = left ? b_.CreateLShr(b_.CreateShl(both, by), 32) : b_.CreateLShr(both, by);
  write(i.operand(0), b_.CreateTrunc(shifted, b_.getInt32Ty()), type);
}

void FunctionCodegen::prmt(Decoded& i) {
  Type type = i.type();
  std::string_view mode = i.take_one({"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"});
  i.done(4);
  if (type != Type::b32) i.fail("expected .b32");
  llvm::Type* word = b_.getInt64Ty();
  llvm::Value* both = b_.CreateOr(b_.CreateZExt(read(i, 1, type), word),
                                  b_.CreateShl(b_.CreateZExt(read(i, 2, type), word), 32));
  llvm::Value* control = read(i, 3, Type::u32);
  llvm::Value* result = i32(0);
  for (uint32_t n = 0; n < 4; ++n) {
    llvm::Value* selector;
    llvm::Value* low = b_.CreateAnd(control, i32(3));
    if (mode.empty())
      selector = b_.CreateAnd(b_.CreateLShr(control, 4 * n), i32(15));
    else if (mode == "f4e")
      selector = b_.CreateAdd(low, i32(n));
    else if (mode == "b4e")
      selector = b_.CreateAnd(b_.CreateSub(low, i32(n)), i32(7));
    else if (mode == "rc8")
      selector = low;
    else if (mode == "ecl")
      selector = intrinsic(llvm::Intrinsic::umax, {low, i32(n)});
    else if (mode == "ecr")
      selector = intrinsic(llvm::Intrinsic::umin, {low, i32(n)});
    else
      selector = b_.CreateAdd(b_.CreateShl(b_.CreateAnd(control, i32(1)), 1), i32(n & 1));
    llvm::Value* shift = b_.CreateZExt(b_.CreateShl(b_.CreateAnd(selector, i32(7)), 3), word);
    llvm::Value* byte = b_.CreateAnd(b_.CreateTrunc(b_.CreateLShr(both, shift), b_.getInt32Ty()), i32(255));
    if (mode.empty()) {  // bit 3 replicates the sign
      llvm::Value* sign = b_.CreateSelect(b_.CreateICmpUGE(byte, i32(128)), i32(255), i32(0));
      byte = b_.CreateSelect(b_.CreateICmpNE(b_.CreateAnd(selector, i32(8)), i32(0)), sign, byte);
    }
    result = b_.CreateOr(result, b_.CreateShl(byte, 8 * n));
  }
  write(i.operand(0), result, type);
}

void FunctionCodegen::bfe(Decoded& i) {
  Type type = i.type();
  i.done(4);
  uint32_t bits = ptx::bits_of(type);
  if (!ptx::is_integer(type) || bits < 32) i.fail("expected 32 or 64 bits");
  llvm::Type* ir = m_.ir_type(type);
  auto field = [&](size_t n) {
    return convert_bits(b_.CreateAnd(read(i, n, Type::u32), i32(255)), ir, false);
  };
  llvm::Value* value = read(i, 1, type);
  llvm::Value* position = field(2);
  llvm::Value* length = field(3);
  bool is_signed = ptx::is_signed(type);
  llvm::Value* shifted = shift_right(value, position, is_signed);
  // Truncates to `length` bits by shifting them to the top and back.
  llvm::Value* kept = select_min(length, llvm::ConstantInt::get(ir, bits), false);
  llvm::Value* lost = b_.CreateAnd(b_.CreateSub(llvm::ConstantInt::get(ir, bits), kept),
                                   llvm::ConstantInt::get(ir, bits - 1));
  llvm::Value* top = b_.CreateShl(shifted, lost);
  llvm::Value* cut = is_signed ? b_.CreateAShr(top, lost) : b_.CreateLShr(top, lost);
  write(i.operand(0), b_.CreateSelect(b_.CreateIsNull(length), llvm::ConstantInt::get(ir, 0), cut), type);
}

void FunctionCodegen::bfi(Decoded& i) {
  Type type = i.type();
  i.done(5);
  uint32_t bits = ptx::bits_of(type);
  if (!ptx::is_untyped(type) || (bits != 32 && bits != 64)) i.fail("expected .b32 or .b64");
  llvm::Type* ir = m_.ir_type(type);
  auto field = [&](size_t n) {
    return convert_bits(b_.CreateAnd(read(i, n, Type::u32), i32(255)), ir, false);
  };
  llvm::Value* position = field(3);
  llvm::Value* length = field(4);
  llvm::Value* one = llvm::ConstantInt::get(ir, 1);
  llvm::Value* ones = b_.CreateSub(shift_left(one, length), one);  // length >= bits: 0 - 1
  llvm::Value* mask = shift_left(ones, position);
  llvm::Value* inserted = b_.CreateAnd(shift_left(read(i, 1, type), position), mask);
  write(i.operand(0), b_.CreateOr(b_.CreateAnd(read(i, 2, type), b_.CreateNot(mask)), inserted), type);
}

void FunctionCodegen::bmsk(Decoded& i) {
  std::string_view mode = i.take_one({"clamp", "wrap"});
  Type type = i.type();
  i.done(3);
  if (type != Type::b32 || mode.empty()) i.fail("expected a mode and .b32");
  llvm::Value* from = read(i, 1, Type::u32);
  llvm::Value* width = read(i, 2, Type::u32);
  if (mode == "wrap") {
    from = b_.CreateAnd(from, i32(31));
    width = b_.CreateAnd(width, i32(31));
  }
  llvm::Value* ones = b_.CreateSub(shift_left(i32(1), width), i32(1));
  write(i.operand(0), shift_left(ones, from), type);
}

void FunctionCodegen::szext(Decoded& i) {
  std::string_view mode = i.take_one({"clamp", "wrap"});
  Type type = i.type();
  i.done(3);
  if ((type != Type::u32 && type != Type::s32) || mode.empty()) i.fail("expected a mode and a 32-bit type");
  llvm::Value* value = read(i, 1, type);
  llvm::Value* width = read(i, 2, Type::u32);
  if (mode == "wrap") width = b_.CreateAnd(width, i32(31));
  llvm::Value* lost = b_.CreateAnd(b_.CreateSub(i32(32), select_min(width, i32(32), false)), i32(31));
  llvm::Value* top = b_.CreateShl(value, lost);
  llvm::Value* cut = type == Type::s32 ? b_.CreateAShr(top, lost) : b_.CreateLShr(top, lost);
  write(i.operand(0), b_.CreateSelect(b_.CreateIsNull(width), i32(0), cut), type);
}

void FunctionCodegen::bit_count(Decoded& i) {
  Type type = i.type();
  i.done(2);
  uint32_t bits = ptx::bits_of(type);
  if (!ptx::is_untyped(type) || (bits != 32 && bits != 64)) i.fail("expected .b32 or .b64");
  llvm::Value* value = read(i, 1, type);
  if (i.opcode() == "brev") return write(i.operand(0), intrinsic(llvm::Intrinsic::bitreverse, {value}), type);
  llvm::Value* count = i.opcode() == "popc"
                           ? intrinsic(llvm::Intrinsic::ctpop, {value})
                           : b_.CreateBinaryIntrinsic(llvm::Intrinsic::ctlz, value, b_.getFalse());
  write(i.operand(0), convert_bits(count, b_.getInt32Ty(), false), Type::u32);
}

void FunctionCodegen::bfind(Decoded& i) {
  bool shift_amount = i.take("shiftamt");
  Type type = i.type();
  i.done(2);
  uint32_t bits = ptx::bits_of(type);
  if (!ptx::is_integer(type) || bits < 32) i.fail("expected 32 or 64 bits");
  llvm::Value* value = read(i, 1, type);
  if (ptx::is_signed(type)) {
    llvm::Value* negative = b_.CreateICmpSLT(value, llvm::ConstantInt::get(value->getType(), 0));
    value = b_.CreateSelect(negative, b_.CreateNot(value), value);
  }
  llvm::Value* zeros = convert_bits(b_.CreateBinaryIntrinsic(llvm::Intrinsic::ctlz, value, b_.getFalse()),
                                    b_.getInt32Ty(), false);
  llvm::Value* found = shift_amount ? zeros : b_.CreateSub(i32(bits - 1), zeros);
  write(i.operand(0), b_.CreateSelect(b_.CreateIsNull(value), i32(~0u), found), Type::u32);
}

void FunctionCodegen::fns(Decoded& i) {
  Type type = i.type();
  i.done(4);
  if (type != Type::b32) i.fail("expected .b32");
  write(i.operand(0),
        call_pure("softgpu_fns", b_.getInt32Ty(),
                  {read(i, 1, type), read(i, 2, Type::u32), read(i, 3, Type::s32)}),
        type);
}

}  // namespace gpupool::softgpu
