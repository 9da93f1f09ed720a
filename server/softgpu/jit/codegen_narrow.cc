// cvt to and from the formats of at most 8 bits, and to tf32.
#include "server/softgpu/jit/codegen.h"
#include "server/softgpu/jit/narrow_float.h"

namespace gpupool::softgpu {
namespace {

struct NarrowRow {
  std::string_view name;
  NarrowFormat format;
  uint32_t bits;  // of one number within the pair
};
constexpr NarrowRow kNarrow[] = {{"e4m3x2", NarrowFormat::e4m3, 8}, {"e5m2x2", NarrowFormat::e5m2, 8},
                                 {"e2m3x2", NarrowFormat::e2m3, 8}, {"e3m2x2", NarrowFormat::e3m2, 8},
                                 {"e2m1x2", NarrowFormat::e2m1, 4}, {"ue8m0x2", NarrowFormat::ue8m0, 8}};

}  // namespace

bool FunctionCodegen::cvt_narrow(Decoded& i) {
  const NarrowRow* narrow = nullptr;
  size_t at = 0;
  for (; !narrow && !i.peek(at).empty(); ++at)
    for (const NarrowRow& row : kNarrow)
      if (row.name == i.peek(at)) narrow = &row;
  if (!narrow) return false;
  const bool to_narrow = ptx::find_type(i.peek(at)).has_value();  // the other type comes after it
  i.take(narrow->name);
  const bool up = i.take("rp");
  if (narrow->format == NarrowFormat::ue8m0) i.take("rz");
  i.take_any({"rn", "satfinite"});
  const bool relu = i.take("relu");
  const Type other = i.type();
  llvm::Type *number = b_.getInt32Ty(), *single = b_.getFloatTy();
  llvm::Value* format = i32(static_cast<uint32_t>(narrow->format));
  const bool packed = ptx::is_packed_half(other);
  const Type half = other == Type::f16x2 ? Type::f16 : Type::bf16;
  const Type holder = narrow->bits == 4 ? Type::b8 : Type::b16;
  if (!to_narrow) {
    i.done(2);
    if (!packed) i.fail("types that cannot be converted");
    llvm::Value* pair = b_.CreateZExt(read(i, 1, holder), number);
    llvm::Value* result = i32(0);
    for (uint32_t n = 0; n < 2; ++n) {
      llvm::Value* bits = b_.CreateAnd(b_.CreateLShr(pair, n * narrow->bits), i32((1u << narrow->bits) - 1));
      llvm::Value* value = call_pure("softgpu_narrow_to_float", single, {bits, format});
      if (relu) value = finish_float(value, Type::f32, FloatMode{.relu = true});
      llvm::Value* part = b_.CreateZExt(float_to_half(value, half, Rounding::nearest), number);
      result = b_.CreateOr(result, b_.CreateShl(part, 16 * n));
    }
    write(i.operand(0), result, other);
    return true;
  }
  if (!packed && other != Type::f32) i.fail("types that cannot be converted");
  i.done(packed ? 2 : 3);
  llvm::Value* result = i32(0);
  for (uint32_t n = 0; n < 2; ++n) {  // of two operands the first is the upper half
    llvm::Value* value;
    if (packed) {
      llvm::Value* halves = read(i, 1, other);
      value = half_to_float(b_.CreateTrunc(b_.CreateLShr(halves, 16 * n), b_.getInt16Ty()), half);
    } else {
      value = read(i, 2 - n, Type::f32);
    }
    if (relu) value = finish_float(value, Type::f32, FloatMode{.relu = true});
    llvm::Value* bits = call_pure("softgpu_float_to_narrow", number, {value, format, i32(up)});
    result = b_.CreateOr(result, b_.CreateShl(bits, n * narrow->bits));
  }
  write(i.operand(0), b_.CreateTrunc(result, m_.ir_type(holder)), holder);
  return true;
}

void FunctionCodegen::cvt_tf32(Decoded& i, FloatMode mode) {
  const bool saturate = i.take("satfinite");
  i.take("tf32");
  if (i.type() != Type::f32) i.fail("expected .f32");
  i.done(2);
  if (mode.rounding == Rounding::none || mode.rounding == Rounding::up || mode.rounding == Rounding::down)
    i.fail("expected .rn, .rz or .rna");
  llvm::Value* value = read(i, 1, Type::f32);
  if (mode.relu) value = finish_float(value, Type::f32, mode);
  write(i.operand(0),
        call_pure("softgpu_float_to_tf32", b_.getInt32Ty(),
                  {value, i32(static_cast<uint32_t>(mode.rounding)), i32(saturate)}),
        Type::b32);
}

// .satfinite of f16 and bf16: what would be infinite is the largest number. Takes and gives bits.
llvm::Value* FunctionCodegen::saturate_half(llvm::Value* half, Type type) {
  llvm::Type* bits = b_.getInt16Ty();
  const uint32_t infinity = type == Type::f16 ? 0x7C00 : 0x7F80;
  llvm::Value* magnitude = b_.CreateAnd(half, llvm::ConstantInt::get(bits, 0x7FFF));
  llvm::Value* infinite = b_.CreateICmpEQ(magnitude, llvm::ConstantInt::get(bits, infinity));
  return b_.CreateSelect(infinite, b_.CreateSub(half, llvm::ConstantInt::get(bits, 1)), half);
}

}  // namespace gpupool::softgpu
