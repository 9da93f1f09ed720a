// Video instructions: scalar ones, whose operands may be parts of registers and which have a secondary
// operation or a merge; and SIMD ones on four bytes or two 16-bit numbers.
#include "server/softgpu/jit/codegen_compare.h"
#include "server/softgpu/jit/instructions.h"

namespace gpupool::softgpu::codegen {
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

llvm::Value* clamp(Emitter& e, llvm::Value* value, uint32_t bits, bool is_signed) {
  llvm::Type* type = value->getType();
  const int64_t high = (int64_t{1} << (is_signed ? bits - 1 : bits)) - 1, low = is_signed ? -high - 1 : 0;
  value = e.intrinsic(llvm::Intrinsic::smax, {value, llvm::ConstantInt::getSigned(type, low)});
  return e.intrinsic(llvm::Intrinsic::smin, {value, llvm::ConstantInt::getSigned(type, high)});
}

llvm::Value* video_operand(Emitter& e, Decoded& i, size_t index, Type type, llvm::Type* wide) {
  const Part part = part_of(i, i.operand(index).part);
  llvm::Value* value = e.builder.CreateLShr(e.read(without_part(i.operand(index)), type), part.shift);
  value = e.builder.CreateTrunc(value, e.module.int_type(part.bits));
  return ptx::is_signed(type) ? e.builder.CreateSExt(value, wide) : e.builder.CreateZExt(value, wide);
}

// `value` must be wide enough for the result before saturation.
void finish_video(Emitter& e, Decoded& i, llvm::Value* value, Type to, bool saturate,
                  std::string_view second) {
  const Operand& target = i.operand(0);
  const Part part = part_of(i, target.part);
  const bool merges = !target.part.empty();
  i.done(second.empty() && !merges ? 3 : 4);
  if (merges && !second.empty())
    i.fail("a partial destination cannot be combined with a secondary operation");
  if (saturate) value = clamp(e, value, part.bits, ptx::is_signed(to));
  value = e.builder.CreateTrunc(value, e.builder.getInt32Ty());
  if (merges) {
    const uint32_t mask = ((1u << part.bits) - 1) << part.shift;
    value = e.builder.CreateAnd(e.builder.CreateShl(value, part.shift), e.i32(mask));
    value = e.builder.CreateOr(value, e.builder.CreateAnd(e.read(i, 3, Type::u32), e.i32(~mask)));
  } else if (second == "add") {
    value = e.builder.CreateAdd(value, e.read(i, 3, Type::u32));
  } else if (!second.empty()) {
    const bool is_signed = ptx::is_signed(to), least = second == "min";
    value = e.intrinsic(is_signed ? (least ? llvm::Intrinsic::smin : llvm::Intrinsic::smax)
                                  : (least ? llvm::Intrinsic::umin : llvm::Intrinsic::umax),
                        {value, e.read(i, 3, Type::u32)});
  }
  e.write(without_part(target), value, Type::u32);
}

}  // namespace

