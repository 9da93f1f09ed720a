// f32 and f64 arithmetic. Round-to-nearest is plain LLVM; other rounding modes call jit/support.cc.
// Approximate instructions give the exact result or that of the C library, which is within their documented
// error.
#include "server/softgpu/jit/codegen.h"
#include "server/softgpu/jit/support.h"

namespace gpupool::softgpu {
namespace {

constexpr uint32_t kExponentMask = 0x7F800000, kSignMask = 0x80000000;

// Applies the operation to the two floats in each 64-bit operand.
llvm::Value* for_singles(llvm::IRBuilder<>& b, std::initializer_list<llvm::Value*> operands,
                         const std::function<llvm::Value*(std::vector<llvm::Value*>)>& operation) {
  llvm::Value* result = b.getInt64(0);
  for (uint32_t n = 0; n < 2; ++n) {
    std::vector<llvm::Value*> parts;
    for (llvm::Value* operand : operands)
      parts.push_back(
          b.CreateBitCast(b.CreateTrunc(b.CreateLShr(operand, 32 * n), b.getInt32Ty()), b.getFloatTy()));
    llvm::Value* part = b.CreateZExt(b.CreateBitCast(operation(parts), b.getInt32Ty()), b.getInt64Ty());
    result = b.CreateOr(result, b.CreateShl(part, 32 * n));
  }
  return result;
}

}  // namespace

FunctionCodegen::FloatMode FunctionCodegen::take_float_mode(Decoded& i) {
  FloatMode mode;
  mode.rounding = i.rounding();
  mode.flush = i.take("ftz");
  mode.saturate = i.take("sat");
  mode.relu = i.take("relu");
  return mode;
}

// Replaces f32 subnormals by zeros of the same sign; returns other types unchanged.
llvm::Value* FunctionCodegen::flush_subnormal(llvm::Value* value) {
  if (!value->getType()->isFloatTy()) return value;
  llvm::Value* bits = b_.CreateBitCast(value, b_.getInt32Ty());
  llvm::Value* tiny = b_.CreateIsNull(b_.CreateAnd(bits, i32(kExponentMask)));
  llvm::Value* flushed = b_.CreateSelect(tiny, b_.CreateAnd(bits, i32(kSignMask)), bits);
  return b_.CreateBitCast(flushed, value->getType());
}

llvm::Value* FunctionCodegen::read_float(Decoded& i, size_t index, Type type, bool flush) {
  llvm::Value* value = read(i, index, type);
  const Operand& operand = i.operand(index);
  if (flush && !(operand.kind == Operand::Kind::reg && facts_.flushed[operand.index]))
    value = flush_subnormal(value);
  return value;
}

llvm::Value* FunctionCodegen::finish_float(llvm::Value* value, Type type, const FloatMode& mode) {
  if (mode.flush) value = flush_subnormal(value);
  llvm::Value* zero = llvm::ConstantFP::get(value->getType(), 0.0);
  llvm::Value* one = llvm::ConstantFP::get(value->getType(), 1.0);
  if (mode.saturate) {  // NaN becomes +0
    value = b_.CreateSelect(b_.CreateFCmpOGT(value, zero), value, zero);
    value = b_.CreateSelect(b_.CreateFCmpOLT(value, one), value, one);
  }
  if (mode.relu) value = b_.CreateSelect(b_.CreateFCmpOLE(value, zero), zero, value);
  return value;
}

llvm::Value* FunctionCodegen::directed(uint32_t operation, Rounding rounding, llvm::Value* a, llvm::Value* b,
                                       llvm::Value* c) {
  llvm::Type* type = a->getType();
  const char* name = type->isFloatTy() ? "softgpu_directed_f32" : "softgpu_directed_f64";
  return call_pure(name, type,
                   {i32(operation), i32(static_cast<uint32_t>(rounding)), a, b ? b : a, c ? c : a});
}

void FunctionCodegen::float_binary(Decoded& i, Type type, FloatMode mode) {
  // add.f32.f16: the first operand is a half.
  std::optional<Type> first = type == Type::f32 && i.opcode() != "mul" ? i.maybe_type() : std::nullopt;
  if (first && *first != Type::f16 && *first != Type::bf16) i.fail("invalid combination of types");
  i.done(3);
  if (ptx::is_half(type)) return half_binary(i, type, mode);
  std::string_view op = i.opcode();
  auto compute = [&](llvm::Value* a, llvm::Value* b) -> llvm::Value* {
    if (is_directed(mode.rounding))
      return directed(op == "add" ? kAdd : op == "sub" ? kSubtract : kMultiply, mode.rounding, a, b);
    return op == "add" ? b_.CreateFAdd(a, b) : op == "sub" ? b_.CreateFSub(a, b) : b_.CreateFMul(a, b);
  };
  if (type == Type::b64) {  // .f32x2
    llvm::Value* result =
        for_singles(b_, {read(i, 1, type), read(i, 2, type)}, [&](std::vector<llvm::Value*> v) {
          for (llvm::Value*& value : v) value = mode.flush ? flush_subnormal(value) : value;
          return finish_float(compute(v[0], v[1]), Type::f32, mode);
        });
    return write(i.operand(0), result, type);
  }
  llvm::Value* a = first ? half_to_float(read(i, 1, *first), *first) : read_float(i, 1, type, mode.flush);
  llvm::Value* b = read_float(i, 2, type, mode.flush);
  write(i.operand(0), finish_float(compute(a, b), type, mode), type);
}

void FunctionCodegen::fma(Decoded& i) {
  FloatMode mode = take_float_mode(i);
  mode.zero_outside = i.take("oob");
  float_fma(i, i.take("f32x2") ? Type::b64 : i.type(), mode);
}

void FunctionCodegen::float_fma(Decoded& i, Type type, FloatMode mode) {
  std::optional<Type> factors = type == Type::f32 ? i.maybe_type() : std::nullopt;  // fma.f32.f16
  if (factors && *factors != Type::f16 && *factors != Type::bf16) i.fail("invalid combination of types");
  i.done(4);
  if (ptx::is_half(type)) return half_fma(i, type, mode);
  if (mode.zero_outside) i.fail(".oob is supported only for f16");
  auto compute = [&](llvm::Value* a, llvm::Value* b, llvm::Value* c) {
    return is_directed(mode.rounding) ? directed(kFma, mode.rounding, a, b, c)
                                      : intrinsic(llvm::Intrinsic::fma, {a, b, c});
  };
  if (type == Type::b64) {  // .f32x2
    llvm::Value* result = for_singles(b_, {read(i, 1, type), read(i, 2, type), read(i, 3, type)},
                                      [&](std::vector<llvm::Value*> v) {
                                        for (llvm::Value*& value : v)
                                          value = mode.flush ? flush_subnormal(value) : value;
                                        return finish_float(compute(v[0], v[1], v[2]), Type::f32, mode);
                                      });
    return write(i.operand(0), result, type);
  }
  if (!ptx::is_float(type)) i.fail("expected a floating-point type");
  auto factor = [&](size_t n) {
    return factors ? half_to_float(read(i, n, *factors), *factors) : read_float(i, n, type, mode.flush);
  };
  llvm::Value* a = factor(1);
  llvm::Value* b = factor(2);
  llvm::Value* c = read_float(i, 3, type, mode.flush);
  write(i.operand(0), finish_float(compute(a, b, c), type, mode), type);
}

void FunctionCodegen::float_div(Decoded& i, Type type, FloatMode mode, bool) {
  i.done(3);
  if (ptx::is_half(type)) i.fail("expected .f32 or .f64");
  llvm::Value* a = read_float(i, 1, type, mode.flush);
  llvm::Value* b = read_float(i, 2, type, mode.flush);
  llvm::Value* result =
      is_directed(mode.rounding) ? directed(kDivide, mode.rounding, a, b) : b_.CreateFDiv(a, b);
  write(i.operand(0), finish_float(result, type, mode), type);
}

void FunctionCodegen::float_unary(Decoded& i) {
  const bool approximate = i.take("approx");
  FloatMode mode = take_float_mode(i);
  Type type = i.type();
  i.done(2);
  std::string_view op = i.opcode();
  auto evaluate = [&](llvm::Value* a) -> llvm::Value* {
    llvm::Type* ir = a->getType();
    bool single = ir->isFloatTy();
    llvm::Value* one = llvm::ConstantFP::get(ir, 1.0);
    if (op == "rcp")
      return is_directed(mode.rounding) ? directed(kDivide, mode.rounding, one, a) : b_.CreateFDiv(one, a);
    if (op == "sqrt")
      return is_directed(mode.rounding) ? directed(kSquareRoot, mode.rounding, a)
                                        : intrinsic(llvm::Intrinsic::sqrt, {a});
    if (op == "rsqrt") return b_.CreateFDiv(one, intrinsic(llvm::Intrinsic::sqrt, {a}));
    if (!single) i.fail("expected .f32");
    if (op == "sin") return call_pure("softgpu_sin_f32", ir, {a});
    if (op == "cos") return call_pure("softgpu_cos_f32", ir, {a});
    if (op == "lg2") return call_pure("softgpu_log2_f32", ir, {a});
    if (op == "ex2") return call_pure("softgpu_exp2_f32", ir, {a});
    return call_pure("softgpu_tanh_f32", ir, {a});
  };
  if (ptx::is_half(type)) {
    if (op != "ex2" && op != "tanh") i.fail("expected .f32 or .f64");
    llvm::Value* result =
        for_halves(type, {read(i, 1, type)}, [&](Type half, std::vector<llvm::Value*> values) {
          return float_to_half(evaluate(half_to_float(values[0], half)), half, Rounding::nearest);
        });
    return write(i.operand(0), result, type);
  }
  if (!ptx::is_float(type)) i.fail("expected a floating-point type");
  // The .approx.ftz.f64 forms use only the upper word of the operand and of the result.
  const bool upper = approximate && mode.flush && type == Type::f64;
  auto cut = [&](llvm::Value* value) {
    llvm::Value* bits = b_.CreateAnd(b_.CreateBitCast(value, b_.getInt64Ty()), i64(0xFFFFFFFFull << 32));
    llvm::Value* tiny = b_.CreateIsNull(b_.CreateAnd(bits, i64(0x7FFull << 52)));
    return b_.CreateBitCast(b_.CreateSelect(tiny, b_.CreateAnd(bits, i64(1ull << 63)), bits),
                            value->getType());
  };
  llvm::Value* operand = read_float(i, 1, type, mode.flush);
  llvm::Value* result = evaluate(upper ? cut(operand) : operand);
  write(i.operand(0), upper ? cut(result) : finish_float(result, type, mode), type);
}

// abs and neg, also of integers.
void FunctionCodegen::float_abs_neg(Decoded& i) {
  bool flush = i.take("ftz"), is_abs = i.opcode() == "abs";
  Type type = i.type();
  i.done(2);
  if (type == Type::f32 || type == Type::f64) {
    llvm::Value* value = read_float(i, 1, type, flush);
    return write(i.operand(0), is_abs ? intrinsic(llvm::Intrinsic::fabs, {value}) : b_.CreateFNeg(value),
                 type);
  }
  if (ptx::is_half(type)) {
    uint32_t sign = ptx::is_packed_half(type) ? 0x80008000 : 0x8000;
    llvm::Value* value = read(i, 1, type);
    llvm::Value* mask = llvm::ConstantInt::get(value->getType(), is_abs ? ~sign : sign);
    return write(i.operand(0), is_abs ? b_.CreateAnd(value, mask) : b_.CreateXor(value, mask), type);
  }
  if (!ptx::is_signed(type) || ptx::bits_of(type) < 16) i.fail("expected a signed or floating-point type");
  llvm::Value* value = read(i, 1, type);
  llvm::Value* negative = b_.CreateNeg(value);
  if (is_abs)
    negative = b_.CreateSelect(b_.CreateICmpSLT(value, llvm::ConstantInt::get(value->getType(), 0)), negative,
                               value);
  write(i.operand(0), negative, type);
}

// IEEE 754-2008 minNum and maxNum with -0 < +0: a NaN operand gives the other operand, or NaN if
// propagate_nan.
llvm::Value* FunctionCodegen::minimum(llvm::Value* a, llvm::Value* b, bool maximum, bool propagate_nan) {
  llvm::Type* type = a->getType();
  llvm::Type* bits = m_.int_type(type->getPrimitiveSizeInBits());
  llvm::Value* x = b_.CreateBitCast(a, bits);
  llvm::Value* y = b_.CreateBitCast(b, bits);
  llvm::Value* wins = maximum ? b_.CreateFCmpOGT(a, b) : b_.CreateFCmpOLT(a, b);
  llvm::Value* result = b_.CreateSelect(wins, a, b);
  llvm::Value* zero = b_.CreateBitCast(maximum ? b_.CreateAnd(x, y) : b_.CreateOr(x, y), type);
  result = b_.CreateSelect(b_.CreateFCmpOEQ(a, b), zero, result);
  llvm::Value* b_is_nan = b_.CreateFCmpUNO(b, b);
  if (!propagate_nan) return b_.CreateSelect(b_is_nan, a, result);
  llvm::Value* nan = b_.CreateBitCast(
      llvm::ConstantInt::get(bits, type->isFloatTy() ? 0x7FFFFFFF : 0x7FFFFFFFFFFFFFFF), type);
  return b_.CreateSelect(b_.CreateFCmpUNO(a, b), nan, result);
}

void FunctionCodegen::float_min_max(Decoded& i, Type type, FloatMode mode, bool nan, bool magnitude) {
  bool maximum = i.opcode() == "max";
  size_t operands = i.operand_count();
  if (operands != 3 && operands != 4) i.fail("expected 3 operands");
  const bool signs = magnitude && i.take("xorsign");
  i.done();
  // .abs compares magnitudes; .xorsign.abs gives the result the sign of the product.
  auto choose = [&](llvm::Value* a, llvm::Value* b) -> llvm::Value* {
    if (!magnitude) return minimum(a, b, maximum, nan);
    llvm::Value* result =
        minimum(intrinsic(llvm::Intrinsic::fabs, {a}), intrinsic(llvm::Intrinsic::fabs, {b}), maximum, nan);
    if (!signs) return result;
    llvm::Type* bits = m_.int_type(a->getType()->getPrimitiveSizeInBits());
    llvm::Value* sign =
        b_.CreateBitCast(b_.CreateXor(b_.CreateBitCast(a, bits), b_.CreateBitCast(b, bits)), a->getType());
    return b_.CreateSelect(b_.CreateFCmpUNO(result, result), result,
                           b_.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, result, sign));
  };
  if (ptx::is_half(type)) {
    if (operands != 3) i.fail("expected 3 operands");
    llvm::Value* result =
        for_halves(type, {read(i, 1, type), read(i, 2, type)}, [&](Type half, std::vector<llvm::Value*> v) {
          return float_to_half(choose(half_to_float(v[0], half), half_to_float(v[1], half)), half,
                               Rounding::nearest);
        });
    return write(i.operand(0), result, type);
  }
  llvm::Value* result = choose(read_float(i, 1, type, mode.flush), read_float(i, 2, type, mode.flush));
  if (operands == 4) {
    if (signs) i.fail(".xorsign takes two operands");
    result = choose(result, read_float(i, 3, type, mode.flush));
  }
  write(i.operand(0), result, type);
}

