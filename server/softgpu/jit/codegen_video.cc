// SIMD video instructions: four bytes or two 16-bit numbers at once, optionally summed into c.
#include "server/softgpu/jit/codegen.h"

namespace gpupool::softgpu {

void FunctionCodegen::video(Decoded& i) {
  std::string_view op = i.opcode().substr(1, i.opcode().size() - 2);
  uint32_t lanes = i.opcode().back() == '4' ? 4 : 2, bits = 32 / lanes;
  bool saturate = i.take("sat"), sums = i.take("add");
  std::string_view comparison =
      op == "set" ? i.take_one({"eq", "ne", "lt", "le", "gt", "ge"}) : std::string_view{};
  Type to = i.type(), left = i.type(), right = i.type();
  i.done(4);
  for (Type type : {to, left, right})
    if (type != Type::u32 && type != Type::s32) i.fail("expected .u32 or .s32");
  llvm::Value* a = read(i, 1, left);
  llvm::Value* b = read(i, 2, right);
  llvm::Value* result = sums ? read(i, 3, Type::u32) : i32(0);
  auto lane = [&](llvm::Value* value, Type type, uint32_t n) {
    llvm::Value* part = b_.CreateTrunc(b_.CreateLShr(value, n * bits), m_.int_type(bits));
    return ptx::is_signed(type) ? b_.CreateSExt(part, b_.getInt32Ty()) : b_.CreateZExt(part, b_.getInt32Ty());
  };
  for (uint32_t n = 0; n < lanes; ++n) {
    llvm::Value* x = lane(a, left, n);
    llvm::Value* y = lane(b, right, n);
    llvm::Value* value;
    if (op == "add")
      value = b_.CreateAdd(x, y);
    else if (op == "sub")
      value = b_.CreateSub(x, y);
    else if (op == "avrg")
      value = b_.CreateAShr(b_.CreateAdd(b_.CreateAdd(x, y), i32(1)), 1);
    else if (op == "absdiff")
      value = intrinsic(llvm::Intrinsic::smax, {b_.CreateSub(x, y), b_.CreateSub(y, x)});
    else if (op == "min")
      value = intrinsic(llvm::Intrinsic::smin, {x, y});
    else if (op == "max")
      value = intrinsic(llvm::Intrinsic::smax, {x, y});
    else
      value = b_.CreateZExt(compare(i, comparison, Type::s32, x, y), b_.getInt32Ty());
    if (saturate) {
      bool is_signed = ptx::is_signed(to);
      int32_t high = static_cast<int32_t>((is_signed ? 1u << (bits - 1) : 1u << bits) - 1),
              low = is_signed ? -high - 1 : 0;
      value = intrinsic(llvm::Intrinsic::smax, {value, i32(static_cast<uint32_t>(low))});
      value = intrinsic(llvm::Intrinsic::smin, {value, i32(static_cast<uint32_t>(high))});
    }
    if (sums)
      result = b_.CreateAdd(result, value);
    else
      result = b_.CreateOr(result,
                           b_.CreateShl(b_.CreateAnd(value, i32((bits == 8 ? 0xFFu : 0xFFFFu))), n * bits));
  }
  write(i.operand(0), result, Type::u32);
}

}  // namespace gpupool::softgpu
