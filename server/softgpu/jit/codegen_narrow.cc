// cvt to and from formats of at most 8 bits, to tf32, and with stochastic rounding (.rs).
#include "server/softgpu/jit/codegen.h"
#include "server/softgpu/jit/narrow_float.h"

namespace gpupool::softgpu {
namespace {

struct NarrowRow {
  std::string_view name;
  NarrowFormat format;
  uint32_t bits;  // bits per number of the pair
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
  const bool to_narrow = ptx::find_type(i.peek(at)).has_value();  // the other type follows
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
    if (!packed) i.fail("conversion between these types is not supported");
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
  if (!packed && other != Type::f32) i.fail("conversion between these types is not supported");
  i.done(packed ? 2 : 3);
  llvm::Value* result = i32(0);
  for (uint32_t n = 0; n < 2; ++n) {  // the first of two operands is the upper half
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

// cvt.rs: two halves or four smaller numbers, the first in the most significant place; the last operand holds
// random bits.
void FunctionCodegen::cvt_stochastic(Decoded& i) {
  struct Row {
    std::string_view name;
    NarrowFormat format;
    uint32_t count, bits;
  };
  static constexpr Row kRows[] = {{"f16x2", NarrowFormat::f16, 2, 16},  {"bf16x2", NarrowFormat::bf16, 2, 16},
                                  {"e4m3x4", NarrowFormat::e4m3, 4, 8}, {"e5m2x4", NarrowFormat::e5m2, 4, 8},
                                  {"e2m3x4", NarrowFormat::e2m3, 4, 8}, {"e3m2x4", NarrowFormat::e3m2, 4, 8},
                                  {"e2m1x4", NarrowFormat::e2m1, 4, 4}};
  const bool relu = i.take("relu"), finite = i.take("satfinite");
  const Row* row = nullptr;
  for (const Row& one : kRows)
    if (i.take(one.name)) row = &one;
  if (!row || i.type() != Type::f32) i.fail("conversion between these types is not supported");
  i.done(row->count == 2 ? 4 : 3);
  std::span<const Operand> values(&i.operand(1), 2);
  if (row->count == 4) values = i.elements(i.operand(1));
  if (values.size() != row->count) i.fail("expected four numbers");
  llvm::Value* random = read(i, i.operand_count() - 1, Type::b32);
  llvm::Type* number = b_.getInt32Ty();
  auto byte = [&](uint32_t n) { return b_.CreateAnd(b_.CreateLShr(random, 8 * n), i32(0xFF)); };
  llvm::Value* result = i32(0);
  for (uint32_t n = 0; n < row->count; ++n) {
    const bool upper = n < row->count / 2;
    llvm::Value* own = b_.CreateAnd(b_.CreateLShr(random, upper ? 16 : 0),
                                    i32(row->format == NarrowFormat::f16 ? 0x1FFF : 0xFFFF));
    if (row->format == NarrowFormat::e2m1)
      own = b_.CreateOr(b_.CreateShl(byte(upper ? 3 : 2), 8), byte(upper ? 1 : 0));
    llvm::Value* value = read(values[n], Type::f32);
    if (relu) value = finish_float(value, Type::f32, FloatMode{.relu = true});
    llvm::Value* bits = call_pure("softgpu_float_to_narrow_stochastic", number,
                                  {value, i32(static_cast<uint32_t>(row->format)), own,
                                   i32(row->format == NarrowFormat::f16 ? 13 : 16)});
    if (finite && row->count == 2)
      bits = b_.CreateZExt(saturate_half(b_.CreateTrunc(bits, b_.getInt16Ty()),
                                         row->format == NarrowFormat::f16 ? Type::f16 : Type::bf16),
                           number);
    result = b_.CreateOr(b_.CreateShl(result, row->bits), bits);
  }
  const Type to = row->bits == 4 ? Type::b16 : Type::b32;
  write(i.operand(0), b_.CreateTrunc(result, m_.ir_type(to)), to);
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

// .satfinite for f16 and bf16: infinity becomes the largest finite number. Takes and returns bits.
llvm::Value* FunctionCodegen::saturate_half(llvm::Value* half, Type type) {
  llvm::Type* bits = b_.getInt16Ty();
  const uint32_t infinity = type == Type::f16 ? 0x7C00 : 0x7F80;
  llvm::Value* magnitude = b_.CreateAnd(half, llvm::ConstantInt::get(bits, 0x7FFF));
  llvm::Value* infinite = b_.CreateICmpEQ(magnitude, llvm::ConstantInt::get(bits, infinity));
  return b_.CreateSelect(infinite, b_.CreateSub(half, llvm::ConstantInt::get(bits, 1)), half);
}

}  // namespace gpupool::softgpu
