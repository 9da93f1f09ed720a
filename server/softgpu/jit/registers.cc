// Estimates the number of registers that a function would need on a GPU; occupancy and function attributes
// depend on it.
#include <algorithm>
#include <map>

#include "server/softgpu/jit/analysis.h"

namespace gpupool::softgpu {
namespace {

constexpr uint32_t kNowhere = UINT32_MAX;

struct LoopRange {
  uint32_t begin, end;        // instructions, both inclusive
  uint32_t outer = kNowhere;  // the next larger loop around it
};

template <typename Visit>
void for_each_target(const ptx::Function& f, const ptx::Instruction& i, Visit visit) {
  for (const ptx::Operand& operand : f.operands(i)) {
    if (operand.kind == ptx::Operand::Kind::label) visit(f.labels[operand.index]);
    if (operand.kind == ptx::Operand::Kind::targets)
      for (const uint32_t label : f.target_lists[operand.index]) visit(f.labels[label]);
  }
}

// Branches back make loops; returns one per target of such branches, in text order.
std::vector<LoopRange> find_loops(const ptx::Function& f) {
  std::map<uint32_t, uint32_t> end_of;
  for (uint32_t at = 0; at < f.code.size(); ++at)
    for_each_target(f, f.code[at], [&](uint32_t target) {
      if (target <= at) end_of[target] = std::max(end_of[target], at);
    });
  std::vector<LoopRange> loops;
  for (const auto& [begin, end] : end_of) loops.push_back({begin, end});
  return loops;
}

// Returns for each instruction the innermost loop around it, and sets LoopRange::outer.
std::vector<uint32_t> nest_loops(std::vector<LoopRange>& loops, size_t instructions) {
  std::vector<uint32_t> innermost(instructions, kNowhere), open;
  size_t next = 0;
  for (uint32_t at = 0; at < instructions; ++at) {
    while (!open.empty() && loops[open.back()].end < at) open.pop_back();
    for (; next < loops.size() && loops[next].begin == at; ++next) {
      loops[next].outer = open.empty() ? kNowhere : open.back();
      open.push_back(static_cast<uint32_t>(next));
    }
    if (!open.empty()) innermost[at] = open.back();
  }
  return innermost;
}

template <typename Visit>
void for_each_register(const ptx::Function& f, const ptx::Instruction& i, Visit visit) {
  if (i.is_predicated) visit(i.predicate);
  auto operand = [&](const ptx::Operand& o, auto& self) -> void {
    using Kind = ptx::Operand::Kind;
    if (o.kind == Kind::reg)
      visit(o.index);
    else if (o.kind == Kind::address)
      self(f.base(o), self);
    else if (o.kind == Kind::vector || o.kind == Kind::list || o.kind == Kind::pair || o.kind == Kind::fetch)
      for (const ptx::Operand& element : f.elements(o)) self(element, self);
  };
  for (const ptx::Operand& o : f.operands(i)) operand(o, operand);
}

}  // namespace

// Returns the largest number of 32-bit words that hold values at one instruction. A register holds a value
// from its first mention to its last, and to the end of each loop around the last mention that began after
// the first.
uint32_t live_registers(const ptx::Function& f) {
  std::vector<uint32_t> first(f.registers.size(), kNowhere), last(f.registers.size(), 0);
  for (uint32_t at = 0; at < f.code.size(); ++at)
    for_each_register(f, f.code[at], [&](uint32_t reg) {
      first[reg] = std::min(first[reg], at);
      last[reg] = at;
    });
  std::vector<LoopRange> loops = find_loops(f);
  const std::vector<uint32_t> innermost = nest_loops(loops, f.code.size());
  std::vector<int64_t> change(f.code.size() + 1, 0);
  for (size_t reg = 0; reg < first.size(); ++reg) {
    if (first[reg] == kNowhere || f.registers[reg].type == ptx::Type::pred) continue;
    uint32_t end = last[reg];
    for (uint32_t loop = innermost[end]; loop != kNowhere && loops[loop].begin > first[reg];
         loop = loops[loop].outer)
      end = std::max(end, loops[loop].end);
    const int64_t words = std::max<int64_t>(ptx::bits_of(f.registers[reg].type) / 32, 1);
    change[first[reg]] += words;
    change[end + 1] -= words;
  }
  int64_t live = 0, most = 0;
  for (const int64_t step : change) most = std::max(most, live += step);
  return static_cast<uint32_t>(most);
}

}  // namespace gpupool::softgpu
