// cvt to and from formats of at most 8 bits, to tf32, and with stochastic rounding (.rs).
#include "server/softgpu/jit/codegen_narrow.h"

#include "server/softgpu/jit/codegen_float.h"
#include "server/softgpu/jit/codegen_half.h"
#include "server/softgpu/jit/instructions.h"
#include "server/softgpu/jit/narrow_float.h"

namespace gpupool::softgpu::codegen {
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

bool cvt_narrow(Emitter& e, Decoded& i) {
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
  llvm::Type *number = e.builder.getInt32Ty(), *single = e.builder.getFloatTy();
  llvm::Value* format = e.i32(static_cast<uint32_t>(narrow->format));
  const bool packed = ptx::is_packed_half(other);
  const Type half = other == Type::f16x2 ? Type::f16 : Type::bf16;
  const Type holder = narrow->bits == 4 ? Type::b8 : Type::b16;
  if (!to_narrow) {
    i.done(2);
    if (!packed) i.fail("conversion between these types is not supported");
    llvm::Value* pair = e.builder.CreateZExt(e.read(i, 1, holder), number);
    llvm::Value* result = e.i32(0);
    for (uint32_t n = 0; n < 2; ++n) {
      llvm::Value* bits =
          e.builder.CreateAnd(e.builder.CreateLShr(pair, n * narrow->bits), e.i32((1u << narrow->bits) - 1));
      llvm::Value* value = e.call_pure("softgpu_narrow_to_float", single, {bits, format});
      if (relu) value = finish_float(e, value, Type::f32, FloatMode{.relu = true});
      llvm::Value* part = e.builder.CreateZExt(float_to_half(e, value, half, Rounding::nearest), number);
      result = e.builder.CreateOr(result, e.builder.CreateShl(part, 16 * n));
    }
    e.write(i.operand(0), result, other);
    return true;
  }
  if (!packed && other != Type::f32) i.fail("conversion between these types is not supported");
  i.done(packed ? 2 : 3);
  llvm::Value* result = e.i32(0);
  for (uint32_t n = 0; n < 2; ++n) {  // the first of two operands is the upper half
    llvm::Value* value;
    if (packed) {
      llvm::Value* halves = e.read(i, 1, other);
      value = half_to_float(
          e, e.builder.CreateTrunc(e.builder.CreateLShr(halves, 16 * n), e.builder.getInt16Ty()), half);
    } else {
      value = e.read(i, 2 - n, Type::f32);
    }
    if (relu) value = finish_float(e, value, Type::f32, FloatMode{.relu = true});
    llvm::Value* bits = e.call_pure("softgpu_float_to_narrow", number, {value, format, e.i32(up)});
    result = e.builder.CreateOr(result, e.builder.CreateShl(bits, n * narrow->bits));
  }
  e.write(i.operand(0), e.builder.CreateTrunc(result, e.module.ir_type(holder)), holder);
  return true;
}

// cvt.rs: two halves or four smaller numbers, the first in the most significant place; the last operand holds
// random bits.
void cvt_stochastic(Emitter& e, Decoded& i) {
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
  llvm::Value* random = e.read(i, i.operand_count() - 1, Type::b32);
  llvm::Type* number = e.builder.getInt32Ty();
  auto byte = [&](uint32_t n) {
    return e.builder.CreateAnd(e.builder.CreateLShr(random, 8 * n), e.i32(0xFF));
  };
  llvm::Value* result = e.i32(0);
  for (uint32_t n = 0; n < row->count; ++n) {
    const bool upper = n < row->count / 2;
    llvm::Value* own = e.builder.CreateAnd(e.builder.CreateLShr(random, upper ? 16 : 0),
                                           e.i32(row->format == NarrowFormat::f16 ? 0x1FFF : 0xFFFF));
    if (row->format == NarrowFormat::e2m1)
      own = e.builder.CreateOr(e.builder.CreateShl(byte(upper ? 3 : 2), 8), byte(upper ? 1 : 0));
    llvm::Value* value = e.read(values[n], Type::f32);
    if (relu) value = finish_float(e, value, Type::f32, FloatMode{.relu = true});
    llvm::Value* bits = e.call_pure("softgpu_float_to_narrow_stochastic", number,
                                    {value, e.i32(static_cast<uint32_t>(row->format)), own,
                                     e.i32(row->format == NarrowFormat::f16 ? 13 : 16)});
    if (finite && row->count == 2)
      bits = e.builder.CreateZExt(saturate_half(e, e.builder.CreateTrunc(bits, e.builder.getInt16Ty()),
                                                row->format == NarrowFormat::f16 ? Type::f16 : Type::bf16),
                                  number);
    result = e.builder.CreateOr(e.builder.CreateShl(result, row->bits), bits);
  }
  const Type to = row->bits == 4 ? Type::b16 : Type::b32;
  e.write(i.operand(0), e.builder.CreateTrunc(result, e.module.ir_type(to)), to);
}

void cvt_tf32(Emitter& e, Decoded& i, FloatMode mode) {
  const bool saturate = i.take("satfinite");
  i.take("tf32");
  if (i.type() != Type::f32) i.fail("expected .f32");
  i.done(2);
  if (mode.rounding == Rounding::none || mode.rounding == Rounding::up || mode.rounding == Rounding::down)
    i.fail("expected .rn, .rz or .rna");
  llvm::Value* value = e.read(i, 1, Type::f32);
  if (mode.relu) value = finish_float(e, value, Type::f32, mode);
  e.write(i.operand(0),
          e.call_pure("softgpu_float_to_tf32", e.builder.getInt32Ty(),
                      {value, e.i32(static_cast<uint32_t>(mode.rounding)), e.i32(saturate)}),
          Type::b32);
}

// .satfinite for f16 and bf16: infinity becomes the largest finite number. Takes and returns bits.
llvm::Value* saturate_half(Emitter& e, llvm::Value* half, Type type) {
  llvm::Type* bits = e.builder.getInt16Ty();
  const uint32_t infinity = type == Type::f16 ? 0x7C00 : 0x7F80;
  llvm::Value* magnitude = e.builder.CreateAnd(half, llvm::ConstantInt::get(bits, 0x7FFF));
  llvm::Value* infinite = e.builder.CreateICmpEQ(magnitude, llvm::ConstantInt::get(bits, infinity));
  return e.builder.CreateSelect(infinite, e.builder.CreateSub(half, llvm::ConstantInt::get(bits, 1)), half);
}

}  // namespace gpupool::softgpu::codegen
