// Integer arithmetic. Where PTX leaves a result undefined (division by zero), the result is that of NVIDIA
// GPUs.
#include "server/softgpu/jit/codegen_float.h"
#include "server/softgpu/jit/codegen_memory.h"
#include "server/softgpu/jit/instructions.h"

namespace gpupool::softgpu::codegen {
namespace {

void add_pairs(Emitter& e, Decoded& i);
llvm::Value* add_carry(Emitter& e, llvm::Value* a, llvm::Value* b, llvm::Value* in, bool out);
// `value` null: only creates the flag.
void carry_out(Emitter& e, llvm::Value* value);

void expect_integer(Decoded& i, Type type, uint32_t least_bits = 16) {
  if (!ptx::is_integer(type) && !ptx::is_untyped(type)) i.fail("expected an integer type");
  if (ptx::bits_of(type) < least_bits || ptx::bits_of(type) > 64)
    i.fail("integers of this width are not supported here");
}

}  // namespace

void add(Emitter& e, Decoded& i) {
  bool cc = i.take("cc");
  FloatMode mode = take_float_mode(e, i);
  if (i.take_any({"u16x2", "s16x2"})) return add_pairs(e, i);
  if (i.take("f32x2")) return float_binary(e, i, Type::b64, mode);
  Type type = i.type();
  if (ptx::is_float(type)) return float_binary(e, i, type, mode);
  i.done(3);
  expect_integer(i, type);
  llvm::Value* a = e.read(i, 1, type);
  llvm::Value* b = e.read(i, 2, type);
  llvm::Value* result;
  if (cc)
    result = add_carry(e, a, b, nullptr, true);
  else if (mode.saturate)
    result = e.intrinsic(llvm::Intrinsic::sadd_sat, {a, b});
  else
    result = e.builder.CreateAdd(a, b);
  e.write(i.operand(0), result, type);
  // The sum of a variable's address and another value still points into the variable.
  auto based = [&](const Operand& o) {
    return (o.kind == Operand::Kind::reg && e.facts.based_on[o.index] != kNoVariable) ||
           o.kind == Operand::Kind::variable;
  };
  bool first = based(i.operand(1));
  remember_base(e, i.operand(0), i.operand(first ? 1 : 2), first ? b : a);
}

namespace {

void add_pairs(Emitter& e, Decoded& i) {
  i.done(3);
  auto* vector = llvm::FixedVectorType::get(e.builder.getInt16Ty(), 2);
  llvm::Value* a = e.builder.CreateBitCast(e.read(i, 1, Type::b32), vector);
  llvm::Value* b = e.builder.CreateBitCast(e.read(i, 2, Type::b32), vector);
  e.write(i.operand(0), e.builder.CreateBitCast(e.builder.CreateAdd(a, b), e.builder.getInt32Ty()),
          Type::b32);
}

}  // namespace

void sub(Emitter& e, Decoded& i) {
  bool cc = i.take("cc");
  FloatMode mode = take_float_mode(e, i);
  if (i.take("f32x2")) return float_binary(e, i, Type::b64, mode);
  Type type = i.type();
  if (ptx::is_float(type)) return float_binary(e, i, type, mode);
  i.done(3);
  expect_integer(i, type);
  llvm::Value* a = e.read(i, 1, type);
  llvm::Value* b = e.read(i, 2, type);
  if (mode.saturate) return e.write(i.operand(0), e.intrinsic(llvm::Intrinsic::ssub_sat, {a, b}), type);
  if (cc) carry_out(e, e.builder.CreateICmpUGE(a, b));
  e.write(i.operand(0), e.builder.CreateSub(a, b), type);
}

namespace {

llvm::Value* carry_in(Emitter& e) {
  carry_out(e, nullptr);
  return e.builder.CreateLoad(e.builder.getInt1Ty(), e.carry);
}

void carry_out(Emitter& e, llvm::Value* value) {
  if (!e.carry) {
    e.carry = e.entry_builder.CreateAlloca(e.builder.getInt1Ty());
    e.entry_builder.CreateStore(e.builder.getFalse(), e.carry);
  }
  if (value) e.builder.CreateStore(value, e.carry);
}

// Returns a + b + in; `in` may be null.
llvm::Value* add_carry(Emitter& e, llvm::Value* a, llvm::Value* b, llvm::Value* in, bool out) {
  llvm::Value* first = e.intrinsic(llvm::Intrinsic::uadd_with_overflow, {a, b});
  llvm::Value* sum = e.builder.CreateExtractValue(first, 0);
  llvm::Value* carry = e.builder.CreateExtractValue(first, 1);
  if (in) {
    llvm::Value* second =
        e.intrinsic(llvm::Intrinsic::uadd_with_overflow, {sum, e.builder.CreateZExt(in, a->getType())});
    sum = e.builder.CreateExtractValue(second, 0);
    carry = e.builder.CreateOr(carry, e.builder.CreateExtractValue(second, 1));
  }
  if (out) carry_out(e, carry);
  return sum;
}

}  // namespace

void add_with_carry(Emitter& e, Decoded& i) {
  bool cc = i.take("cc");
  Type type = i.type();
  i.done(3);
  expect_integer(i, type, 32);
  llvm::Value* a = e.read(i, 1, type);
  llvm::Value* b = e.read(i, 2, type);
  llvm::Value* in = carry_in(e);
  // After a subtraction the flag means "no borrow", as on the hardware: nvcc's 128-bit division reads it with
  // addc.
  if (i.opcode() == "addc") return e.write(i.operand(0), add_carry(e, a, b, in, cc), type);
  llvm::Value* first = e.intrinsic(llvm::Intrinsic::usub_with_overflow, {a, b});
  llvm::Value* second = e.intrinsic(
      llvm::Intrinsic::usub_with_overflow,
      {e.builder.CreateExtractValue(first, 0), e.builder.CreateZExt(e.builder.CreateNot(in), a->getType())});
  if (cc)
    carry_out(e, e.builder.CreateNot(e.builder.CreateOr(e.builder.CreateExtractValue(first, 1),
                                                        e.builder.CreateExtractValue(second, 1))));
  e.write(i.operand(0), e.builder.CreateExtractValue(second, 0), type);
}

namespace {

// Returns part of a * b: lo, hi, or wide (twice as wide).
llvm::Value* multiply(Emitter& e, Decoded& i, Type type, std::string_view part, llvm::Value* a,
                      llvm::Value* b) {
  if (part == "lo") return e.builder.CreateMul(a, b);
  uint32_t bits = ptx::bits_of(type);
  llvm::Type* wide = e.module.int_type(bits * 2);
  auto extend = [&](llvm::Value* v) {
    return ptx::is_signed(type) ? e.builder.CreateSExt(v, wide) : e.builder.CreateZExt(v, wide);
  };
  llvm::Value* product = e.builder.CreateMul(extend(a), extend(b));
  if (part == "wide") {
    if (bits > 64) i.fail("the product is too wide");
    return product;
  }
  return e.builder.CreateTrunc(e.builder.CreateLShr(product, bits), a->getType());
}

Type doubled(Decoded& i, Type type) {
  switch (type) {
    case Type::u16: return Type::u32;
    case Type::s16: return Type::s32;
    case Type::u32: return Type::u64;
    case Type::s32: return Type::s64;
    default: i.fail(".wide takes 16 and 32 bits");
  }
}

}  // namespace

void mul(Emitter& e, Decoded& i) {
  std::string_view part = i.take_one({"lo", "hi", "wide"});
  FloatMode mode = take_float_mode(e, i);
  if (i.take("f32x2")) return float_binary(e, i, Type::b64, mode);
  Type type = i.type();
  if (ptx::is_float(type)) return float_binary(e, i, type, mode);
  i.done(3);
  expect_integer(i, type);
  if (part.empty()) i.fail("one of .lo, .hi and .wide is missing");
  Type result = part == "wide" ? doubled(i, type) : type;
  e.write(i.operand(0), multiply(e, i, type, part, e.read(i, 1, type), e.read(i, 2, type)), result);
}

// mad and madc: a * b + c, with carries if requested.
void mad(Emitter& e, Decoded& i) {
  std::string_view part = i.take_one({"lo", "hi", "wide"});
  bool cc = i.take("cc"), with_carry = i.opcode() == "madc";
  FloatMode mode = take_float_mode(e, i);
  Type type = i.type();
  if (ptx::is_float(type)) {
    if (with_carry || cc || !part.empty()) i.fail("floating-point numbers have no carry");
    return float_fma(e, i, type, mode);
  }
  i.done(4);
  expect_integer(i, type);
  if (part.empty()) i.fail("one of .lo, .hi and .wide is missing");
  Type result = part == "wide" ? doubled(i, type) : type;
  llvm::Value* product = multiply(e, i, type, part, e.read(i, 1, type), e.read(i, 2, type));
  llvm::Value* c = e.read(i, 3, result);
  llvm::Value* sum;
  if (mode.saturate)
    sum = e.intrinsic(llvm::Intrinsic::sadd_sat, {product, c});
  else if (with_carry || cc)
    sum = add_carry(e, product, c, with_carry ? carry_in(e) : nullptr, cc);
  else
    sum = e.builder.CreateAdd(product, c);
  e.write(i.operand(0), sum, result);
}

// mul24 and mad24 multiply the low 24 bits of each factor.
void mul24(Emitter& e, Decoded& i) {
  std::string_view part = i.take_one({"lo", "hi"});
  bool saturate = i.take("sat"), adds = i.opcode() == "mad24";
  Type type = i.type();
  i.done(adds ? 4 : 3);
  if (part.empty() || (type != Type::s32 && type != Type::u32))
    i.fail("expected .lo or .hi and a 32-bit type");
  auto factor = [&](size_t n) {
    llvm::Value* high = e.builder.CreateShl(e.read(i, n, type), 8);
    llvm::Value* value = ptx::is_signed(type) ? e.builder.CreateAShr(high, 8) : e.builder.CreateLShr(high, 8);
    return ptx::is_signed(type) ? e.builder.CreateSExt(value, e.builder.getInt64Ty())
                                : e.builder.CreateZExt(value, e.builder.getInt64Ty());
  };
  llvm::Value* product = e.builder.CreateMul(factor(1), factor(2));
  llvm::Value* result = e.builder.CreateTrunc(part == "lo" ? product : e.builder.CreateLShr(product, 16),
                                              e.builder.getInt32Ty());
  if (adds) {
    llvm::Value* c = e.read(i, 3, type);
    result = saturate ? e.intrinsic(llvm::Intrinsic::sadd_sat, {result, c}) : e.builder.CreateAdd(result, c);
  }
  e.write(i.operand(0), result, type);
}

void sad(Emitter& e, Decoded& i) {
  Type type = i.type();
  i.done(4);
  expect_integer(i, type);
  llvm::Value* a = e.read(i, 1, type);
  llvm::Value* b = e.read(i, 2, type);
  llvm::Value* less = ptx::is_signed(type) ? e.builder.CreateICmpSLT(a, b) : e.builder.CreateICmpULT(a, b);
  llvm::Value* distance = e.builder.CreateSelect(less, e.builder.CreateSub(b, a), e.builder.CreateSub(a, b));
  e.write(i.operand(0), e.builder.CreateAdd(e.read(i, 3, type), distance), type);
}

namespace {

llvm::Value* divide(Emitter& e, Type type, llvm::Value* a, llvm::Value* b, bool remainder) {
  llvm::Type* ir = a->getType();
  llvm::Value* one = llvm::ConstantInt::get(ir, 1);
  llvm::Value* all_ones = llvm::ConstantInt::getAllOnesValue(ir);
  llvm::Value* zero = e.builder.CreateIsNull(b);
  llvm::Value* unsafe = zero;
  if (ptx::is_signed(type)) {
    llvm::Value* least = llvm::ConstantInt::get(ir, llvm::APInt::getSignedMinValue(ptx::bits_of(type)));
    unsafe = e.builder.CreateOr(
        zero, e.builder.CreateAnd(e.builder.CreateICmpEQ(a, least), e.builder.CreateICmpEQ(b, all_ones)));
  }
  // Dividing by one gives the value that the overflowing quotient wraps to.
  llvm::Value* divisor = e.builder.CreateSelect(unsafe, one, b);
  llvm::Value* result;
  if (ptx::is_signed(type))
    result = remainder ? e.builder.CreateSRem(a, divisor) : e.builder.CreateSDiv(a, divisor);
  else
    result = remainder ? e.builder.CreateURem(a, divisor) : e.builder.CreateUDiv(a, divisor);
  return e.builder.CreateSelect(zero, all_ones, result);
}

}  // namespace

void div(Emitter& e, Decoded& i) {
  bool is_full = i.take_any({"approx", "full"});
  FloatMode mode = take_float_mode(e, i);
  Type type = i.type();
  if (ptx::is_float(type)) return float_div(e, i, type, mode, is_full);
  i.done(3);
  expect_integer(i, type);
  e.write(i.operand(0), divide(e, type, e.read(i, 1, type), e.read(i, 2, type), false), type);
}

void rem(Emitter& e, Decoded& i) {
  Type type = i.type();
  i.done(3);
  expect_integer(i, type);
  e.write(i.operand(0), divide(e, type, e.read(i, 1, type), e.read(i, 2, type), true), type);
}

void abs(Emitter& e, Decoded& i) {
  float_abs_neg(e, i);
}
void neg(Emitter& e, Decoded& i) {
  float_abs_neg(e, i);
}

void min_max(Emitter& e, Decoded& i) {
  FloatMode mode = take_float_mode(e, i);
  bool nan = i.take("NaN"), magnitude = i.take("abs");
  // u16x2 and s16x2 are not ptx::Types.
  bool pair_unsigned = i.take("u16x2"), pair = pair_unsigned || i.take("s16x2");
  Type type = pair ? Type::b32 : i.type();
  bool maximum = i.opcode() == "max";
  if (ptx::is_float(type)) return float_min_max(e, i, type, mode, nan, magnitude);
  i.done(3);
  if (nan || magnitude) i.fail("integers have no NaN");
  auto pick = [&](llvm::Value* a, llvm::Value* b, bool is_signed) {
    llvm::Intrinsic::ID id = is_signed ? (maximum ? llvm::Intrinsic::smax : llvm::Intrinsic::smin)
                                       : (maximum ? llvm::Intrinsic::umax : llvm::Intrinsic::umin);
    llvm::Value* result = e.intrinsic(id, {a, b});
    if (mode.relu)
      result = e.intrinsic(llvm::Intrinsic::smax, {result, llvm::ConstantInt::get(a->getType(), 0)});
    return result;
  };
  llvm::Value* a = e.read(i, 1, type);
  llvm::Value* b = e.read(i, 2, type);
  if (pair) {
    auto* vector = llvm::FixedVectorType::get(e.builder.getInt16Ty(), 2);
    a = e.builder.CreateBitCast(a, vector);
    b = e.builder.CreateBitCast(b, vector);
    return e.write(i.operand(0), e.builder.CreateBitCast(pick(a, b, !pair_unsigned), e.builder.getInt32Ty()),
                   type);
  }
  expect_integer(i, type);
  e.write(i.operand(0), pick(a, b, ptx::is_signed(type)), type);
}

// dp4a and dp2a: dot products of bytes, or of 16-bit numbers and bytes, plus c.
void dp(Emitter& e, Decoded& i) {
  bool four = i.opcode() == "dp4a", high = i.take("hi");
  i.take("lo");
  Type left = i.type(), right = i.type();
  i.done(4);
  auto part = [&](llvm::Value* value, Type type, uint32_t bits, uint32_t shift) {
    llvm::Value* raw = e.builder.CreateTrunc(e.builder.CreateLShr(value, shift), e.module.int_type(bits));
    return ptx::is_signed(type) ? e.builder.CreateSExt(raw, e.builder.getInt32Ty())
                                : e.builder.CreateZExt(raw, e.builder.getInt32Ty());
  };
  if (ptx::bits_of(left) != 32 || ptx::bits_of(right) != 32) i.fail("expected 32-bit types");
  llvm::Value* a = e.read(i, 1, left);
  llvm::Value* b = e.read(i, 2, right);
  llvm::Value* sum = e.read(i, 3, Type::u32);
  for (uint32_t n = 0; n < (four ? 4u : 2u); ++n) {
    llvm::Value* x = four ? part(a, left, 8, 8 * n) : part(a, left, 16, 16 * n);
    llvm::Value* y = part(b, right, 8, 8 * n + (four || !high ? 0 : 16));
    sum = e.builder.CreateAdd(sum, e.builder.CreateMul(x, y));
  }
  e.write(i.operand(0), sum, Type::u32);
}

}  // namespace gpupool::softgpu::codegen
