// All forms of cvt, except those in codegen_narrow.cc.
#include "server/softgpu/jit/codegen_float.h"
#include "server/softgpu/jit/codegen_half.h"
#include "server/softgpu/jit/codegen_narrow.h"
#include "server/softgpu/jit/instructions.h"

namespace gpupool::softgpu::codegen {
namespace {

llvm::Value* round_to_integral(Emitter& e, llvm::Value* value, Rounding rounding) {
  switch (rounding) {
    case Rounding::zero: return e.intrinsic(llvm::Intrinsic::trunc, {value});
    case Rounding::down: return e.intrinsic(llvm::Intrinsic::floor, {value});
    case Rounding::up: return e.intrinsic(llvm::Intrinsic::ceil, {value});
    default: return e.intrinsic(llvm::Intrinsic::roundeven, {value});
  }
}

llvm::Value* integer_to_integer(Emitter& e, llvm::Value* value, Type to, Type from, bool saturate) {
  uint32_t from_bits = ptx::bits_of(from), to_bits = ptx::bits_of(to);
  if (!saturate) return e.convert_bits(value, e.module.ir_type(to), ptx::is_signed(from));
  // Clamp to the target's limits in a type wide enough for both.
  uint32_t bits = std::max(from_bits, to_bits) + 1;
  llvm::Type* wide = e.module.int_type(bits);
  llvm::APInt low =
      ptx::is_signed(to) ? llvm::APInt::getSignedMinValue(to_bits).sext(bits) : llvm::APInt(bits, 0);
  llvm::APInt high = ptx::is_signed(to) ? llvm::APInt::getSignedMaxValue(to_bits).zext(bits)
                                        : llvm::APInt::getMaxValue(to_bits).zext(bits);
  llvm::Value* extended = e.convert_bits(value, wide, ptx::is_signed(from));
  extended = e.intrinsic(llvm::Intrinsic::smax, {extended, llvm::ConstantInt::get(wide, low)});
  extended = e.intrinsic(llvm::Intrinsic::smin, {extended, llvm::ConstantInt::get(wide, high)});
  return e.builder.CreateTrunc(extended, e.module.ir_type(to));
}

// As on a GPU: out-of-range values give the nearest limit; NaN gives 0, or only the top bit if source or
// target has 64 bits.
llvm::Value* float_to_integer(Emitter& e, llvm::Value* value, Type to, Rounding rounding) {
  uint32_t bits = ptx::bits_of(to);
  bool wide = bits == 64 || value->getType()->isDoubleTy();
  llvm::Value* integral = rounding == Rounding::zero ? value : round_to_integral(e, value, rounding);
  llvm::Type* type = e.module.int_type(bits);
  llvm::Value* result = e.builder.CreateIntrinsic(
      ptx::is_signed(to) ? llvm::Intrinsic::fptosi_sat : llvm::Intrinsic::fptoui_sat,
      {type, value->getType()}, {integral});
  if (!wide) return result;
  return e.builder.CreateSelect(e.builder.CreateFCmpUNO(value, value),
                                llvm::ConstantInt::get(type, llvm::APInt::getSignMask(bits)), result);
}

llvm::Value* integer_to_float(Emitter& e, llvm::Value* value, Type to, Type from, Rounding rounding) {
  bool is_signed = ptx::is_signed(from);
  llvm::Type* type = to == Type::f32 ? e.builder.getFloatTy() : e.builder.getDoubleTy();
  llvm::Value* result;
  if (is_directed(rounding) && (to == Type::f32 || to == Type::f64)) {
    llvm::Value* wide = e.convert_bits(value, e.builder.getInt64Ty(), is_signed);
    const char* name = to == Type::f32 ? "softgpu_int_to_f32" : "softgpu_int_to_f64";
    result = e.call_pure(name, type, {wide, e.i32(is_signed), e.i32(static_cast<uint32_t>(rounding))});
  } else {
    result = is_signed ? e.builder.CreateSIToFP(value, type) : e.builder.CreateUIToFP(value, type);
  }
  return ptx::is_half(to) ? float_to_half(e, result, to, rounding) : result;
}

void cvt_two_halves(Emitter& e, Decoded& i, Type to, FloatMode mode, bool finite) {
  i.done(3);
  Type half = to == Type::f16x2 ? Type::f16 : Type::bf16;
  auto convert = [&](size_t n) {
    llvm::Value* value = finish_float(e, e.read(i, n, Type::f32), Type::f32, mode);
    llvm::Value* bits = float_to_half(e, value, half, mode.rounding);
    return e.builder.CreateZExt(finite ? saturate_half(e, bits, half) : bits, e.builder.getInt32Ty());
  };
  e.write(i.operand(0), e.builder.CreateOr(e.builder.CreateShl(convert(1), 16), convert(2)), to);
}

// cvt.pack: two saturated numbers. For numbers of fewer than 16 bits, operand c is shifted left and merged
// in.
void cvt_pack(Emitter& e, Decoded& i) {
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
    llvm::Value* value = e.intrinsic(llvm::Intrinsic::smax, {e.read(i, n, from), e.i32(least)});
    return e.builder.CreateAnd(e.intrinsic(llvm::Intrinsic::smin, {value, e.i32(most)}),
                               e.i32((1u << bits) - 1));
  };
  llvm::Value* result = e.builder.CreateOr(e.builder.CreateShl(part(1), bits), part(2));
  if (third) result = e.builder.CreateOr(result, e.builder.CreateShl(e.read(i, 3, Type::b32), 2 * bits));
  e.write(i.operand(0), result, Type::b32);
}

}  // namespace

