#include "server/softgpu/jit/address_form.h"

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "server/softgpu/jit/definitions.h"

namespace gpupool::softgpu {
namespace {

using ptx::Function;
using ptx::Instruction;
using ptx::Operand;

constexpr size_t kMaxTerms = 8;
constexpr size_t kMaxDefinitions = 4;
constexpr uint32_t kMaxDepth = 1000;
constexpr uint32_t kMaxSteps = 1'000'000;
constexpr int64_t kMaxCoefficient = int64_t{1} << 40;

bool is_integer_instruction(const Function& f, const Instruction& i) {
  bool integer = false;
  for (std::string_view word : f.modifiers(i)) {
    if (auto type = ptx::find_type(word)) {
      if (ptx::is_float(*type) || *type == ptx::Type::pred) return false;
      integer = true;
    }
  }
  return integer;
}

AddressForm number(int64_t value) {
  AddressForm form;
  form.constant = value;
  return form;
}

AddressForm unknown(uint32_t which, int64_t coefficient = 1) {
  AddressForm form;
  form.terms.push_back({which, coefficient});
  return form;
}

bool is_number(const AddressForm& form) {
  return form.variable.empty() && form.terms.empty();
}

// Returns a + factor * b, or nullopt if the sum has no form.
std::optional<AddressForm> combine(const AddressForm& a, const AddressForm& b, int64_t factor) {
  if (!b.variable.empty() && (!a.variable.empty() || factor != 1)) return std::nullopt;
  if (std::abs(factor) > kMaxCoefficient) return std::nullopt;
  AddressForm sum = a;
  if (!b.variable.empty()) sum.variable = b.variable;
  int64_t product;
  if (__builtin_mul_overflow(b.constant, factor, &product) ||
      __builtin_add_overflow(sum.constant, product, &sum.constant))
    return std::nullopt;
  for (const AddressForm::Term& term : b.terms) {
    if (__builtin_mul_overflow(term.coefficient, factor, &product) || std::abs(product) > kMaxCoefficient)
      return std::nullopt;
    auto at = std::lower_bound(sum.terms.begin(), sum.terms.end(), term.unknown,
                               [](const AddressForm::Term& t, uint32_t u) { return t.unknown < u; });
    if (at == sum.terms.end() || at->unknown != term.unknown)
      sum.terms.insert(at, {term.unknown, product});
    else
      at->coefficient += product;
  }
  std::erase_if(sum.terms, [](const AddressForm::Term& term) { return term.coefficient == 0; });
  if (sum.terms.size() > kMaxTerms) return std::nullopt;
  return sum;
}

// Returns how a special register varies among the lanes of a warp.
Variation variation_of_special(std::string_view name) {
  constexpr std::string_view kByLane[] = {"%tid", "%laneid", "%lanemask", "%clock", "%globaltimer"};
  for (std::string_view prefix : kByLane)
    if (name.substr(0, prefix.size()) == prefix) return Variation::by_lane;
  return Variation::uniform;
}

// Returns true if warps are assumed not to span rows of a block: .reqntid gives a width that is a multiple of
// 32, or the code never reads %tid.y or %tid.z. The latter is a heuristic: a launch may have rows that the
// code does not read.
bool has_warps_within_rows(const Function& f) {
  if (f.required_block[0] != 0) return f.required_block[0] % kWarpLanes == 0;
  return std::ranges::none_of(f.operand_pool, [](const Operand& operand) {
    return operand.kind == Operand::Kind::special && operand.name == "%tid" && operand.component != 'x';
  });
}

}  // namespace

int64_t AddressForm::coefficient_of(uint32_t which) const {
  for (const Term& term : terms)
    if (term.unknown == which) return term.coefficient;
  return 0;
}

bool AddressForms::is_uniform_per_warp(const AddressForm& form) const {
  return std::ranges::all_of(form.terms, [&](const AddressForm::Term& term) {
    return term.unknown != kLaneUnknown &&
           (warp_number_[term.unknown] || variation(term.unknown) == Variation::uniform);
  });
}

AddressForms::AddressForms(const Function& f, const std::vector<uint32_t>& definition_counts)
    : f_(f),
      definitions_(f.registers.size()),
      variation_(f.registers.size(), Variation::uniform),
      rows_are_warps_(has_warps_within_rows(f)),
      warp_uniform_(f.registers.size(), false),
      warp_number_(f.registers.size(), false),
      forms_(f.registers.size()),
      visiting_(f.registers.size(), false) {
  for (uint32_t i = 0; i < f.code.size(); ++i)
    for_each_definition(f, f.code[i], [&](uint32_t reg) {
      if (definition_counts[reg] <= kMaxDefinitions) definitions_[reg].push_back(i);
    });
  find_variations();
  find_uniform_comparisons();
}

// Returns true if the instruction gives all lanes of its member mask one value: a vote, a reduction, or a
// shuffle from one lane. A shuffle within parts of the warp does so per part, and only lanes of the same part
// exchange data with each other.
bool AddressForms::is_warp_uniform_result(const Instruction& i) const {
  const bool from_one_lane = i.opcode == "shfl" && f_.has(i, "idx");
  if (i.opcode != "vote" && i.opcode != "redux" && !from_one_lane) return false;
  const auto is_uniform = [this](const Operand& operand) {
    return operand.kind == Operand::Kind::integer ||
           (operand.kind == Operand::Kind::reg && variation_[operand.index] == Variation::uniform);
  };
  const auto operands = f_.operands(i);
  return is_uniform(operands.back()) && (!from_one_lane || is_uniform(operands[2]));
}

// Returns the largest variation of any operand; a load is as uniform as its address.
Variation AddressForms::variation_of(const Instruction& i) const {
  if (is_warp_uniform_result(i)) return Variation::uniform;
  if (i.opcode == "elect") return Variation::by_lane;
  if (i.opcode == "atom" || i.opcode == "call" || i.opcode == "shfl") return Variation::by_data;
  Variation most = Variation::uniform;
  auto see = [&](const Operand& operand) {
    if (operand.kind == Operand::Kind::reg) most = std::max(most, variation_[operand.index]);
    if (operand.kind == Operand::Kind::special) most = std::max(most, variation_of_special(operand.name));
  };
  auto operands = f_.operands(i);
  const bool loads = i.opcode == "ld" || i.opcode == "ldu";
  for (size_t n = 1; n < operands.size(); ++n) {
    see(operands[n]);
    if (operands[n].kind == Operand::Kind::address)
      see(f_.base(operands[n]));
    else
      for (const Operand& element : f_.elements(operands[n])) see(element);
  }
  if (loads && f_.has(i, "param")) return f_.is_kernel ? Variation::uniform : Variation::by_lane;
  if (loads && (most != Variation::uniform || f_.has(i, "local"))) return Variation::by_data;
  return most;
}

void AddressForms::find_variations() {
  for (uint32_t v = 0; v < f_.variables.size() && !f_.is_kernel; ++v)
    if (f_.variables[v].space == ptx::Space::reg) variation_[f_.variables[v].reg] = Variation::by_lane;
  for (bool changed = true; changed;) {
    changed = false;
    for (const Instruction& i : f_.code) {
      const Variation variation = variation_of(i);
      for_each_definition(f_, i, [&](uint32_t reg) {
        changed |= variation_[reg] < variation;
        variation_[reg] = std::max(variation_[reg], variation);
      });
    }
  }
}

// All lanes of a warp agree whether tid.x is below a multiple of 32.
void AddressForms::find_uniform_comparisons() {
  if (!rows_are_warps_) return;
  for (const Instruction& i : f_.code) {
    const auto operands = f_.operands(i);
    if (i.opcode != "setp" || operands.size() != 3 || operands[0].kind != Operand::Kind::reg ||
        definitions_[operands[0].index].size() != 1)
      continue;
    const bool below = f_.has(i, "lt") || f_.has(i, "ge") || f_.has(i, "lo") || f_.has(i, "hs");
    const bool up_to = f_.has(i, "le") || f_.has(i, "gt") || f_.has(i, "ls") || f_.has(i, "hi");
    const AddressForm bound = of_operand(operands[2]);
    if ((!below && !up_to) || !is_number(bound) || of_operand(operands[1]) != unknown(kLaneUnknown)) continue;
    if ((bound.constant + up_to) % kWarpLanes == 0) warp_uniform_[operands[0].index] = true;
  }
}

AddressForm AddressForms::of_operand(const Operand& operand) {
  switch (operand.kind) {
    case Operand::Kind::reg: return of_register(operand.index);
    case Operand::Kind::integer: return number(operand.value);
    case Operand::Kind::variable:
    case Operand::Kind::symbol: {
      AddressForm form = number(operand.value);
      form.variable = operand.kind == Operand::Kind::symbol ? operand.name : f_.variables[operand.index].name;
      return form;
    }
    default: return {};
  }
}

AddressForm AddressForms::of_address(const Operand& address) {
  const AddressForm base = of_operand(f_.base(address));
  return combine(base, number(address.value), 1).value_or(base);
}

AddressForm AddressForms::of_register(uint32_t reg) {
  if (forms_[reg]) return *forms_[reg];
  if (visiting_[reg]) return unknown(reg);
  // Forms that refer to a register being visited are not cached, so the number of steps must be limited.
  if (depth_ >= kMaxDepth || ++steps_ > kMaxSteps) exhausted_ = true;
  if (exhausted_) return unknown(reg);
  visiting_[reg] = true;
  ++depth_;
  std::optional<AddressForm> form;
  const auto& definitions = definitions_[reg];
  if (definitions.size() == 1 && !f_.code[definitions[0]].is_predicated)
    form = of_instruction(f_.code[definitions[0]], reg);
  else if (definitions.size() == 2)
    form = of_induction(reg);
  --depth_;
  visiting_[reg] = false;
  AddressForm result = form.value_or(unknown(reg));
  // Do not cache a form that refers to a register whose own form is being computed: that unknown will have
  // another meaning afterwards.
  for (const AddressForm::Term& term : result.terms)
    if (term.unknown != reg && term.unknown != kLaneUnknown && visiting_[term.unknown]) return result;
  forms_[reg] = result;
  return result;
}

// Induction variable: a register that is initialised once and repeatedly incremented by a constant has the
// form start + unknown * constant. Lanes in lock step have incremented it equally often.
std::optional<AddressForm> AddressForms::of_induction(uint32_t reg) {
  for (size_t step = 0; step < 2; ++step) {
    const Instruction& adds = f_.code[definitions_[reg][step]];
    const Instruction& starts = f_.code[definitions_[reg][1 - step]];
    if (adds.is_predicated || starts.is_predicated) continue;
    const auto added = of_instruction(adds, reg);  // in terms of `reg`, which is being visited
    if (!added || !added->variable.empty() || added->terms != std::vector<AddressForm::Term>{{reg, 1}})
      continue;
    const auto start = of_instruction(starts, reg);
    if (!start || start->coefficient_of(reg) != 0 || added->constant == 0) continue;
    warp_uniform_[reg] = true;
    return combine(*start, unknown(reg, added->constant), 1);
  }
  return std::nullopt;
}

std::optional<AddressForm> AddressForms::of_instruction(const Instruction& i, uint32_t target) {
  auto operands = f_.operands(i);
  if (operands.size() < 2 || operands[0].kind != Operand::Kind::reg || !is_integer_instruction(f_, i))
    return std::nullopt;
  const std::string_view op = i.opcode;
  if (op == "mov" && operands[1].kind == Operand::Kind::special) {
    const bool lane =
        operands[1].name == "%laneid" || (operands[1].name == "%tid" && operands[1].component == 'x');
    return unknown(lane ? kLaneUnknown : target);
  }
  if (op == "mov" || op == "cvt" || op == "cvta") {
    if (operands[1].kind == Operand::Kind::vector) return std::nullopt;
    return of_operand(operands[1]);
  }
  if (operands.size() < 3) return std::nullopt;
  const AddressForm a = of_operand(operands[1]), b = of_operand(operands[2]);
  if (op == "add") return combine(a, b, 1);
  if (op == "sub") return combine(a, b, -1);
  if (op == "shl" && is_number(b) && b.constant >= 0 && b.constant < 32)
    return combine({}, a, int64_t{1} << b.constant);
  if ((op == "mul" || op == "mad") && !f_.has(i, "hi")) {
    const AddressForm base = op == "mad" && operands.size() > 3 ? of_operand(operands[3]) : AddressForm{};
    if (is_number(b)) return combine(base, a, b.constant);
    if (is_number(a)) return combine(base, b, a.constant);
    return combine(base, unknown(target), 1);
  }
  return of_bits(i, target);
}

// tid & 31 counts lanes as tid does, tid >> 5 is equal in all lanes of a warp, and x & 0xff0 is a multiple of
// 16.
std::optional<AddressForm> AddressForms::of_bits(const Instruction& i, uint32_t target) {
  auto operands = f_.operands(i);
  const AddressForm a = of_operand(operands[1]), b = of_operand(operands[2]);
  if (!is_number(b) || b.constant <= 0) return std::nullopt;
  const bool of_lane = a == unknown(kLaneUnknown);
  // nvcc compiles a division by 32 to the addition of a uniform value and a shift.
  const bool uniform_but_lane =
      std::all_of(a.terms.begin(), a.terms.end(), [&](const AddressForm::Term& term) {
        if (term.unknown == kLaneUnknown) return term.coefficient == 1;
        return warp_number_[term.unknown] || variation(term.unknown) == Variation::uniform;
      });
  if (i.opcode == "shr" && uniform_but_lane && b.constant >= 5 && b.constant < 32)
    warp_number_[target] = true;
  if (i.opcode != "and") return std::nullopt;
  const auto mask = static_cast<uint64_t>(b.constant);
  const int64_t multiple = int64_t{1} << std::countr_zero(mask);
  if (of_lane && mask == 31) {
    warp_number_[target] = true;  // here the unknown stands for -(tid / 32)
    return combine(a, unknown(target, 32), 1);
  }
  if (of_lane && multiple >= 32) warp_number_[target] = true;
  return unknown(target, multiple);
}

}  // namespace gpupool::softgpu
