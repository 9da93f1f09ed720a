// All forms of cvt, except those in codegen_narrow.cc.
#include "server/softgpu/jit/codegen.h"

namespace gpupool::softgpu {
llvm::Value* FunctionCodegen::round_to_integral(llvm::Value* value, Rounding rounding) {
  switch (rounding) {
    case Rounding::zero: return intrinsic(llvm::Intrinsic::trunc, {value});
    case Rounding::down: return intrinsic(llvm::Intrinsic::floor, {value});
    case Rounding::up: return intrinsic(llvm::Intrinsic::ceil, {value});
    default: return intrinsic(llvm::Intrinsic::roundeven, {value});
  }
}

llvm::Value* FunctionCodegen::integer_to_integer(llvm::Value* value, Type to, Type from, bool saturate) {
  uint32_t from_bits = ptx::bits_of(from), to_bits = ptx::bits_of(to);
  if (!saturate) return convert_bits(value, m_.ir_type(to), ptx::is_signed(from));
  // Clamp to the target's limits in a type wide enough for both.
  uint32_t bits = std::max(from_bits, to_bits) + 1;
  llvm::Type* wide = m_.int_type(bits);
  llvm::APInt low =
      ptx::is_signed(to) ? llvm::APInt::getSignedMinValue(to_bits).sext(bits) : llvm::APInt(bits, 0);
  llvm::APInt high = ptx::is_signed(to) ? llvm::APInt::getSignedMaxValue(to_bits).zext(bits)
                                        : llvm::APInt::getMaxValue(to_bits).zext(bits);
  llvm::Value* extended = convert_bits(value, wide, ptx::is_signed(from));
  extended = intrinsic(llvm::Intrinsic::smax, {extended, llvm::ConstantInt::get(wide, low)});
  extended = intrinsic(llvm::Intrinsic::smin, {extended, llvm::ConstantInt::get(wide, high)});
  return b_.CreateTrunc(extended, m_.ir_type(to));
}

// As on a GPU: out-of-range values give the nearest limit; NaN gives 0, or only the top bit if source or
// target has 64 bits.
llvm::Value* FunctionCodegen::float_to_integer(llvm::Value* value, Type to, Rounding rounding) {
  uint32_t bits = ptx::bits_of(to);
  bool wide = bits == 64 || value->getType()->isDoubleTy();
  llvm::Value* integral = rounding == Rounding::zero ? value : round_to_integral(value, rounding);
  llvm::Type* type = m_.int_type(bits);
  llvm::Value* result =
      b_.CreateIntrinsic(ptx::is_signed(to) ? llvm::Intrinsic::fptosi_sat : llvm::Intrinsic::fptoui_sat,
                         {type, value->getType()}, {integral});
  if (!wide) return result;
  return b_.CreateSelect(b_.CreateFCmpUNO(value, value),
                         llvm::ConstantInt::get(type, llvm::APInt::getSignMask(bits)), result);
}

llvm::Value* FunctionCodegen::integer_to_float(llvm::Value* value, Type to, Type from, Rounding rounding) {
  bool is_signed = ptx::is_signed(from);
  llvm::Type* type = to == Type::f32 ? b_.getFloatTy() : b_.getDoubleTy();
  llvm::Value* result;
  if (is_directed(rounding) && (to == Type::f32 || to == Type::f64)) {
    llvm::Value* wide = convert_bits(value, b_.getInt64Ty(), is_signed);
    const char* name = to == Type::f32 ? "softgpu_int_to_f32" : "softgpu_int_to_f64";
    result = call_pure(name, type, {wide, i32(is_signed), i32(static_cast<uint32_t>(rounding))});
  } else {
    result = is_signed ? b_.CreateSIToFP(value, type) : b_.CreateUIToFP(value, type);
  }
  return ptx::is_half(to) ? float_to_half(result, to, rounding) : result;
}

void FunctionCodegen::cvt_two_halves(Decoded& i, Type to, FloatMode mode, bool finite) {
  i.done(3);
  Type half = to == Type::f16x2 ? Type::f16 : Type::bf16;
  auto convert = [&](size_t n) {
    llvm::Value* value = finish_float(read(i, n, Type::f32), Type::f32, mode);
    llvm::Value* bits = float_to_half(value, half, mode.rounding);
    return b_.CreateZExt(finite ? saturate_half(bits, half) : bits, b_.getInt32Ty());
  };
  write(i.operand(0), b_.CreateOr(b_.CreateShl(convert(1), 16), convert(2)), to);
}

// cvt.pack: two saturated numbers. For numbers of fewer than 16 bits, operand c is shifted left and merged
// in.
void FunctionCodegen::cvt_pack(Decoded& i) {
  i.take("sat");
  const std::string_view small = i.take_one({"u2", "s2", "u4", "s4"});
  Type to = Type::none;
  if (small.empty()) to = i.type();
  Type from = i.type();
  std::optional<Type> third = i.maybe_type();
  i.done(third ? 4 : 3);
  const uint32_t bits = small.empty() ? ptx::bits_of(to) : static_cast<uint32_t>(small[1] - '0');
  const bool is_signed = small.empty() ? ptx::is_signed(to) : small[0] == 's';
  if (from != Type::s32 || (small.empty() && !ptx::is_integer(to)) || bits > 16 ||
      (third.has_value() != (bits < 16)))
    i.fail("invalid combination of types");
  const uint32_t most = is_signed ? (1u << (bits - 1)) - 1 : (1u << bits) - 1, least = is_signed ? ~most : 0;
  auto part = [&](size_t n) {
    llvm::Value* value = intrinsic(llvm::Intrinsic::smax, {read(i, n, from), i32(least)});
    return b_.CreateAnd(intrinsic(llvm::Intrinsic::smin, {value, i32(most)}), i32((1u << bits) - 1));
  };
  llvm::Value* result = b_.CreateOr(b_.CreateShl(part(1), bits), part(2));
  if (third) result = b_.CreateOr(result, b_.CreateShl(read(i, 3, Type::b32), 2 * bits));
  write(i.operand(0), result, Type::b32);
}

void FunctionCodegen::cvt(Decoded& i) {
  if (i.take("pack")) return cvt_pack(i);
  if (i.take("rs")) return cvt_stochastic(i);
  if (cvt_narrow(i)) return;
  bool to_integral = false;
  for (std::string_view word : {"rni", "rzi", "rmi", "rpi"}) to_integral |= i.peek(0) == word;
  FloatMode mode = take_float_mode(i);
  for (size_t n = 0; n < 4; ++n)
    if (i.peek(n) == "tf32") return cvt_tf32(i, mode);
  if (mode.rounding == Rounding::nearest_away) i.fail(".rna is supported only for .tf32");
  const bool finite = i.take("satfinite");
  Type to = i.type(), from = i.type();
  if (finite && !ptx::is_half(to)) i.fail(".satfinite is not supported here");
  if (to == Type::pred || from == Type::pred || to == Type::b128 || from == Type::b128)
    i.fail("conversion between these types is not supported");
  if (ptx::is_packed_half(to) && from == Type::f32) return cvt_two_halves(i, to, mode, finite);
  i.done(2);
  if (ptx::is_packed_half(to) || ptx::is_packed_half(from) || ptx::is_untyped(to) || ptx::is_untyped(from))
    i.fail("conversion between these types is not supported");
  llvm::Value* value = read_float(i, 1, from, mode.flush && from == Type::f32);
  if (ptx::is_integer(from)) {
    if (ptx::is_integer(to))
      return write(i.operand(0), integer_to_integer(value, to, from, mode.saturate), to);
    llvm::Value* result = integer_to_float(value, to, from, mode.rounding);
    if (mode.saturate && ptx::is_half(to))
      result = float_to_half(finish_float(half_to_float(result, to), to, mode), to, Rounding::nearest);
    else if (mode.saturate)
      result = finish_float(result, to, mode);
    return write(i.operand(0), result, to);
  }
  if (ptx::is_half(from)) value = half_to_float(value, from);
  if (ptx::is_integer(to)) return write(i.operand(0), float_to_integer(value, to, mode.rounding), to);
  // Floating point to floating point; between types of equal size only rounding to an integral value has an
  // effect.
  if (to_integral) value = round_to_integral(value, mode.rounding);
  if (ptx::is_half(to)) {
    FloatMode clamp = mode;
    clamp.flush = false;
    bool same = from == to;
    value = float_to_half(finish_float(value, from, clamp), to,
                          to_integral || same ? Rounding::nearest : mode.rounding);
    if (finite) value = saturate_half(value, to);
    return write(i.operand(0), value, to);
  }
  llvm::Type* type = m_.ir_type(to);
  if (value->getType()->isFloatTy() && to == Type::f64) {
    value = b_.CreateFPExt(value, type);
  } else if (value->getType()->isDoubleTy() && to == Type::f32) {
    if (is_directed(mode.rounding) && !to_integral)
      value = call_pure("softgpu_f64_to_f32", type, {value, i32(static_cast<uint32_t>(mode.rounding))});
    else
      value = b_.CreateFPTrunc(value, type);
  }
  write(i.operand(0), finish_float(value, to, mode), to);
}

}  // namespace gpupool::softgpu