void video(Emitter& e, Decoded& i) {
  const std::string_view op = i.opcode().substr(1);
  const bool saturate = i.take("sat");
  llvm::Type* wide = e.module.int_type(128);  // wide enough for products and for shifts by 32
  if (op == "mad") {
    const bool plus_one = i.take("po");
    const std::string_view scale = i.take_one({"shr7", "shr15"});
    const Type to = i.type(), left = i.type(), right = i.type();
    i.done(4);
    expect_words(i, {to, left, right});
    const bool minus = i.operand(1).is_minus != i.operand(2).is_minus;
    llvm::Value* product =
        e.builder.CreateMul(video_operand(e, i, 1, left, wide), video_operand(e, i, 2, right, wide));
    if (minus) product = e.builder.CreateNeg(product);
    const bool is_signed = ptx::is_signed(left) || ptx::is_signed(right) || minus;
    llvm::Value* added = e.read(without_part(i.operand(3)), Type::u32);
    added = is_signed ? e.builder.CreateSExt(added, wide) : e.builder.CreateZExt(added, wide);
    llvm::Value* value =
        i.operand(3).is_minus ? e.builder.CreateSub(product, added) : e.builder.CreateAdd(product, added);
    if (plus_one) value = e.builder.CreateAdd(value, llvm::ConstantInt::get(wide, 1));
    if (!scale.empty()) value = e.builder.CreateAShr(value, scale == "shr7" ? 7 : 15);
    if (saturate) value = clamp(e, value, 32, ptx::is_signed(to));
    return e.write(i.operand(0), e.builder.CreateTrunc(value, e.builder.getInt32Ty()), Type::u32);
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
  llvm::Value* a = video_operand(e, i, 1, left, wide);
  llvm::Value* b = video_operand(e, i, 2, right, wide);
  llvm::Value* value;
  if (shifts) {
    if (mode == "wrap")
      b = e.builder.CreateAnd(b, llvm::ConstantInt::get(wide, 31));
    else
      b = e.intrinsic(llvm::Intrinsic::umin, {b, llvm::ConstantInt::get(wide, 32)});
    value = op == "shl" ? e.builder.CreateShl(a, b) : e.builder.CreateAShr(a, b);
  } else if (compares) {
    value = e.builder.CreateZExt(compare(e, i, comparison, Type::s64, a, b), wide);
  } else if (op == "add") {
    value = e.builder.CreateAdd(a, b);
  } else if (op == "sub") {
    value = e.builder.CreateSub(a, b);
  } else if (op == "absdiff") {
    value = e.intrinsic(llvm::Intrinsic::smax, {e.builder.CreateSub(a, b), e.builder.CreateSub(b, a)});
  } else {
    value = e.intrinsic(op == "min" ? llvm::Intrinsic::smin : llvm::Intrinsic::smax, {a, b});
  }
  finish_video(e, i, value, to, saturate, second);
}

void video_lanes(Emitter& e, Decoded& i) {
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
  llvm::Value* sources[] = {e.read(without_part(i.operand(1)), Type::u32),
                            e.read(without_part(i.operand(2)), Type::u32)};
  llvm::Value* before = e.read(i, 3, Type::u32);
  llvm::Value* result = before;
  // The selectors number the lanes of both registers consecutively.
  auto lane = [&](std::string_view selector, Type type, uint32_t n, uint32_t otherwise) {
    const uint32_t from = selected(i, selector, lanes, n, otherwise);
    llvm::Value* value = e.builder.CreateTrunc(
        e.builder.CreateLShr(sources[from / lanes], from % lanes * bits), e.module.int_type(bits));
    return ptx::is_signed(type) ? e.builder.CreateSExt(value, e.builder.getInt32Ty())
                                : e.builder.CreateZExt(value, e.builder.getInt32Ty());
  };
  for (uint32_t n = 0; n < lanes; ++n) {
    if (!mask.empty() && mask.find(static_cast<char>('0' + n), 1) == std::string_view::npos) continue;
    llvm::Value* x = lane(i.operand(1).part, left, n, n);
    llvm::Value* y = lane(i.operand(2).part, right, n, lanes + n);
    llvm::Value* value;
    if (op == "add")
      value = e.builder.CreateAdd(x, y);
    else if (op == "sub")
      value = e.builder.CreateSub(x, y);
    else if (op == "avrg")
      value = e.builder.CreateAShr(e.builder.CreateAdd(e.builder.CreateAdd(x, y), e.i32(1)), 1);
    else if (op == "absdiff")
      value = e.intrinsic(llvm::Intrinsic::smax, {e.builder.CreateSub(x, y), e.builder.CreateSub(y, x)});
    else if (op == "min")
      value = e.intrinsic(llvm::Intrinsic::smin, {x, y});
    else if (op == "max")
      value = e.intrinsic(llvm::Intrinsic::smax, {x, y});
    else
      value = e.builder.CreateZExt(compare(e, i, comparison, Type::s32, x, y), e.builder.getInt32Ty());
    if (saturate) value = clamp(e, value, bits, ptx::is_signed(to));
    if (sums) {
      result = e.builder.CreateAdd(result, value);
      continue;
    }
    const uint32_t place = (lanes == 4 ? 0xFFu : 0xFFFFu) << n * bits;
    result = e.builder.CreateOr(e.builder.CreateAnd(result, e.i32(~place)),
                                e.builder.CreateAnd(e.builder.CreateShl(value, n * bits), e.i32(place)));
  }
  e.write(without_part(i.operand(0)), result, Type::u32);
}

}  // namespace gpupool::softgpu::codegen
