// Integer arithmetic. Where PTX leaves a result undefined (division by zero), the result is that of NVIDIA
// GPUs.
#include "server/softgpu/jit/codegen.h"

namespace gpupool::softgpu {
namespace {

void expect_integer(Decoded& i, Type type, uint32_t least_bits = 16) {
  if (!ptx::is_integer(type) && !ptx::is_untyped(type)) i.fail("expected an integer type");
  if (ptx::bits_of(type) < least_bits || ptx::bits_of(type) > 64)
    i.fail("integers of this width are not supported here");
}

}  // namespace

void FunctionCodegen::add(Decoded& i) {
  bool cc = i.take("cc");
  FloatMode mode = take_float_mode(i);
  if (i.take_any({"u16x2", "s16x2"})) return add_pairs(i);
  if (i.take("f32x2")) return float_binary(i, Type::b64, mode);
  Type type = i.type();
  if (ptx::is_float(type)) return float_binary(i, type, mode);
  i.done(3);
  expect_integer(i, type);
  llvm::Value* a = read(i, 1, type);
  llvm::Value* b = read(i, 2, type);
  llvm::Value* result;
  if (cc)
    result = add_carry(a, b, nullptr, true);
  else if (mode.saturate)
    result = intrinsic(llvm::Intrinsic::sadd_sat, {a, b});
  else
    result = b_.CreateAdd(a, b);
  write(i.operand(0), result, type);
  // The sum of a variable's address and another value still points into the variable.
  auto based = [&](const Operand& o) {
    return (o.kind == Operand::Kind::reg && facts_.based_on[o.index] != kNoVariable) ||
           o.kind == Operand::Kind::variable;
  };
  bool first = based(i.operand(1));
  remember_base(i.operand(0), i.operand(first ? 1 : 2), first ? b : a);
}

void FunctionCodegen::add_pairs(Decoded& i) {
  i.done(3);
  auto* vector = llvm::FixedVectorType::get(b_.getInt16Ty(), 2);
  llvm::Value* a = b_.CreateBitCast(read(i, 1, Type::b32), vector);
  llvm::Value* b = b_.CreateBitCast(read(i, 2, Type::b32), vector);
  write(i.operand(0), b_.CreateBitCast(b_.CreateAdd(a, b), b_.getInt32Ty()), Type::b32);
}

void FunctionCodegen::sub(Decoded& i) {
  bool cc = i.take("cc");
  FloatMode mode = take_float_mode(i);
  if (i.take("f32x2")) return float_binary(i, Type::b64, mode);
  Type type = i.type();
  if (ptx::is_float(type)) return float_binary(i, type, mode);
  i.done(3);
  expect_integer(i, type);
  llvm::Value* a = read(i, 1, type);
  llvm::Value* b = read(i, 2, type);
  if (mode.saturate) return write(i.operand(0), intrinsic(llvm::Intrinsic::ssub_sat, {a, b}), type);
  if (cc) carry_out(b_.CreateICmpUGE(a, b));
  write(i.operand(0), b_.CreateSub(a, b), type);
}

llvm::Value* FunctionCodegen::carry_in() {
  carry_out(nullptr);
  return b_.CreateLoad(b_.getInt1Ty(), carry_);
}

void FunctionCodegen::carry_out(llvm::Value* value) {
  if (!carry_) {
    carry_ = entry_.CreateAlloca(b_.getInt1Ty());
    entry_.CreateStore(b_.getFalse(), carry_);
  }
  if (value) b_.CreateStore(value, carry_);
}

// Returns a + b + in; `in` may be null.
llvm::Value* FunctionCodegen::add_carry(llvm::Value* a, llvm::Value* b, llvm::Value* in, bool out) {
  llvm::Value* first = intrinsic(llvm::Intrinsic::uadd_with_overflow, {a, b});
  llvm::Value* sum = b_.CreateExtractValue(first, 0);
  llvm::Value* carry = b_.CreateExtractValue(first, 1);
  if (in) {
    llvm::Value* second =
        intrinsic(llvm::Intrinsic::uadd_with_overflow, {sum, b_.CreateZExt(in, a->getType())});
    sum = b_.CreateExtractValue(second, 0);
    carry = b_.CreateOr(carry, b_.CreateExtractValue(second, 1));
  }
  if (out) carry_out(carry);
  return sum;
}

void FunctionCodegen::add_with_carry(Decoded& i) {
  bool cc = i.take("cc");
  Type type = i.type();
  i.done(3);
  expect_integer(i, type, 32);
  llvm::Value* a = read(i, 1, type);
  llvm::Value* b = read(i, 2, type);
  llvm::Value* in = carry_in();
  // After a subtraction the flag means "no borrow", as on the hardware: nvcc's 128-bit division reads it with
  // addc.
  if (i.opcode() == "addc") return write(i.operand(0), add_carry(a, b, in, cc), type);
  llvm::Value* first = intrinsic(llvm::Intrinsic::usub_with_overflow, {a, b});
  llvm::Value* second =
      intrinsic(llvm::Intrinsic::usub_with_overflow,
                {b_.CreateExtractValue(first, 0), b_.CreateZExt(b_.CreateNot(in), a->getType())});
  if (cc)
    carry_out(b_.CreateNot(b_.CreateOr(b_.CreateExtractValue(first, 1), b_.CreateExtractValue(second, 1))));
  write(i.operand(0), b_.CreateExtractValue(second, 0), type);
}

// Returns part of a * b: lo, hi, or wide (twice as wide).
llvm::Value* FunctionCodegen::multiply(Decoded& i, Type type, std::string_view part, llvm::Value* a,
                                       llvm::Value* b) {
  if (part == "lo") return b_.CreateMul(a, b);
  uint32_t bits = ptx::bits_of(type);
  llvm::Type* wide = m_.int_type(bits * 2);
  auto extend = [&](llvm::Value* v) {
    return ptx::is_signed(type) ? b_.CreateSExt(v, wide) : b_.CreateZExt(v, wide);
  };
  llvm::Value* product = b_.CreateMul(extend(a), extend(b));
  if (part == "wide") {
    if (bits > 64) i.fail("the product is too wide");
    return product;
  }
  return b_.CreateTrunc(b_.CreateLShr(product, bits), a->getType());
}

namespace {

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

void FunctionCodegen::mul(Decoded& i) {
  std::string_view part = i.take_one({"lo", "hi", "wide"});
  FloatMode mode = take_float_mode(i);
  if (i.take("f32x2")) return float_binary(i, Type::b64, mode);
  Type type = i.type();
  if (ptx::is_float(type)) return float_binary(i, type, mode);
  i.done(3);
  expect_integer(i, type);
  if (part.empty()) i.fail("one of .lo, .hi and .wide is missing");
  Type result = part == "wide" ? doubled(i, type) : type;
  write(i.operand(0), multiply(i, type, part, read(i, 1, type), read(i, 2, type)), result);
}

// mad and madc: a * b + c, with carries if requested.
void FunctionCodegen::mad(Decoded& i) {
  std::string_view part = i.take_one({"lo", "hi", "wide"});
  bool cc = i.take("cc"), with_carry = i.opcode() == "madc";
  FloatMode mode = take_float_mode(i);
  Type type = i.type();
  if (ptx::is_float(type)) {
    if (with_carry || cc || !part.empty()) i.fail("floating-point numbers have no carry");
    return float_fma(i, type, mode);
  }
  i.done(4);
  expect_integer(i, type);
  if (part.empty()) i.fail("one of .lo, .hi and .wide is missing");
  Type result = part == "wide" ? doubled(i, type) : type;
  llvm::Value* product = multiply(i, type, part, read(i, 1, type), read(i, 2, type));
  llvm::Value* c = read(i, 3, result);
  llvm::Value* sum;
  if (mode.saturate)
    sum = intrinsic(llvm::Intrinsic::sadd_sat, {product, c});
  else if (with_carry || cc)
    sum = add_carry(product, c, with_carry ? carry_in() : nullptr, cc);
  else
    sum = b_.CreateAdd(product, c);
  write(i.operand(0), sum, result);
}

// mul24 and mad24 multiply the low 24 bits of each factor.
void FunctionCodegen::mul24(Decoded& i) {
  std::string_view part = i.take_one({"lo", "hi"});
  bool saturate = i.take("sat"), adds = i.opcode() == "mad24";
  Type type = i.type();
  i.done(adds ? 4 : 3);
  if (part.empty() || (type != Type::s32 && type != Type::u32))
    i.fail("expected .lo or .hi and a 32-bit type");
  auto factor = [&](size_t n) {
    llvm::Value* high = b_.CreateShl(read(i, n, type), 8);
    llvm::Value* value = ptx::is_signed(type) ? b_.CreateAShr(high, 8) : b_.CreateLShr(high, 8);
    return ptx::is_signed(type) ? b_.CreateSExt(value, b_.getInt64Ty())
                                : b_.CreateZExt(value, b_.getInt64Ty());
  };
  llvm::Value* product = b_.CreateMul(factor(1), factor(2));
  llvm::Value* result = b_.CreateTrunc(part == "lo" ? product : b_.CreateLShr(product, 16), b_.getInt32Ty());
  if (adds) {
    llvm::Value* c = read(i, 3, type);
    result = saturate ? intrinsic(llvm::Intrinsic::sadd_sat, {result, c}) : b_.CreateAdd(result, c);
  }
  write(i.operand(0), result, type);
}

void FunctionCodegen::sad(Decoded& i) {
  Type type = i.type();
  i.done(4);
  expect_integer(i, type);
  llvm::Value* a = read(i, 1, type);
  llvm::Value* b = read(i, 2, type);
  llvm::Value* less = ptx::is_signed(type) ? b_.CreateICmpSLT(a, b) : b_.CreateICmpULT(a, b);
  llvm::Value* distance = b_.CreateSelect(less, b_.CreateSub(b, a), b_.CreateSub(a, b));
  write(i.operand(0), b_.CreateAdd(read(i, 3, type), distance), type);
}

llvm::Value* FunctionCodegen::divide(Type type, llvm::Value* a, llvm::Value* b, bool remainder) {
  llvm::Type* ir = a->getType();
  llvm::Value* one = llvm::ConstantInt::get(ir, 1);
  llvm::Value* all_ones = llvm::ConstantInt::getAllOnesValue(ir);
  llvm::Value* zero = b_.CreateIsNull(b);
  llvm::Value* unsafe = zero;
  if (ptx::is_signed(type)) {
    llvm::Value* least = llvm::ConstantInt::get(ir, llvm::APInt::getSignedMinValue(ptx::bits_of(type)));
    unsafe = b_.CreateOr(zero, b_.CreateAnd(b_.CreateICmpEQ(a, least), b_.CreateICmpEQ(b, all_ones)));
  }
  // Dividing by one gives the value that the overflowing quotient wraps to.
  llvm::Value* divisor = b_.CreateSelect(unsafe, one, b);
  llvm::Value* result;
  if (ptx::is_signed(type))
    result = remainder ? b_.CreateSRem(a, divisor) : b_.CreateSDiv(a, divisor);
  else
    result = remainder ? b_.CreateURem(a, divisor) : b_.CreateUDiv(a, divisor);
  return b_.CreateSelect(zero, all_ones, result);
}

void FunctionCodegen::div(Decoded& i) {
  bool is_full = i.take_any({"approx", "full"});
  FloatMode mode = take_float_mode(i);
  Type type = i.type();
  if (ptx::is_float(type)) return float_div(i, type, mode, is_full);
  i.done(3);
  expect_integer(i, type);
  write(i.operand(0), divide(type, read(i, 1, type), read(i, 2, type), false), type);
}

void FunctionCodegen::rem(Decoded& i) {
  Type type = i.type();
  i.done(3);
  expect_integer(i, type);
  write(i.operand(0), divide(type, read(i, 1, type), read(i, 2, type), true), type);
}

void FunctionCodegen::abs(Decoded& i) {
  float_abs_neg(i);
}
void FunctionCodegen::neg(Decoded& i) {
  float_abs_neg(i);
}

llvm::Value* FunctionCodegen::select_min(llvm::Value* a, llvm::Value* b, bool is_signed) {
  return b_.CreateSelect(is_signed ? b_.CreateICmpSLT(a, b) : b_.CreateICmpULT(a, b), a, b);
}

void FunctionCodegen::min_max(Decoded& i) {
  FloatMode mode = take_float_mode(i);
  bool nan = i.take("NaN"), magnitude = i.take("abs");
  // u16x2 and s16x2 are not ptx::Types.
  bool pair_unsigned = i.take("u16x2"), pair = pair_unsigned || i.take("s16x2");
  Type type = pair ? Type::b32 : i.type();
  bool maximum = i.opcode() == "max";
  if (ptx::is_float(type)) return float_min_max(i, type, mode, nan, magnitude);
  i.done(3);
  if (nan || magnitude) i.fail("integers have no NaN");
  auto pick = [&](llvm::Value* a, llvm::Value* b, bool is_signed) {
    llvm::Intrinsic::ID id = is_signed ? (maximum ? llvm::Intrinsic::smax : llvm::Intrinsic::smin)
                                       : (maximum ? llvm::Intrinsic::umax : llvm::Intrinsic::umin);
    llvm::Value* result = intrinsic(id, {a, b});
    if (mode.relu)
      result = intrinsic(llvm::Intrinsic::smax, {result, llvm::ConstantInt::get(a->getType(), 0)});
    return result;
  };
  llvm::Value* a = read(i, 1, type);
  llvm::Value* b = read(i, 2, type);
  if (pair) {
    auto* vector = llvm::FixedVectorType::get(b_.getInt16Ty(), 2);
    a = b_.CreateBitCast(a, vector);
    b = b_.CreateBitCast(b, vector);
    return write(i.operand(0), b_.CreateBitCast(pick(a, b, !pair_unsigned), b_.getInt32Ty()), type);
  }
  expect_integer(i, type);
  write(i.operand(0), pick(a, b, ptx::is_signed(type)), type);
}

// dp4a and dp2a: dot products of bytes, or of 16-bit numbers and bytes, plus c.
void FunctionCodegen::dp(Decoded& i) {
  bool four = i.opcode() == "dp4a", high = i.take("hi");
  i.take("lo");
  Type left = i.type(), right = i.type();
  i.done(4);
  auto part = [&](llvm::Value* value, Type type, uint32_t bits, uint32_t shift) {
    llvm::Value* raw = b_.CreateTrunc(b_.CreateLShr(value, shift), m_.int_type(bits));
    return ptx::is_signed(type) ? b_.CreateSExt(raw, b_.getInt32Ty()) : b_.CreateZExt(raw, b_.getInt32Ty());
  };
  if (ptx::bits_of(left) != 32 || ptx::bits_of(right) != 32) i.fail("expected 32-bit types");
  llvm::Value* a = read(i, 1, left);
  llvm::Value* b = read(i, 2, right);
  llvm::Value* sum = read(i, 3, Type::u32);
  for (uint32_t n = 0; n < (four ? 4u : 2u); ++n) {
    llvm::Value* x = four ? part(a, left, 8, 8 * n) : part(a, left, 16, 16 * n);
    llvm::Value* y = part(b, right, 8, 8 * n + (four || !high ? 0 : 16));
    sum = b_.CreateAdd(sum, b_.CreateMul(x, y));
  }
  write(i.operand(0), sum, Type::u32);
}

}  // namespace gpupool::softgpu
