// f16 and bf16, single and packed. Values are held as integers, computed in f32 or f64, and rounded once.
#include "server/softgpu/jit/codegen.h"
#include "server/softgpu/jit/support.h"

namespace gpupool::softgpu {

llvm::Value* FunctionCodegen::for_halves(
    Type type, std::initializer_list<llvm::Value*> operands,
    const std::function<llvm::Value*(Type, std::vector<llvm::Value*>)>& operation) {
  if (!ptx::is_packed_half(type)) return operation(type, operands);
  Type half = type == Type::f16x2 ? Type::f16 : Type::bf16;
  llvm::Value* result = nullptr;
  for (uint32_t n = 0; n < 2; ++n) {
    std::vector<llvm::Value*> parts;
    for (llvm::Value* operand : operands)
      parts.push_back(b_.CreateTrunc(b_.CreateLShr(operand, 16 * n), b_.getInt16Ty()));
    llvm::Value* part = b_.CreateZExt(operation(half, parts), b_.getInt32Ty());
    result = n ? b_.CreateOr(result, b_.CreateShl(part, 16)) : part;
  }
  return result;
}

llvm::Value* FunctionCodegen::half_to_float(llvm::Value* half, Type type) {
  llvm::Type* single = b_.getFloatTy();
  if (type == Type::bf16)
    return b_.CreateBitCast(b_.CreateShl(b_.CreateZExt(half, b_.getInt32Ty()), 16), single);
  if (host_converts_half()) return b_.CreateFPExt(b_.CreateBitCast(half, b_.getHalfTy()), single);
  return call_pure("softgpu_half_to_float", single, {b_.CreateZExt(half, b_.getInt32Ty())});
}

// `value` is a float or a double. A double is first rounded to odd, to a float whose last bit records
// inexactness, so that the second rounding is correct.
llvm::Value* FunctionCodegen::float_to_half(llvm::Value* value, Type type, Rounding rounding) {
  if (value->getType()->isDoubleTy()) {
    llvm::Value* single = b_.CreateFPTrunc(value, b_.getFloatTy());
    llvm::Value* back = b_.CreateFPExt(single, b_.getDoubleTy());
    llvm::Value* bits = b_.CreateBitCast(single, b_.getInt32Ty());
    llvm::Value* above =
        b_.CreateFCmpOGT(intrinsic(llvm::Intrinsic::fabs, {back}), intrinsic(llvm::Intrinsic::fabs, {value}));
    bits = b_.CreateSub(bits, b_.CreateZExt(above, b_.getInt32Ty()));
    bits = b_.CreateOr(bits, b_.CreateZExt(b_.CreateFCmpONE(back, value), b_.getInt32Ty()));
    value = b_.CreateBitCast(bits, b_.getFloatTy());
  }
  bool nearest = rounding == Rounding::nearest || rounding == Rounding::none;
  if (type == Type::f16 && nearest && host_converts_half()) {
    llvm::Value* bits = b_.CreateBitCast(b_.CreateFPTrunc(value, b_.getHalfTy()), b_.getInt16Ty());
    return b_.CreateSelect(b_.CreateFCmpUNO(value, value), b_.getInt16(0x7FFF), bits);
  }
  if (type == Type::bf16 && nearest) {
    llvm::Value* bits = b_.CreateBitCast(value, b_.getInt32Ty());
    llvm::Value* odd = b_.CreateAnd(b_.CreateLShr(bits, 16), i32(1));
    llvm::Value* rounded = b_.CreateLShr(b_.CreateAdd(bits, b_.CreateAdd(odd, i32(0x7FFF))), 16);
    llvm::Value* result = b_.CreateSelect(b_.CreateFCmpUNO(value, value), i32(0x7FFF), rounded);
    return b_.CreateTrunc(result, b_.getInt16Ty());
  }
  const char* name = type == Type::f16 ? "softgpu_float_to_half" : "softgpu_float_to_bf16";
  Rounding mode = nearest ? Rounding::nearest : rounding;
  return b_.CreateTrunc(call_pure(name, b_.getInt32Ty(), {value, i32(static_cast<uint32_t>(mode))}),
                        b_.getInt16Ty());
}

llvm::Value* FunctionCodegen::half_arithmetic(std::string_view op, Type type,
                                              const std::vector<llvm::Value*>& halves, FloatMode mode) {
  const bool flush = mode.flush;
  mode.flush = false;  // flushing applies to the half, not to the intermediate f32
  auto flushed = [&](llvm::Value* half) -> llvm::Value* {  // replaces subnormals by zeros of the same sign
    if (!flush) return half;
    llvm::Value* exponent = b_.CreateAnd(half, b_.getInt16(type == Type::f16 ? 0x7C00 : 0x7F80));
    return b_.CreateSelect(b_.CreateIsNull(exponent), b_.CreateAnd(half, b_.getInt16(0x8000)), half);
  };
  std::vector<llvm::Value*> v;
  for (llvm::Value* half : halves) v.push_back(half_to_float(flushed(half), type));
  llvm::Value* result;
  if (op == "add")
    result = b_.CreateFAdd(v[0], v[1]);
  else if (op == "sub")
    result = b_.CreateFSub(v[0], v[1]);
  else if (op == "mul")
    result = b_.CreateFMul(v[0], v[1]);
  else if (op == "min" || op == "max")
    result = minimum(v[0], v[1], op == "max", false);
  else if (type == Type::bf16)
    result = call_pure("softgpu_fma_bf16", b_.getFloatTy(), {v[0], v[1], v[2]});
  else {
    // The product of two f16 is exact in f64, and the rounding error of the sum is too small to affect an
    // f16.
    for (llvm::Value*& value : v) value = b_.CreateFPExt(value, b_.getDoubleTy());
    result = b_.CreateFAdd(b_.CreateFMul(v[0], v[1]), v[2]);
  }
  return flushed(float_to_half(finish_float(result, type, mode), type, Rounding::nearest));
}

void FunctionCodegen::half_binary(Decoded& i, Type type, FloatMode mode) {
  if (mode.rounding != Rounding::none && mode.rounding != Rounding::nearest) i.fail("only .rn is supported");
  llvm::Value* result = for_halves(
      type, {read(i, 1, type), read(i, 2, type)},
      [&](Type half, std::vector<llvm::Value*> v) { return half_arithmetic(i.opcode(), half, v, mode); });
  write(i.operand(0), result, type);
}

void FunctionCodegen::half_fma(Decoded& i, Type type, FloatMode mode) {
  if (mode.zero_outside && type != Type::f16 && type != Type::f16x2) i.fail(".oob is supported only for f16");
  if (mode.rounding != Rounding::none && mode.rounding != Rounding::nearest) i.fail("only .rn is supported");
  llvm::Value* result = for_halves(type, {read(i, 1, type), read(i, 2, type), read(i, 3, type)},
                                   [&](Type half, std::vector<llvm::Value*> v) {
                                     llvm::Value* value = half_arithmetic("fma", half, v, mode);
                                     if (!mode.zero_outside) return value;
                                     // A factor from outside a tensor (kOutsideHalf) makes the result zero.
                                     llvm::Value* outside =
                                         b_.CreateOr(b_.CreateICmpEQ(v[0], b_.getInt16(kOutsideHalf)),
                                                     b_.CreateICmpEQ(v[1], b_.getInt16(kOutsideHalf)));
                                     return b_.CreateSelect(outside, b_.getInt16(0), value);
                                   });
  write(i.operand(0), result, type);
}

}  // namespace gpupool::softgpu
