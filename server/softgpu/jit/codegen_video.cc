// Video instructions: scalar ones, whose operands may be parts of registers and which have a secondary
// operation or a merge; and SIMD ones on four bytes or two 16-bit numbers.
#include "server/softgpu/jit/codegen.h"

namespace gpupool::softgpu {
namespace {

struct Part {
  uint32_t bits = 32, shift = 0;
};

// Parses .b0 to .b3, .h0 and .h1.
Part part_of(Decoded& i, std::string_view name) {
  if (name.empty()) return {};
  if (name.size() == 2 && name[0] == 'b' && name[1] >= '0' && name[1] <= '3')
    return {8, static_cast<uint32_t>(name[1] - '0') * 8};
  if (name == "h0" || name == "h1") return {16, name == "h0" ? 0u : 16u};
  i.fail("." + std::string(name.substr(0, 20)) + " is not a part of a register");
}

Operand without_part(const Operand& operand) {
  Operand plain = operand;
  plain.part = {};
  plain.is_minus = false;
  return plain;
}

void expect_words(Decoded& i, std::initializer_list<Type> types) {
  for (Type type : types)
    if (type != Type::u32 && type != Type::s32) i.fail("expected .u32 or .s32");
}

// Returns which number of two registers a lane takes: "h10", "b7654"; the selector of the most significant
// lane is first.
uint32_t selected(Decoded& i, std::string_view name, uint32_t lanes, uint32_t lane, uint32_t otherwise) {
  if (name.empty()) return otherwise;
  if (name.size() != lanes + 1 || name[0] != (lanes == 2 ? 'h' : 'b')) i.fail("invalid lane selector");
  const auto number = static_cast<uint32_t>(name[lanes - lane] - '0');
  if (number >= 2 * lanes) i.fail("invalid lane selector");
  return number;
}

}  // namespace

llvm::Value* FunctionCodegen::clamp(llvm::Value* value, uint32_t bits, bool is_signed) {
  llvm::Type* type = value->getType();
  const int64_t high = (int64_t{1} << (is_signed ? bits - 1 : bits)) - 1, low = is_signed ? -high - 1 : 0;
  value = intrinsic(llvm::Intrinsic::smax, {value, llvm::ConstantInt::getSigned(type, low)});
  return intrinsic(llvm::Intrinsic::smin, {value, llvm::ConstantInt::getSigned(type, high)});
}

llvm::Value* FunctionCodegen::video_operand(Decoded& i, size_t index, Type type, llvm::Type* wide) {
  const Part part = part_of(i, i.operand(index).part);
  llvm::Value* value = b_.CreateLShr(read(without_part(i.operand(index)), type), part.shift);
  value = b_.CreateTrunc(value, m_.int_type(part.bits));
  return ptx::is_signed(type) ? b_.CreateSExt(value, wide) : b_.CreateZExt(value, wide);
}

// `value` must be wide enough for the result before saturation.
void FunctionCodegen::finish_video(Decoded& i, llvm::Value* value, Type to, bool saturate,
                                   std::string_view second) {
  const Operand& target = i.operand(0);
  const Part part = part_of(i, target.part);
  const bool merges = !target.part.empty();
  i.done(second.empty() && !merges ? 3 : 4);
  if (merges && !second.empty())
    i.fail("a partial destination cannot be combined with a secondary operation");
  if (saturate) value = clamp(value, part.bits, ptx::is_signed(to));
  value = b_.CreateTrunc(value, b_.getInt32Ty());
  if (merges) {
    const uint32_t mask = ((1u << part.bits) - 1) << part.shift;
    value = b_.CreateAnd(b_.CreateShl(value, part.shift), i32(mask));
    value = b_.CreateOr(value, b_.CreateAnd(read(i, 3, Type::u32), i32(~mask)));
  } else if (second == "add") {
    value = b_.CreateAdd(value, read(i, 3, Type::u32));
  } else if (!second.empty()) {
    const bool is_signed = ptx::is_signed(to), least = second == "min";
    value = intrinsic(is_signed ? (least ? llvm::Intrinsic::smin : llvm::Intrinsic::smax)
                                : (least ? llvm::Intrinsic::umin : llvm::Intrinsic::umax),
                      {value, read(i, 3, Type::u32)});
  }
  write(without_part(target), value, Type::u32);
}

void FunctionCodegen::video(Decoded& i) {
  const std::string_view op = i.opcode().substr(1);
  const bool saturate = i.take("sat");
  llvm::Type* wide = m_.int_type(128);  // wide enough for products and for shifts by 32
  if (op == "mad") {
    const bool plus_one = i.take("po");
    const std::string_view scale = i.take_one({"shr7", "shr15"});
    const Type to = i.type(), left = i.type(), right = i.type();
    i.done(4);
    expect_words(i, {to, left, right});
    const bool minus = i.operand(1).is_minus != i.operand(2).is_minus;
    llvm::Value* product = b_.CreateMul(video_operand(i, 1, left, wide), video_operand(i, 2, right, wide));
    if (minus) product = b_.CreateNeg(product);
    const bool is_signed = ptx::is_signed(left) || ptx::is_signed(right) || minus;
    llvm::Value* added = read(without_part(i.operand(3)), Type::u32);
    added = is_signed ? b_.CreateSExt(added, wide) : b_.CreateZExt(added, wide);
    llvm::Value* value = i.operand(3).is_minus ? b_.CreateSub(product, added) : b_.CreateAdd(product, added);
    if (plus_one) value = b_.CreateAdd(value, llvm::ConstantInt::get(wide, 1));
    if (!scale.empty()) value = b_.CreateAShr(value, scale == "shr7" ? 7 : 15);
    if (saturate) value = clamp(value, 32, ptx::is_signed(to));
    return write(i.operand(0), b_.CreateTrunc(value, b_.getInt32Ty()), Type::u32);
  }
  const bool compares = op == "set", shifts = op == "shl" || op == "shr";
  const std::string_view comparison =
      compares ? i.take_one({"eq", "ne", "lt", "le", "gt", "ge"}) : std::string_view{};
  const std::string_view mode = shifts ? i.take_one({"clamp", "wrap"}) : std::string_view{};
  const std::string_view second = i.take_one({"add", "min", "max"});
  const Type to = compares ? Type::u32 : i.type(), left = i.type(), right = i.type();
  expect_words(i, {to, left, right});
  if ((compares && comparison.empty()) || (shifts && mode.empty()))
    i.fail("the comparison or the mode is missing");
  for (const size_t n : {1, 2})
    if (i.operand(n).is_minus) i.fail("only vmad takes negative operands");
  llvm::Value* a = video_operand(i, 1, left, wide);
  llvm::Value* b = video_operand(i, 2, right, wide);
  llvm::Value* value;
  if (shifts) {
    if (mode == "wrap")
      b = b_.CreateAnd(b, llvm::ConstantInt::get(wide, 31));
    else
      b = intrinsic(llvm::Intrinsic::umin, {b, llvm::ConstantInt::get(wide, 32)});
    value = op == "shl" ? b_.CreateShl(a, b) : b_.CreateAShr(a, b);
  } else if (compares) {
    value = b_.CreateZExt(compare(i, comparison, Type::s64, a, b), wide);
  } else if (op == "add") {
    value = b_.CreateAdd(a, b);
  } else if (op == "sub") {
    value = b_.CreateSub(a, b);
  } else if (op == "absdiff") {
    value = intrinsic(llvm::Intrinsic::smax, {b_.CreateSub(a, b), b_.CreateSub(b, a)});
  } else {
    value = intrinsic(op == "min" ? llvm::Intrinsic::smin : llvm::Intrinsic::smax, {a, b});
  }
  finish_video(i, value, to, saturate, second);
}

void FunctionCodegen::video_lanes(Decoded& i) {
  const std::string_view op = i.opcode().substr(1, i.opcode().size() - 2);
  const uint32_t lanes = i.opcode().back() == '4' ? 4 : 2, bits = 32 / lanes;
  const bool saturate = i.take("sat"), sums = i.take("add"), compares = op == "set";
  const std::string_view comparison =
      compares ? i.take_one({"eq", "ne", "lt", "le", "gt", "ge"}) : std::string_view{};
  const Type to = compares ? Type::u32 : i.type(), left = i.type(), right = i.type();
  i.done(4);
  expect_words(i, {to, left, right});
  if (compares && comparison.empty()) i.fail("the comparison is missing");
  const std::string_view mask = i.operand(0).part;  // "h10", "b20": the lanes to write
  if (!mask.empty() && (mask.size() < 2 || mask[0] != (lanes == 2 ? 'h' : 'b') ||
                        mask.find_first_not_of("0123", 1) != std::string_view::npos ||
                        mask[1] - '0' >= static_cast<int>(lanes)))
    i.fail("invalid lane mask");
  llvm::Value* sources[] = {read(without_part(i.operand(1)), Type::u32),
                            read(without_part(i.operand(2)), Type::u32)};
  llvm::Value* before = read(i, 3, Type::u32);
  llvm::Value* result = before;
  // The selectors number the lanes of both registers consecutively.
  auto lane = [&](std::string_view selector, Type type, uint32_t n, uint32_t otherwise) {
    const uint32_t from = selected(i, selector, lanes, n, otherwise);
    llvm::Value* value =
        b_.CreateTrunc(b_.CreateLShr(sources[from / lanes], from % lanes * bits), m_.int_type(bits));
    return ptx::is_signed(type) ? b_.CreateSExt(value, b_.getInt32Ty())
                                : b_.CreateZExt(value, b_.getInt32Ty());
  };
  for (uint32_t n = 0; n < lanes; ++n) {
    if (!mask.empty() && mask.find(static_cast<char>('0' + n), 1) == std::string_view::npos) continue;
    llvm::Value* x = lane(i.operand(1).part, left, n, n);
    llvm::Value* y = lane(i.operand(2).part, right, n, lanes + n);
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
    if (saturate) value = clamp(value, bits, ptx::is_signed(to));
    if (sums) {
      result = b_.CreateAdd(result, value);
      continue;
    }
    const uint32_t place = (lanes == 4 ? 0xFFu : 0xFFFFu) << n * bits;
    result = b_.CreateOr(b_.CreateAnd(result, i32(~place)),
                         b_.CreateAnd(b_.CreateShl(value, n * bits), i32(place)));
  }
  write(without_part(i.operand(0)), result, Type::u32);
}

}  // namespace gpupool::softgpu
