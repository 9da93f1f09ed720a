// setp, set, selp, slct.
#include "server/softgpu/jit/codegen_compare.h"

#include "server/softgpu/jit/codegen_float.h"
#include "server/softgpu/jit/codegen_half.h"
#include "server/softgpu/jit/instructions.h"

namespace gpupool::softgpu::codegen {
namespace {

struct ComparisonRow {
  std::string_view name;
  llvm::CmpInst::Predicate of_float, of_signed, of_unsigned;
};
using P = llvm::CmpInst::Predicate;
constexpr P kNone = P::BAD_ICMP_PREDICATE;
constexpr ComparisonRow kComparisons[] = {
    {"eq", P::FCMP_OEQ, P::ICMP_EQ, P::ICMP_EQ},
    {"ne", P::FCMP_ONE, P::ICMP_NE, P::ICMP_NE},
    {"lt", P::FCMP_OLT, P::ICMP_SLT, P::ICMP_ULT},
    {"le", P::FCMP_OLE, P::ICMP_SLE, P::ICMP_ULE},
    {"gt", P::FCMP_OGT, P::ICMP_SGT, P::ICMP_UGT},
    {"ge", P::FCMP_OGE, P::ICMP_SGE, P::ICMP_UGE},
    {"lo", kNone, P::ICMP_ULT, P::ICMP_ULT},
    {"ls", kNone, P::ICMP_ULE, P::ICMP_ULE},
    {"hi", kNone, P::ICMP_UGT, P::ICMP_UGT},
    {"hs", kNone, P::ICMP_UGE, P::ICMP_UGE},
    {"equ", P::FCMP_UEQ, kNone, kNone},
    {"neu", P::FCMP_UNE, kNone, kNone},
    {"ltu", P::FCMP_ULT, kNone, kNone},
    {"leu", P::FCMP_ULE, kNone, kNone},
    {"gtu", P::FCMP_UGT, kNone, kNone},
    {"geu", P::FCMP_UGE, kNone, kNone},
    {"num", P::FCMP_ORD, kNone, kNone},
    {"nan", P::FCMP_UNO, kNone, kNone},
};

}  // namespace

llvm::Value* compare(Emitter& e, Decoded& i, std::string_view op, Type type, llvm::Value* a, llvm::Value* b) {
  for (const ComparisonRow& row : kComparisons) {
    if (row.name != op) continue;
    if (ptx::is_half(type)) {
      a = half_to_float(e, a, type);
      b = half_to_float(e, b, type);
    }
    P predicate = ptx::is_float(type) ? row.of_float : ptx::is_signed(type) ? row.of_signed : row.of_unsigned;
    if (predicate == kNone) break;
    return ptx::is_float(type) ? e.builder.CreateFCmp(predicate, a, b)
                               : e.builder.CreateICmp(predicate, a, b);
  }
  i.fail("unknown comparison");
}

namespace {

llvm::Value* combine(Emitter& e, Decoded& i, std::string_view op, llvm::Value* result, const Operand& with) {
  llvm::Value* other = e.read_predicate(with);
  if (op == "and") return e.builder.CreateAnd(result, other);
  if (op == "or") return e.builder.CreateOr(result, other);
  return e.builder.CreateXor(result, other);
}

}  // namespace

void setp(Emitter& e, Decoded& i) {
  std::string_view op = i.take_next();
  std::string_view with = i.take_one({"and", "or", "xor"});
  bool flush = i.take("ftz");
  Type type = i.type();
  i.done(with.empty() ? 3 : 4);
  if (type == Type::pred) i.fail("predicates cannot be compared");
  auto [p, q] = e.split_pair(i, i.operand(0));
  llvm::Value* a = read_float(e, i, 1, type, flush && type == Type::f32);
  llvm::Value* b = read_float(e, i, 2, type, flush && type == Type::f32);
  if (ptx::is_packed_half(type)) {  // p and q receive the results of the two halves
    Type half = type == Type::f16x2 ? Type::f16 : Type::bf16;
    for (uint32_t n = 0; n < 2; ++n) {
      auto part = [&](llvm::Value* v) {
        return e.builder.CreateTrunc(e.builder.CreateLShr(v, 16 * n), e.builder.getInt16Ty());
      };
      llvm::Value* result = compare(e, i, op, half, part(a), part(b));
      if (!with.empty()) result = combine(e, i, with, result, i.operand(3));
      const Operand* target = n ? q : p;
      if (target) e.write(*target, result, Type::pred);
    }
    return;
  }
  llvm::Value* result = compare(e, i, op, type, a, b);
  llvm::Value* opposite = e.builder.CreateNot(result);
  if (!with.empty()) {  // compute both before writing either: p may be the predicate that is read
    result = combine(e, i, with, result, i.operand(3));
    if (q) opposite = combine(e, i, with, opposite, i.operand(3));
  }
  e.write(*p, result, Type::pred);
  if (q) e.write(*q, opposite, Type::pred);
}

void set(Emitter& e, Decoded& i) {
  std::string_view op = i.take_next();
  std::string_view with = i.take_one({"and", "or", "xor"});
  bool flush = i.take("ftz");
  Type to = i.type(), type = i.type();
  i.done(with.empty() ? 3 : 4);
  if (to == Type::pred || type == Type::pred) i.fail("predicates cannot be compared");
  llvm::Value* a = read_float(e, i, 1, type, flush && type == Type::f32);
  llvm::Value* b = read_float(e, i, 2, type, flush && type == Type::f32);
  auto one_result = [&](Type half, llvm::Value* x, llvm::Value* y) {
    llvm::Value* result = compare(e, i, op, half, x, y);
    return with.empty() ? result : combine(e, i, with, result, i.operand(3));
  };
  if (ptx::is_packed_half(type)) {
    bool as_float = ptx::is_packed_half(to);
    uint32_t one = !as_float ? 0xFFFF : to == Type::f16x2 ? 0x3C00 : 0x3F80;
    llvm::Value* result = for_halves(e, type, {a, b}, [&](Type half, std::vector<llvm::Value*> v) {
      return e.builder.CreateSelect(one_result(half, v[0], v[1]),
                                    e.builder.getInt16(static_cast<uint16_t>(one)), e.builder.getInt16(0));
    });
    return e.write(i.operand(0), result, Type::b32);
  }
  llvm::Value* result = one_result(type, a, b);
  llvm::Type* ir = e.module.ir_type(to);
  llvm::Value* yes;
  if (to == Type::f32 || to == Type::f64)
    yes = llvm::ConstantFP::get(ir, 1.0);
  else if (to == Type::f16)
    yes = llvm::ConstantInt::get(ir, 0x3C00);
  else if (to == Type::bf16)
    yes = llvm::ConstantInt::get(ir, 0x3F80);
  else
    yes = llvm::ConstantInt::getAllOnesValue(ir);
  e.write(i.operand(0), e.builder.CreateSelect(result, yes, llvm::Constant::getNullValue(ir)), to);
}

void selp(Emitter& e, Decoded& i) {
  Type type = i.type();
  i.done(4);
  llvm::Value* a = e.read(i, 1, type);
  llvm::Value* b = e.read(i, 2, type);
  e.write(i.operand(0), e.builder.CreateSelect(e.read_predicate(i.operand(3)), a, b), type);
}

void slct(Emitter& e, Decoded& i) {
  bool flush = i.take("ftz");
  Type type = i.type(), by = i.type();
  i.done(4);
  if (by != Type::s32 && by != Type::f32) i.fail("the selector must be .s32 or .f32");
  llvm::Value* c = read_float(e, i, 3, by, flush && by == Type::f32);
  llvm::Value* first = by == Type::f32 ? e.builder.CreateFCmpOGE(c, llvm::ConstantFP::get(c->getType(), 0.0))
                                       : e.builder.CreateICmpSGE(c, e.i32(0));
  e.write(i.operand(0), e.builder.CreateSelect(first, e.read(i, 1, type), e.read(i, 2, type)), type);
}

}  // namespace gpupool::softgpu::codegen