void FunctionCodegen::testp(Decoded& i) {
  std::string_view op = i.take_one({"finite", "infinite", "number", "notanumber", "normal", "subnormal"});
  Type type = i.type();
  i.done(2);
  if (type != Type::f32 && type != Type::f64) i.fail("expected .f32 or .f64");
  llvm::Value* value = read(i, 1, type);
  uint32_t width = ptx::bits_of(type), fraction = type == Type::f32 ? 23 : 52;
  llvm::Type* ir = m_.int_type(width);
  auto constant = [&](uint64_t v) { return llvm::ConstantInt::get(ir, v); };
  llvm::Value* magnitude = b_.CreateAnd(b_.CreateBitCast(value, ir), constant(~uint64_t{0} >> (65 - width)));
  uint64_t infinity = ((uint64_t{1} << (width - 1 - fraction)) - 1) << fraction,
           least = uint64_t{1} << fraction;
  llvm::Value* result;
  if (op == "finite")
    result = b_.CreateICmpULT(magnitude, constant(infinity));
  else if (op == "infinite")
    result = b_.CreateICmpEQ(magnitude, constant(infinity));
  else if (op == "number")
    result = b_.CreateICmpULE(magnitude, constant(infinity));
  else if (op == "notanumber")
    result = b_.CreateICmpUGT(magnitude, constant(infinity));
  else if (op == "normal")
    result = b_.CreateICmpULT(b_.CreateSub(magnitude, constant(least)), constant(infinity - least));
  else if (op == "subnormal")
    result = b_.CreateICmpULT(b_.CreateSub(magnitude, constant(1)), constant(least - 1));
  else
    i.fail("the property is missing");
  write(i.operand(0), result, Type::pred);
}

void FunctionCodegen::copysign(Decoded& i) {
  Type type = i.type();
  i.done(3);
  if (type != Type::f32 && type != Type::f64) i.fail("expected .f32 or .f64");
  write(i.operand(0), b_.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, read(i, 2, type), read(i, 1, type)),
        type);
}

}  // namespace gpupool::softgpu