void cvt(Emitter& e, Decoded& i) {
  if (i.take("pack")) return cvt_pack(e, i);
  if (i.take("rs")) return cvt_stochastic(e, i);
  if (cvt_narrow(e, i)) return;
  bool to_integral = false;
  for (std::string_view word : {"rni", "rzi", "rmi", "rpi"}) to_integral |= i.peek(0) == word;
  FloatMode mode = take_float_mode(e, i);
  for (size_t n = 0; n < 4; ++n)
    if (i.peek(n) == "tf32") return cvt_tf32(e, i, mode);
  if (mode.rounding == Rounding::nearest_away) i.fail(".rna is supported only for .tf32");
  const bool finite = i.take("satfinite");
  Type to = i.type(), from = i.type();
  if (finite && !ptx::is_half(to)) i.fail(".satfinite is not supported here");
  if (to == Type::pred || from == Type::pred || to == Type::b128 || from == Type::b128)
    i.fail("conversion between these types is not supported");
  if (ptx::is_packed_half(to) && from == Type::f32) return cvt_two_halves(e, i, to, mode, finite);
  i.done(2);
  if (ptx::is_packed_half(to) || ptx::is_packed_half(from) || ptx::is_untyped(to) || ptx::is_untyped(from))
    i.fail("conversion between these types is not supported");
  llvm::Value* value = read_float(e, i, 1, from, mode.flush && from == Type::f32);
  if (ptx::is_integer(from)) {
    if (ptx::is_integer(to))
      return e.write(i.operand(0), integer_to_integer(e, value, to, from, mode.saturate), to);
    llvm::Value* result = integer_to_float(e, value, to, from, mode.rounding);
    if (mode.saturate && ptx::is_half(to))
      result =
          float_to_half(e, finish_float(e, half_to_float(e, result, to), to, mode), to, Rounding::nearest);
    else if (mode.saturate)
      result = finish_float(e, result, to, mode);
    return e.write(i.operand(0), result, to);
  }
  if (ptx::is_half(from)) value = half_to_float(e, value, from);
  if (ptx::is_integer(to)) return e.write(i.operand(0), float_to_integer(e, value, to, mode.rounding), to);
  // Floating point to floating point; between types of equal size only rounding to an integral value has an
  // effect.
  if (to_integral) value = round_to_integral(e, value, mode.rounding);
  if (ptx::is_half(to)) {
    FloatMode clamp = mode;
    clamp.flush = false;
    bool same = from == to;
    value = float_to_half(e, finish_float(e, value, from, clamp), to,
                          to_integral || same ? Rounding::nearest : mode.rounding);
    if (finite) value = saturate_half(e, value, to);
    return e.write(i.operand(0), value, to);
  }
  llvm::Type* type = e.module.ir_type(to);
  if (value->getType()->isFloatTy() && to == Type::f64) {
    value = e.builder.CreateFPExt(value, type);
  } else if (value->getType()->isDoubleTy() && to == Type::f32) {
    if (is_directed(mode.rounding) && !to_integral)
      value = e.call_pure("softgpu_f64_to_f32", type, {value, e.i32(static_cast<uint32_t>(mode.rounding))});
    else
      value = e.builder.CreateFPTrunc(value, type);
  }
  e.write(i.operand(0), finish_float(e, value, to, mode), to);
}

}  // namespace gpupool::softgpu::codegen
