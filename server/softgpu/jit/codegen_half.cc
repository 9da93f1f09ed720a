// f16 and bf16, single and packed. Values are held as integers, computed in f32 or f64, and rounded once.
#include "server/softgpu/jit/codegen_half.h"

#include "server/softgpu/jit/codegen_float.h"
#include "server/softgpu/jit/instructions.h"
#include "server/softgpu/jit/support.h"

namespace gpupool::softgpu::codegen {

llvm::Value* for_halves(Emitter& e, Type type, std::initializer_list<llvm::Value*> operands,
                        const std::function<llvm::Value*(Type, std::vector<llvm::Value*>)>& operation) {
  if (!ptx::is_packed_half(type)) return operation(type, operands);
  Type half = type == Type::f16x2 ? Type::f16 : Type::bf16;
  llvm::Value* result = nullptr;
  for (uint32_t n = 0; n < 2; ++n) {
    std::vector<llvm::Value*> parts;
    for (llvm::Value* operand : operands)
      parts.push_back(e.builder.CreateTrunc(e.builder.CreateLShr(operand, 16 * n), e.builder.getInt16Ty()));
    llvm::Value* part = e.builder.CreateZExt(operation(half, parts), e.builder.getInt32Ty());
    result = n ? e.builder.CreateOr(result, e.builder.CreateShl(part, 16)) : part;
  }
  return result;
}

llvm::Value* half_to_float(Emitter& e, llvm::Value* half, Type type) {
  llvm::Type* single = e.builder.getFloatTy();
  if (type == Type::bf16)
    return e.builder.CreateBitCast(
        e.builder.CreateShl(e.builder.CreateZExt(half, e.builder.getInt32Ty()), 16), single);
  if (host_converts_half())
    return e.builder.CreateFPExt(e.builder.CreateBitCast(half, e.builder.getHalfTy()), single);
  return e.call_pure("softgpu_half_to_float", single, {e.builder.CreateZExt(half, e.builder.getInt32Ty())});
}

// `value` is a float or a double. A double is first rounded to odd, to a float whose last bit records
// inexactness, so that the second rounding is correct.
llvm::Value* float_to_half(Emitter& e, llvm::Value* value, Type type, Rounding rounding) {
  if (value->getType()->isDoubleTy()) {
    llvm::Value* single = e.builder.CreateFPTrunc(value, e.builder.getFloatTy());
    llvm::Value* back = e.builder.CreateFPExt(single, e.builder.getDoubleTy());
    llvm::Value* bits = e.builder.CreateBitCast(single, e.builder.getInt32Ty());
    llvm::Value* above = e.builder.CreateFCmpOGT(e.intrinsic(llvm::Intrinsic::fabs, {back}),
                                                 e.intrinsic(llvm::Intrinsic::fabs, {value}));
    bits = e.builder.CreateSub(bits, e.builder.CreateZExt(above, e.builder.getInt32Ty()));
    bits = e.builder.CreateOr(
        bits, e.builder.CreateZExt(e.builder.CreateFCmpONE(back, value), e.builder.getInt32Ty()));
    value = e.builder.CreateBitCast(bits, e.builder.getFloatTy());
  }
  bool nearest = rounding == Rounding::nearest || rounding == Rounding::none;
  if (type == Type::f16 && nearest && host_converts_half()) {
    llvm::Value* bits = e.builder.CreateBitCast(e.builder.CreateFPTrunc(value, e.builder.getHalfTy()),
                                                e.builder.getInt16Ty());
    return e.builder.CreateSelect(e.builder.CreateFCmpUNO(value, value), e.builder.getInt16(0x7FFF), bits);
  }
  if (type == Type::bf16 && nearest) {
    llvm::Value* bits = e.builder.CreateBitCast(value, e.builder.getInt32Ty());
    llvm::Value* odd = e.builder.CreateAnd(e.builder.CreateLShr(bits, 16), e.i32(1));
    llvm::Value* rounded =
        e.builder.CreateLShr(e.builder.CreateAdd(bits, e.builder.CreateAdd(odd, e.i32(0x7FFF))), 16);
    llvm::Value* result =
        e.builder.CreateSelect(e.builder.CreateFCmpUNO(value, value), e.i32(0x7FFF), rounded);
    return e.builder.CreateTrunc(result, e.builder.getInt16Ty());
  }
  const char* name = type == Type::f16 ? "softgpu_float_to_half" : "softgpu_float_to_bf16";
  Rounding mode = nearest ? Rounding::nearest : rounding;
  return e.builder.CreateTrunc(
      e.call_pure(name, e.builder.getInt32Ty(), {value, e.i32(static_cast<uint32_t>(mode))}),
      e.builder.getInt16Ty());
}

llvm::Value* half_arithmetic(Emitter& e, std::string_view op, Type type,
                             const std::vector<llvm::Value*>& halves, FloatMode mode) {
  const bool flush = mode.flush;
  mode.flush = false;  // flushing applies to the half, not to the intermediate f32
  auto flushed = [&](llvm::Value* half) -> llvm::Value* {  // replaces subnormals by zeros of the same sign
    if (!flush) return half;
    llvm::Value* exponent =
        e.builder.CreateAnd(half, e.builder.getInt16(type == Type::f16 ? 0x7C00 : 0x7F80));
    return e.builder.CreateSelect(e.builder.CreateIsNull(exponent),
                                  e.builder.CreateAnd(half, e.builder.getInt16(0x8000)), half);
  };
  std::vector<llvm::Value*> v;
  for (llvm::Value* half : halves) v.push_back(half_to_float(e, flushed(half), type));
  llvm::Value* result;
  if (op == "add")
    result = e.builder.CreateFAdd(v[0], v[1]);
  else if (op == "sub")
    result = e.builder.CreateFSub(v[0], v[1]);
  else if (op == "mul")
    result = e.builder.CreateFMul(v[0], v[1]);
  else if (op == "min" || op == "max")
    result = minimum(e, v[0], v[1], op == "max", false);
  else if (type == Type::bf16)
    result = e.call_pure("softgpu_fma_bf16", e.builder.getFloatTy(), {v[0], v[1], v[2]});
  else {
    // The product of two f16 is exact in f64, and the rounding error of the sum is too small to affect an
    // f16.
    for (llvm::Value*& value : v) value = e.builder.CreateFPExt(value, e.builder.getDoubleTy());
    result = e.builder.CreateFAdd(e.builder.CreateFMul(v[0], v[1]), v[2]);
  }
  return flushed(float_to_half(e, finish_float(e, result, type, mode), type, Rounding::nearest));
}

void half_binary(Emitter& e, Decoded& i, Type type, FloatMode mode) {
  if (mode.rounding != Rounding::none && mode.rounding != Rounding::nearest) i.fail("only .rn is supported");
  llvm::Value* result = for_halves(
      e, type, {e.read(i, 1, type), e.read(i, 2, type)},
      [&](Type half, std::vector<llvm::Value*> v) { return half_arithmetic(e, i.opcode(), half, v, mode); });
  e.write(i.operand(0), result, type);
}

void half_fma(Emitter& e, Decoded& i, Type type, FloatMode mode) {
  if (mode.zero_outside && type != Type::f16 && type != Type::f16x2) i.fail(".oob is supported only for f16");
  if (mode.rounding != Rounding::none && mode.rounding != Rounding::nearest) i.fail("only .rn is supported");
  llvm::Value* result = for_halves(e, type, {e.read(i, 1, type), e.read(i, 2, type), e.read(i, 3, type)},
                                   [&](Type half, std::vector<llvm::Value*> v) {
                                     llvm::Value* value = half_arithmetic(e, "fma", half, v, mode);
                                     if (!mode.zero_outside) return value;
                                     // A factor from outside a tensor (kOutsideHalf) makes the result zero.
                                     llvm::Value* outside = e.builder.CreateOr(
                                         e.builder.CreateICmpEQ(v[0], e.builder.getInt16(kOutsideHalf)),
                                         e.builder.CreateICmpEQ(v[1], e.builder.getInt16(kOutsideHalf)));
                                     return e.builder.CreateSelect(outside, e.builder.getInt16(0), value);
                                   });
  e.write(i.operand(0), result, type);
}

}  // namespace gpupool::softgpu::codegen
