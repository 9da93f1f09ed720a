#include "server/softgpu/jit/analysis.h"

#include <algorithm>
#include <unordered_set>

#include "server/softgpu/jit/convergence.h"
#include "server/softgpu/jit/definitions.h"
#include "server/softgpu/jit/spin.h"
#include "server/softgpu/jit/waits.h"

namespace gpupool::softgpu {
namespace {

using ptx::Function;
using ptx::Instruction;
using ptx::Operand;

void find_symbols(const Function& f, FunctionFacts& facts) {
  std::unordered_set<std::string_view> callees, referenced;
  std::unordered_set<uint32_t> variables;
  for (const Instruction& i : f.code) {
    auto operands = f.operands(i);
    size_t target = SIZE_MAX;
    if (i.opcode == "call" && !operands.empty()) {
      target = operands[0].kind == Operand::Kind::list && operands.size() > 1 ? 1 : 0;
      if (operands[target].kind == Operand::Kind::symbol) {
        callees.insert(operands[target].name);
      } else {
        facts.has_indirect_call = true;
        target = SIZE_MAX;
      }
    }
    const Operand* skip = target == SIZE_MAX ? nullptr : &operands[target];
    for (const Operand& operand : operands) {
      if (&operand == skip) continue;
      auto visit = [&](const Operand& o) {
        if (o.kind == Operand::Kind::symbol) referenced.insert(o.name);
        if (o.kind == Operand::Kind::variable) variables.insert(o.index);
        if (o.kind == Operand::Kind::special && o.name.substr(0, 14) == "%reserved_smem")
          facts.uses_reserved_shared = true;
      };
      visit(operand);
      if (operand.kind == Operand::Kind::address)
        visit(f.base(operand));
      else if (operand.count)
        for (const Operand& element : f.elements(operand)) visit(element);
    }
  }
  facts.callees.assign(callees.begin(), callees.end());
  facts.referenced.assign(referenced.begin(), referenced.end());
  facts.used_variables.assign(variables.begin(), variables.end());
  std::sort(facts.callees.begin(), facts.callees.end());
  std::sort(facts.referenced.begin(), facts.referenced.end());
  std::sort(facts.used_variables.begin(), facts.used_variables.end());
}

// Follows mov, cvta and add from a variable's address to set based_on.
void find_bases(const Function& f, FunctionFacts& facts) {
  auto base_of = [&](const Operand& operand) {
    if (operand.kind == Operand::Kind::reg) return facts.based_on[operand.index];
    if (operand.kind != Operand::Kind::variable) return kNoVariable;
    ptx::Space space = f.variables[operand.index].space;
    return space == ptx::Space::local || space == ptx::Space::param ? operand.index : kNoVariable;
  };
  for (const Instruction& i : f.code) {
    auto operands = f.operands(i);
    if (operands.size() < 2 || operands[0].kind != Operand::Kind::reg) continue;
    uint32_t target = operands[0].index;
    if (facts.definitions[target] != 1 || ptx::bits_of(f.registers[target].type) != 64) continue;
    if (f.has(i, "shared") || f.has(i, "global") || f.has(i, "const")) continue;
    if (i.opcode == "mov" || i.opcode == "cvta") {
      facts.based_on[target] = base_of(operands[1]);
    } else if (i.opcode == "add" && operands.size() == 3 && (f.has(i, "s64") || f.has(i, "u64"))) {
      uint32_t left = base_of(operands[1]), right = base_of(operands[2]);
      if (left != kNoVariable && right == kNoVariable) facts.based_on[target] = left;
      if (right != kNoVariable && left == kNoVariable) facts.based_on[target] = right;
    }
  }
}

}  // namespace

FunctionFacts analyse(const Function& f, Convergence converge_warps) {
  FunctionFacts facts;
  facts.definitions.assign(f.registers.size(), 0);
  facts.based_on.assign(f.registers.size(), kNoVariable);
  facts.flushed.assign(f.registers.size(), true);
  for (const Instruction& i : f.code) {
    bool flushes = f.has(i, "ftz") && f.has(i, "f32");
    for_each_definition(f, i, [&](uint32_t reg) {
      ++facts.definitions[reg];
      if (!flushes) facts.flushed[reg] = false;
    });
    if (waits_of(i.opcode) != Waits::never) facts.synchronises = true;
    if (i.opcode == "exit") facts.has_exit = true;
  }
  facts.live_registers = live_registers(f);
  find_symbols(f, facts);
  find_bases(f, facts);
  facts.yields = find_yielding_branches(f, facts.definitions);
  facts.has_yields = std::find(facts.yields.begin(), facts.yields.end(), true) != facts.yields.end();
  if (facts.has_yields) facts.synchronises = true;
  if (converge_warps == Convergence::found)
    facts.converges = find_convergence_points(f, facts.definitions, facts.synchronises);
  if (converge_warps == Convergence::everywhere) facts.converges = all_memory_accesses(f);
  if (!facts.converges.empty()) facts.synchronises = true;
  return facts;
}

}  // namespace gpupool::softgpu
