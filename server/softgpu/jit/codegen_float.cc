// f32 and f64 arithmetic. Round-to-nearest is plain LLVM; other rounding modes call jit/support.cc.
// Approximate instructions give the exact result or that of the C library, which is within their documented
// error.
#include "server/softgpu/jit/codegen_float.h"

#include "server/softgpu/jit/codegen_half.h"
#include "server/softgpu/jit/instructions.h"
#include "server/softgpu/jit/support.h"

namespace gpupool::softgpu::codegen {
namespace {

llvm::Value* directed(Emitter& e, uint32_t operation, Rounding rounding, llvm::Value* a,
                      llvm::Value* b = nullptr, llvm::Value* c = nullptr);

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

FloatMode take_float_mode(Emitter&, Decoded& i) {
  FloatMode mode;
  mode.rounding = i.rounding();
  mode.flush = i.take("ftz");
  mode.saturate = i.take("sat");
  mode.relu = i.take("relu");
  return mode;
}

namespace {

// Replaces f32 subnormals by zeros of the same sign; returns other types unchanged.
llvm::Value* flush_subnormal(Emitter& e, llvm::Value* value) {
  if (!value->getType()->isFloatTy()) return value;
  llvm::Value* bits = e.builder.CreateBitCast(value, e.builder.getInt32Ty());
  llvm::Value* tiny = e.builder.CreateIsNull(e.builder.CreateAnd(bits, e.i32(kExponentMask)));
  llvm::Value* flushed = e.builder.CreateSelect(tiny, e.builder.CreateAnd(bits, e.i32(kSignMask)), bits);
  return e.builder.CreateBitCast(flushed, value->getType());
}

}  // namespace

llvm::Value* read_float(Emitter& e, Decoded& i, size_t index, Type type, bool flush) {
  llvm::Value* value = e.read(i, index, type);
  const Operand& operand = i.operand(index);
  if (flush && !(operand.kind == Operand::Kind::reg && e.facts.flushed[operand.index]))
    value = flush_subnormal(e, value);
  return value;
}

llvm::Value* finish_float(Emitter& e, llvm::Value* value, Type type, const FloatMode& mode) {
  if (mode.flush) value = flush_subnormal(e, value);
  llvm::Value* zero = llvm::ConstantFP::get(value->getType(), 0.0);
  llvm::Value* one = llvm::ConstantFP::get(value->getType(), 1.0);
  if (mode.saturate) {  // NaN becomes +0
    value = e.builder.CreateSelect(e.builder.CreateFCmpOGT(value, zero), value, zero);
    value = e.builder.CreateSelect(e.builder.CreateFCmpOLT(value, one), value, one);
  }
  if (mode.relu) value = e.builder.CreateSelect(e.builder.CreateFCmpOLE(value, zero), zero, value);
  return value;
}

namespace {

llvm::Value* directed(Emitter& e, uint32_t operation, Rounding rounding, llvm::Value* a, llvm::Value* b,
                      llvm::Value* c) {
  llvm::Type* type = a->getType();
  const char* name = type->isFloatTy() ? "softgpu_directed_f32" : "softgpu_directed_f64";
  return e.call_pure(name, type,
                     {e.i32(operation), e.i32(static_cast<uint32_t>(rounding)), a, b ? b : a, c ? c : a});
}

}  // namespace

void float_binary(Emitter& e, Decoded& i, Type type, FloatMode mode) {
  // add.f32.f16: the first operand is a half.
  std::optional<Type> first = type == Type::f32 && i.opcode() != "mul" ? i.maybe_type() : std::nullopt;
  if (first && *first != Type::f16 && *first != Type::bf16) i.fail("invalid combination of types");
  i.done(3);
  if (ptx::is_half(type)) return half_binary(e, i, type, mode);
  std::string_view op = i.opcode();
  auto compute = [&](llvm::Value* a, llvm::Value* b) -> llvm::Value* {
    if (is_directed(mode.rounding))
      return directed(e, op == "add" ? kAdd : op == "sub" ? kSubtract : kMultiply, mode.rounding, a, b);
    return op == "add"   ? e.builder.CreateFAdd(a, b)
           : op == "sub" ? e.builder.CreateFSub(a, b)
                         : e.builder.CreateFMul(a, b);
  };
  if (type == Type::b64) {  // .f32x2
    llvm::Value* result =
        for_singles(e.builder, {e.read(i, 1, type), e.read(i, 2, type)}, [&](std::vector<llvm::Value*> v) {
          for (llvm::Value*& value : v) value = mode.flush ? flush_subnormal(e, value) : value;
          return finish_float(e, compute(v[0], v[1]), Type::f32, mode);
        });
    return e.write(i.operand(0), result, type);
  }
  llvm::Value* a =
      first ? half_to_float(e, e.read(i, 1, *first), *first) : read_float(e, i, 1, type, mode.flush);
  llvm::Value* b = read_float(e, i, 2, type, mode.flush);
  e.write(i.operand(0), finish_float(e, compute(a, b), type, mode), type);
}

void fma(Emitter& e, Decoded& i) {
  FloatMode mode = take_float_mode(e, i);
  mode.zero_outside = i.take("oob");
  float_fma(e, i, i.take("f32x2") ? Type::b64 : i.type(), mode);
}

void float_fma(Emitter& e, Decoded& i, Type type, FloatMode mode) {
  std::optional<Type> factors = type == Type::f32 ? i.maybe_type() : std::nullopt;  // fma.f32.f16
  if (factors && *factors != Type::f16 && *factors != Type::bf16) i.fail("invalid combination of types");
  i.done(4);
  if (ptx::is_half(type)) return half_fma(e, i, type, mode);
  if (mode.zero_outside) i.fail(".oob is supported only for f16");
  auto compute = [&](llvm::Value* a, llvm::Value* b, llvm::Value* c) {
    return is_directed(mode.rounding) ? directed(e, kFma, mode.rounding, a, b, c)
                                      : e.intrinsic(llvm::Intrinsic::fma, {a, b, c});
  };
  if (type == Type::b64) {  // .f32x2
    llvm::Value* result = for_singles(e.builder, {e.read(i, 1, type), e.read(i, 2, type), e.read(i, 3, type)},
                                      [&](std::vector<llvm::Value*> v) {
                                        for (llvm::Value*& value : v)
                                          value = mode.flush ? flush_subnormal(e, value) : value;
                                        return finish_float(e, compute(v[0], v[1], v[2]), Type::f32, mode);
                                      });
    return e.write(i.operand(0), result, type);
  }
  if (!ptx::is_float(type)) i.fail("expected a floating-point type");
  auto factor = [&](size_t n) {
    return factors ? half_to_float(e, e.read(i, n, *factors), *factors)
                   : read_float(e, i, n, type, mode.flush);
  };
  llvm::Value* a = factor(1);
  llvm::Value* b = factor(2);
  llvm::Value* c = read_float(e, i, 3, type, mode.flush);
  e.write(i.operand(0), finish_float(e, compute(a, b, c), type, mode), type);
}

void float_div(Emitter& e, Decoded& i, Type type, FloatMode mode, bool) {
  i.done(3);
  if (ptx::is_half(type)) i.fail("expected .f32 or .f64");
  llvm::Value* a = read_float(e, i, 1, type, mode.flush);
  llvm::Value* b = read_float(e, i, 2, type, mode.flush);
  llvm::Value* result =
      is_directed(mode.rounding) ? directed(e, kDivide, mode.rounding, a, b) : e.builder.CreateFDiv(a, b);
  e.write(i.operand(0), finish_float(e, result, type, mode), type);
}

void float_unary(Emitter& e, Decoded& i) {
  const bool approximate = i.take("approx");
  FloatMode mode = take_float_mode(e, i);
  Type type = i.type();
  i.done(2);
  std::string_view op = i.opcode();
  auto evaluate = [&](llvm::Value* a) -> llvm::Value* {
    llvm::Type* ir = a->getType();
    bool single = ir->isFloatTy();
    llvm::Value* one = llvm::ConstantFP::get(ir, 1.0);
    if (op == "rcp")
      return is_directed(mode.rounding) ? directed(e, kDivide, mode.rounding, one, a)
                                        : e.builder.CreateFDiv(one, a);
    if (op == "sqrt")
      return is_directed(mode.rounding) ? directed(e, kSquareRoot, mode.rounding, a)
                                        : e.intrinsic(llvm::Intrinsic::sqrt, {a});
    if (op == "rsqrt") return e.builder.CreateFDiv(one, e.intrinsic(llvm::Intrinsic::sqrt, {a}));
    if (!single) i.fail("expected .f32");
    if (op == "sin") return e.call_pure("softgpu_sin_f32", ir, {a});
    if (op == "cos") return e.call_pure("softgpu_cos_f32", ir, {a});
    if (op == "lg2") return e.call_pure("softgpu_log2_f32", ir, {a});
    if (op == "ex2") return e.call_pure("softgpu_exp2_f32", ir, {a});
    return e.call_pure("softgpu_tanh_f32", ir, {a});
  };
  if (ptx::is_half(type)) {
    if (op != "ex2" && op != "tanh") i.fail("expected .f32 or .f64");
    llvm::Value* result =
        for_halves(e, type, {e.read(i, 1, type)}, [&](Type half, std::vector<llvm::Value*> values) {
          return float_to_half(e, evaluate(half_to_float(e, values[0], half)), half, Rounding::nearest);
        });
    return e.write(i.operand(0), result, type);
  }
  if (!ptx::is_float(type)) i.fail("expected a floating-point type");
  // The .approx.ftz.f64 forms use only the upper word of the operand and of the result.
  const bool upper = approximate && mode.flush && type == Type::f64;
  auto cut = [&](llvm::Value* value) {
    llvm::Value* bits = e.builder.CreateAnd(e.builder.CreateBitCast(value, e.builder.getInt64Ty()),
                                            e.i64(0xFFFFFFFFull << 32));
    llvm::Value* tiny = e.builder.CreateIsNull(e.builder.CreateAnd(bits, e.i64(0x7FFull << 52)));
    return e.builder.CreateBitCast(
        e.builder.CreateSelect(tiny, e.builder.CreateAnd(bits, e.i64(1ull << 63)), bits), value->getType());
  };
  llvm::Value* operand = read_float(e, i, 1, type, mode.flush);
  llvm::Value* result = evaluate(upper ? cut(operand) : operand);
  e.write(i.operand(0), upper ? cut(result) : finish_float(e, result, type, mode), type);
}

// abs and neg, also of integers.
void float_abs_neg(Emitter& e, Decoded& i) {
  bool flush = i.take("ftz"), is_abs = i.opcode() == "abs";
  Type type = i.type();
  i.done(2);
  if (type == Type::f32 || type == Type::f64) {
    llvm::Value* value = read_float(e, i, 1, type, flush);
    return e.write(i.operand(0),
                   is_abs ? e.intrinsic(llvm::Intrinsic::fabs, {value}) : e.builder.CreateFNeg(value), type);
  }
  if (ptx::is_half(type)) {
    uint32_t sign = ptx::is_packed_half(type) ? 0x80008000 : 0x8000;
    llvm::Value* value = e.read(i, 1, type);
    llvm::Value* mask = llvm::ConstantInt::get(value->getType(), is_abs ? ~sign : sign);
    return e.write(i.operand(0), is_abs ? e.builder.CreateAnd(value, mask) : e.builder.CreateXor(value, mask),
                   type);
  }
  if (!ptx::is_signed(type) || ptx::bits_of(type) < 16) i.fail("expected a signed or floating-point type");
  llvm::Value* value = e.read(i, 1, type);
  llvm::Value* negative = e.builder.CreateNeg(value);
  if (is_abs)
    negative = e.builder.CreateSelect(
        e.builder.CreateICmpSLT(value, llvm::ConstantInt::get(value->getType(), 0)), negative, value);
  e.write(i.operand(0), negative, type);
}

// IEEE 754-2008 minNum and maxNum with -0 < +0: a NaN operand gives the other operand, or NaN if
// propagate_nan.
llvm::Value* minimum(Emitter& e, llvm::Value* a, llvm::Value* b, bool maximum, bool propagate_nan) {
  llvm::Type* type = a->getType();
  llvm::Type* bits = e.module.int_type(type->getPrimitiveSizeInBits());
  llvm::Value* x = e.builder.CreateBitCast(a, bits);
  llvm::Value* y = e.builder.CreateBitCast(b, bits);
  llvm::Value* wins = maximum ? e.builder.CreateFCmpOGT(a, b) : e.builder.CreateFCmpOLT(a, b);
  llvm::Value* result = e.builder.CreateSelect(wins, a, b);
  llvm::Value* zero =
      e.builder.CreateBitCast(maximum ? e.builder.CreateAnd(x, y) : e.builder.CreateOr(x, y), type);
  result = e.builder.CreateSelect(e.builder.CreateFCmpOEQ(a, b), zero, result);
  llvm::Value* b_is_nan = e.builder.CreateFCmpUNO(b, b);
  if (!propagate_nan) return e.builder.CreateSelect(b_is_nan, a, result);
  llvm::Value* nan = e.builder.CreateBitCast(
      llvm::ConstantInt::get(bits, type->isFloatTy() ? 0x7FFFFFFF : 0x7FFFFFFFFFFFFFFF), type);
  return e.builder.CreateSelect(e.builder.CreateFCmpUNO(a, b), nan, result);
}

void float_min_max(Emitter& e, Decoded& i, Type type, FloatMode mode, bool nan, bool magnitude) {
  bool maximum = i.opcode() == "max";
  size_t operands = i.operand_count();
  if (operands != 3 && operands != 4) i.fail("expected 3 operands");
  const bool signs = magnitude && i.take("xorsign");
  i.done();
  // .abs compares magnitudes; .xorsign.abs gives the result the sign of the product.
  auto choose = [&](llvm::Value* a, llvm::Value* b) -> llvm::Value* {
    if (!magnitude) return minimum(e, a, b, maximum, nan);
    llvm::Value* result = minimum(e, e.intrinsic(llvm::Intrinsic::fabs, {a}),
                                  e.intrinsic(llvm::Intrinsic::fabs, {b}), maximum, nan);
    if (!signs) return result;
    llvm::Type* bits = e.module.int_type(a->getType()->getPrimitiveSizeInBits());
    llvm::Value* sign = e.builder.CreateBitCast(
        e.builder.CreateXor(e.builder.CreateBitCast(a, bits), e.builder.CreateBitCast(b, bits)),
        a->getType());
    return e.builder.CreateSelect(e.builder.CreateFCmpUNO(result, result), result,
                                  e.builder.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, result, sign));
  };
  if (ptx::is_half(type)) {
    if (operands != 3) i.fail("expected 3 operands");
    llvm::Value* result = for_halves(
        e, type, {e.read(i, 1, type), e.read(i, 2, type)}, [&](Type half, std::vector<llvm::Value*> v) {
          return float_to_half(e, choose(half_to_float(e, v[0], half), half_to_float(e, v[1], half)), half,
                               Rounding::nearest);
        });
    return e.write(i.operand(0), result, type);
  }
  llvm::Value* result = choose(read_float(e, i, 1, type, mode.flush), read_float(e, i, 2, type, mode.flush));
  if (operands == 4) {
    if (signs) i.fail(".xorsign takes two operands");
    result = choose(result, read_float(e, i, 3, type, mode.flush));
  }
  e.write(i.operand(0), result, type);
}

void testp(Emitter& e, Decoded& i) {
  std::string_view op = i.take_one({"finite", "infinite", "number", "notanumber", "normal", "subnormal"});
  Type type = i.type();
  i.done(2);
  if (type != Type::f32 && type != Type::f64) i.fail("expected .f32 or .f64");
  llvm::Value* value = e.read(i, 1, type);
  uint32_t width = ptx::bits_of(type), fraction = type == Type::f32 ? 23 : 52;
  llvm::Type* ir = e.module.int_type(width);
  auto constant = [&](uint64_t v) { return llvm::ConstantInt::get(ir, v); };
  llvm::Value* magnitude =
      e.builder.CreateAnd(e.builder.CreateBitCast(value, ir), constant(~uint64_t{0} >> (65 - width)));
  uint64_t infinity = ((uint64_t{1} << (width - 1 - fraction)) - 1) << fraction,
           least = uint64_t{1} << fraction;
  llvm::Value* result;
  if (op == "finite")
    result = e.builder.CreateICmpULT(magnitude, constant(infinity));
  else if (op == "infinite")
    result = e.builder.CreateICmpEQ(magnitude, constant(infinity));
  else if (op == "number")
    result = e.builder.CreateICmpULE(magnitude, constant(infinity));
  else if (op == "notanumber")
    result = e.builder.CreateICmpUGT(magnitude, constant(infinity));
  else if (op == "normal")
    result =
        e.builder.CreateICmpULT(e.builder.CreateSub(magnitude, constant(least)), constant(infinity - least));
  else if (op == "subnormal")
    result = e.builder.CreateICmpULT(e.builder.CreateSub(magnitude, constant(1)), constant(least - 1));
  else
    i.fail("the property is missing");
  e.write(i.operand(0), result, Type::pred);
}

void copysign(Emitter& e, Decoded& i) {
  Type type = i.type();
  i.done(3);
  if (type != Type::f32 && type != Type::f64) i.fail("expected .f32 or .f64");
  e.write(i.operand(0),
          e.builder.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, e.read(i, 2, type), e.read(i, 1, type)),
          type);
}

}  // namespace gpupool::softgpu::codegen
