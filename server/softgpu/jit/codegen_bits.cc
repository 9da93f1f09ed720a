// Bitwise instructions. PTX clamps shift amounts where LLVM makes them undefined, so every amount is clamped
// here.
#include "server/softgpu/jit/instructions.h"

namespace gpupool::softgpu::codegen {

void logic(Emitter& e, Decoded& i) {
  Type type = i.type();
  i.done(3);
  if (ptx::is_float(type)) i.fail("expected a bit type");
  llvm::Value* a = e.read(i, 1, type);
  llvm::Value* b = e.read(i, 2, type);
  std::string_view op = i.opcode();
  e.write(i.operand(0),
          op == "and"  ? e.builder.CreateAnd(a, b)
          : op == "or" ? e.builder.CreateOr(a, b)
                       : e.builder.CreateXor(a, b),
          type);
}

void lnot(Emitter& e, Decoded& i) {
  Type type = i.type();
  i.done(2);
  if (ptx::is_float(type)) i.fail("expected a bit type");
  e.write(i.operand(0), e.builder.CreateNot(e.read(i, 1, type)), type);
}

void cnot(Emitter& e, Decoded& i) {
  Type type = i.type();
  i.done(2);
  if (ptx::is_float(type) || type == Type::pred) i.fail("expected a bit type");
  e.write(i.operand(0),
          e.builder.CreateZExt(e.builder.CreateIsNull(e.read(i, 1, type)), e.module.ir_type(type)), type);
}

void lop3(Emitter& e, Decoded& i) {
  std::string_view with = i.take_one({"or", "and"});
  Type type = i.type();
  const Operand& table = i.operand(4);
  if (type != Type::b32 || table.kind != Operand::Kind::integer) i.fail("expected .b32 and a constant table");
  i.done(with.empty() ? 5 : 6);
  llvm::Value* a = e.read(i, 1, type);
  llvm::Value* b = e.read(i, 2, type);
  llvm::Value* c = e.read(i, 3, type);
  auto choose = [&](llvm::Value* by, llvm::Value* one, llvm::Value* zero) -> llvm::Value* {
    llvm::Value* all = e.i32(~0u);
    llvm::Value* none = e.i32(0);
    if (one == zero) return one;
    if (one == all && zero == none) return by;
    if (one == none && zero == all) return e.builder.CreateNot(by);
    if (zero == none) return e.builder.CreateAnd(by, one);
    if (one == all) return e.builder.CreateOr(by, zero);
    if (one == none) return e.builder.CreateAnd(e.builder.CreateNot(by), zero);
    if (zero == all) return e.builder.CreateOr(e.builder.CreateNot(by), one);
    return e.builder.CreateXor(zero, e.builder.CreateAnd(by, e.builder.CreateXor(one, zero)));
  };
  auto lut = static_cast<uint32_t>(table.value);
  auto bit = [&](uint32_t n) { return e.i32(lut >> n & 1 ? ~0u : 0); };
  auto by_c = [&](uint32_t n) { return choose(c, bit(n | 1), bit(n)); };
  // An exclusive or appears as two halves of the table that complement each other.
  auto by_b = [&](uint32_t n) -> llvm::Value* {
    if ((lut >> n & 3) == (~(lut >> (n | 2)) & 3)) return e.builder.CreateXor(b, by_c(n));
    return choose(b, by_c(n | 2), by_c(n));
  };
  llvm::Value* result =
      (lut & 15) == (~(lut >> 4) & 15) ? e.builder.CreateXor(a, by_b(0)) : choose(a, by_b(4), by_b(0));
  if (with.empty()) return e.write(i.operand(0), result, type);
  auto [target, predicate] = e.split_pair(i, i.operand(0));
  e.write(*target, result, type);
  llvm::Value* any = e.builder.CreateICmpNE(result, e.i32(0));
  llvm::Value* q = e.read_predicate(i.operand(5));
  if (predicate)
    e.write(*predicate, with == "or" ? e.builder.CreateOr(any, q) : e.builder.CreateAnd(any, q), Type::pred);
}

namespace {

llvm::Value* shift_left(Emitter& e, llvm::Value* value, llvm::Value* amount) {
  llvm::Type* type = value->getType();
  uint32_t bits = type->getIntegerBitWidth();
  amount = e.convert_bits(amount, type, false);
  llvm::Value* fits = e.builder.CreateICmpULT(amount, llvm::ConstantInt::get(type, bits));
  llvm::Value* masked = e.builder.CreateAnd(amount, llvm::ConstantInt::get(type, bits - 1));
  return e.builder.CreateSelect(fits, e.builder.CreateShl(value, masked), llvm::ConstantInt::get(type, 0));
}

llvm::Value* shift_right(Emitter& e, llvm::Value* value, llvm::Value* amount, bool arithmetic) {
  llvm::Type* type = value->getType();
  uint32_t bits = type->getIntegerBitWidth();
  amount = e.convert_bits(amount, type, false);
  llvm::Value* last = llvm::ConstantInt::get(type, bits - 1);
  if (arithmetic) return e.builder.CreateAShr(value, e.select_min(amount, last, false));
  llvm::Value* fits = e.builder.CreateICmpULE(amount, last);
  return e.builder.CreateSelect(fits, e.builder.CreateLShr(value, e.builder.CreateAnd(amount, last)),
                                llvm::ConstantInt::get(type, 0));
}

}  // namespace

void shift(Emitter& e, Decoded& i) {
  Type type = i.type();
  i.done(3);
  if (ptx::is_float(type) || type == Type::pred || ptx::bits_of(type) < 16)
    i.fail("expected 16, 32 or 64 bits");
  llvm::Value* value = e.read(i, 1, type);
  llvm::Value* amount = e.read(i, 2, Type::u32);
  if (value->getType()->getIntegerBitWidth() < 32) {  // clamp before the amount is truncated
    amount = e.select_min(amount, e.i32(255), false);
  }
  e.write(i.operand(0),
          i.opcode() == "shl" ? shift_left(e, value, amount)
                              : shift_right(e, value, amount, ptx::is_signed(type)),
          type);
}

void shf(Emitter& e, Decoded& i) {
  std::string_view direction = i.take_one({"l", "r"}), mode = i.take_one({"clamp", "wrap"});
  Type type = i.type();
  i.done(4);
  if (type != Type::b32 || direction.empty() || mode.empty()) i.fail("expected a direction, a mode and .b32");
  llvm::Value* low = e.read(i, 1, type);
  llvm::Value* high = e.read(i, 2, type);
  llvm::Value* amount = e.read(i, 3, Type::u32);
  bool left = direction == "l";
  if (mode == "wrap") {
    e.write(i.operand(0),
            e.intrinsic(left ? llvm::Intrinsic::fshl : llvm::Intrinsic::fshr, {high, low, amount}), type);
    return;
  }
  llvm::Type* word = e.builder.getInt64Ty();
  llvm::Value* both = e.builder.CreateOr(e.builder.CreateShl(e.builder.CreateZExt(high, word), 32),
                                         e.builder.CreateZExt(low, word));
  llvm::Value* by = e.builder.CreateZExt(e.select_min(amount, e.i32(32), false), word);
  llvm::Value* shifted =
      left ? e.builder.CreateLShr(e.builder.CreateShl(both, by), 32) : e.builder.CreateLShr(both, by);
  e.write(i.operand(0), e.builder.CreateTrunc(shifted, e.builder.getInt32Ty()), type);
}

void prmt(Emitter& e, Decoded& i) {
  Type type = i.type();
  std::string_view mode = i.take_one({"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"});
  i.done(4);
  if (type != Type::b32) i.fail("expected .b32");
  llvm::Type* word = e.builder.getInt64Ty();
  llvm::Value* both =
      e.builder.CreateOr(e.builder.CreateZExt(e.read(i, 1, type), word),
                         e.builder.CreateShl(e.builder.CreateZExt(e.read(i, 2, type), word), 32));
  llvm::Value* control = e.read(i, 3, Type::u32);
  llvm::Value* result = e.i32(0);
  for (uint32_t n = 0; n < 4; ++n) {
    llvm::Value* selector;
    llvm::Value* low = e.builder.CreateAnd(control, e.i32(3));
    if (mode.empty())
      selector = e.builder.CreateAnd(e.builder.CreateLShr(control, 4 * n), e.i32(15));
    else if (mode == "f4e")
      selector = e.builder.CreateAdd(low, e.i32(n));
    else if (mode == "b4e")
      selector = e.builder.CreateAnd(e.builder.CreateSub(low, e.i32(n)), e.i32(7));
    else if (mode == "rc8")
      selector = low;
    else if (mode == "ecl")
      selector = e.intrinsic(llvm::Intrinsic::umax, {low, e.i32(n)});
    else if (mode == "ecr")
      selector = e.intrinsic(llvm::Intrinsic::umin, {low, e.i32(n)});
    else
      selector =
          e.builder.CreateAdd(e.builder.CreateShl(e.builder.CreateAnd(control, e.i32(1)), 1), e.i32(n & 1));
    llvm::Value* shift =
        e.builder.CreateZExt(e.builder.CreateShl(e.builder.CreateAnd(selector, e.i32(7)), 3), word);
    llvm::Value* byte = e.builder.CreateAnd(
        e.builder.CreateTrunc(e.builder.CreateLShr(both, shift), e.builder.getInt32Ty()), e.i32(255));
    if (mode.empty()) {  // bit 3 replicates the sign
      llvm::Value* sign =
          e.builder.CreateSelect(e.builder.CreateICmpUGE(byte, e.i32(128)), e.i32(255), e.i32(0));
      byte = e.builder.CreateSelect(e.builder.CreateICmpNE(e.builder.CreateAnd(selector, e.i32(8)), e.i32(0)),
                                    sign, byte);
    }
    result = e.builder.CreateOr(result, e.builder.CreateShl(byte, 8 * n));
  }
  e.write(i.operand(0), result, type);
}

void bfe(Emitter& e, Decoded& i) {
  Type type = i.type();
  i.done(4);
  uint32_t bits = ptx::bits_of(type);
  if (!ptx::is_integer(type) || bits < 32) i.fail("expected 32 or 64 bits");
  llvm::Type* ir = e.module.ir_type(type);
  auto field = [&](size_t n) {
    return e.convert_bits(e.builder.CreateAnd(e.read(i, n, Type::u32), e.i32(255)), ir, false);
  };
  llvm::Value* value = e.read(i, 1, type);
  llvm::Value* position = field(2);
  llvm::Value* length = field(3);
  bool is_signed = ptx::is_signed(type);
  llvm::Value* shifted = shift_right(e, value, position, is_signed);
  // Truncates to `length` bits by shifting them to the top and back.
  llvm::Value* kept = e.select_min(length, llvm::ConstantInt::get(ir, bits), false);
  llvm::Value* lost = e.builder.CreateAnd(e.builder.CreateSub(llvm::ConstantInt::get(ir, bits), kept),
                                          llvm::ConstantInt::get(ir, bits - 1));
  llvm::Value* top = e.builder.CreateShl(shifted, lost);
  llvm::Value* cut = is_signed ? e.builder.CreateAShr(top, lost) : e.builder.CreateLShr(top, lost);
  e.write(i.operand(0),
          e.builder.CreateSelect(e.builder.CreateIsNull(length), llvm::ConstantInt::get(ir, 0), cut), type);
}

void bfi(Emitter& e, Decoded& i) {
  Type type = i.type();
  i.done(5);
  uint32_t bits = ptx::bits_of(type);
  if (!ptx::is_untyped(type) || (bits != 32 && bits != 64)) i.fail("expected .b32 or .b64");
  llvm::Type* ir = e.module.ir_type(type);
  auto field = [&](size_t n) {
    return e.convert_bits(e.builder.CreateAnd(e.read(i, n, Type::u32), e.i32(255)), ir, false);
  };
  llvm::Value* position = field(3);
  llvm::Value* length = field(4);
  llvm::Value* one = llvm::ConstantInt::get(ir, 1);
  llvm::Value* ones = e.builder.CreateSub(shift_left(e, one, length), one);  // length >= bits: 0 - 1
  llvm::Value* mask = shift_left(e, ones, position);
  llvm::Value* inserted = e.builder.CreateAnd(shift_left(e, e.read(i, 1, type), position), mask);
  e.write(i.operand(0),
          e.builder.CreateOr(e.builder.CreateAnd(e.read(i, 2, type), e.builder.CreateNot(mask)), inserted),
          type);
}

void bmsk(Emitter& e, Decoded& i) {
  std::string_view mode = i.take_one({"clamp", "wrap"});
  Type type = i.type();
  i.done(3);
  if (type != Type::b32 || mode.empty()) i.fail("expected a mode and .b32");
  llvm::Value* from = e.read(i, 1, Type::u32);
  llvm::Value* width = e.read(i, 2, Type::u32);
  if (mode == "wrap") {
    from = e.builder.CreateAnd(from, e.i32(31));
    width = e.builder.CreateAnd(width, e.i32(31));
  }
  llvm::Value* ones = e.builder.CreateSub(shift_left(e, e.i32(1), width), e.i32(1));
  e.write(i.operand(0), shift_left(e, ones, from), type);
}

void szext(Emitter& e, Decoded& i) {
  std::string_view mode = i.take_one({"clamp", "wrap"});
  Type type = i.type();
  i.done(3);
  if ((type != Type::u32 && type != Type::s32) || mode.empty()) i.fail("expected a mode and a 32-bit type");
  llvm::Value* value = e.read(i, 1, type);
  llvm::Value* width = e.read(i, 2, Type::u32);
  if (mode == "wrap") width = e.builder.CreateAnd(width, e.i32(31));
  llvm::Value* lost =
      e.builder.CreateAnd(e.builder.CreateSub(e.i32(32), e.select_min(width, e.i32(32), false)), e.i32(31));
  llvm::Value* top = e.builder.CreateShl(value, lost);
  llvm::Value* cut = type == Type::s32 ? e.builder.CreateAShr(top, lost) : e.builder.CreateLShr(top, lost);
  e.write(i.operand(0), e.builder.CreateSelect(e.builder.CreateIsNull(width), e.i32(0), cut), type);
}

void bit_count(Emitter& e, Decoded& i) {
  Type type = i.type();
  i.done(2);
  uint32_t bits = ptx::bits_of(type);
  if (!ptx::is_untyped(type) || (bits != 32 && bits != 64)) i.fail("expected .b32 or .b64");
  llvm::Value* value = e.read(i, 1, type);
  if (i.opcode() == "brev")
    return e.write(i.operand(0), e.intrinsic(llvm::Intrinsic::bitreverse, {value}), type);
  llvm::Value* count = i.opcode() == "popc" ? e.intrinsic(llvm::Intrinsic::ctpop, {value})
                                            : e.builder.CreateBinaryIntrinsic(llvm::Intrinsic::ctlz, value,
                                                                              e.builder.getFalse());
  e.write(i.operand(0), e.convert_bits(count, e.builder.getInt32Ty(), false), Type::u32);
}

void bfind(Emitter& e, Decoded& i) {
  bool shift_amount = i.take("shiftamt");
  Type type = i.type();
  i.done(2);
  uint32_t bits = ptx::bits_of(type);
  if (!ptx::is_integer(type) || bits < 32) i.fail("expected 32 or 64 bits");
  llvm::Value* value = e.read(i, 1, type);
  if (ptx::is_signed(type)) {
    llvm::Value* negative = e.builder.CreateICmpSLT(value, llvm::ConstantInt::get(value->getType(), 0));
    value = e.builder.CreateSelect(negative, e.builder.CreateNot(value), value);
  }
  llvm::Value* zeros =
      e.convert_bits(e.builder.CreateBinaryIntrinsic(llvm::Intrinsic::ctlz, value, e.builder.getFalse()),
                     e.builder.getInt32Ty(), false);
  llvm::Value* found = shift_amount ? zeros : e.builder.CreateSub(e.i32(bits - 1), zeros);
  e.write(i.operand(0), e.builder.CreateSelect(e.builder.CreateIsNull(value), e.i32(~0u), found), Type::u32);
}

void fns(Emitter& e, Decoded& i) {
  Type type = i.type();
  i.done(4);
  if (type != Type::b32) i.fail("expected .b32");
  e.write(i.operand(0),
          e.call_pure("softgpu_fns", e.builder.getInt32Ty(),
                      {e.read(i, 1, type), e.read(i, 2, Type::u32), e.read(i, 3, Type::s32)}),
          type);
}

}  // namespace gpupool::softgpu::codegen
