#include "server/softgpu/jit/spin.h"

#include <algorithm>

#include "server/softgpu/jit/flow_graph.h"

namespace gpupool::softgpu {
namespace {

using ptx::Function;
using ptx::Instruction;
using ptx::Operand;

// Work limit of the analysis, for huge generated functions; beyond it every branch back yields.
constexpr uint64_t kMaxWork = 20'000'000;

class Classifier {
 public:
  Classifier(const Function& f, const std::vector<uint32_t>& definitions) : f_(f) {
    constant_.assign(f.registers.size(), false);
    for (const Instruction& i : f.code) {
      auto operands = f.operands(i);
      if (i.opcode == "mov" && !i.is_predicated && operands.size() == 2 &&
          operands[0].kind == Operand::Kind::reg && operands[1].kind == Operand::Kind::integer &&
          definitions[operands[0].index] == 1)
        constant_[operands[0].index] = true;
    }
  }

  // Returns true if a loop may wait at this instruction, provided that the registers stored in `values` do
  // not change in the loop.
  bool is_candidate(const Instruction& i, std::vector<uint32_t>& values) const {
    values.clear();
    auto operands = f_.operands(i);
    if (i.opcode == "ld")
      return f_.has(i, "volatile") || f_.has(i, "acquire") || f_.has(i, "relaxed") || f_.has(i, "mmio");
    if (i.opcode != "atom" || operands.size() < 3) return false;
    if (f_.has(i, "cas")) return add_value(operands[2], values);
    if (f_.has(i, "exch")) return add_value(operands[2], values);
    bool identity = operands[2].kind == Operand::Kind::integer && operands[2].value == 0;
    return identity && (f_.has(i, "add") || f_.has(i, "or") || f_.has(i, "xor"));
  }

 private:
  bool add_value(const Operand& operand, std::vector<uint32_t>& values) const {
    if (operand.kind == Operand::Kind::reg && !constant_[operand.index]) values.push_back(operand.index);
    return operand.kind == Operand::Kind::reg || operand.kind == Operand::Kind::integer;
  }

  const Function& f_;
  std::vector<bool> constant_;
};

struct LoopBlocks {
  uint32_t tail = 0, head = 0;
  std::vector<uint32_t> blocks;  // sorted
};

// Returns the blocks that reach `tail` without passing `head`, and `head`; sorted.
std::vector<uint32_t> loop_body(const FlowGraph& graph, uint32_t tail, uint32_t head, uint64_t& work) {
  std::vector<bool> seen(graph.blocks.size(), false);
  std::vector<uint32_t> body{head}, stack;
  seen[head] = true;
  if (!seen[tail]) {
    seen[tail] = true;
    stack.push_back(tail);
  }
  while (!stack.empty()) {
    uint32_t block = stack.back();
    stack.pop_back();
    body.push_back(block);
    for (uint32_t p : graph.blocks[block].predecessors) {
      if (seen[p]) continue;
      seen[p] = true;
      stack.push_back(p);
    }
  }
  work += graph.blocks.size();
  std::sort(body.begin(), body.end());
  return body;
}

bool defines(const Function& f, const Instruction& i, uint32_t reg) {
  auto operands = f.operands(i);
  if (operands.empty()) return false;
  if (operands[0].kind == Operand::Kind::reg) return operands[0].index == reg;
  if (operands[0].kind == Operand::Kind::address || operands[0].kind == Operand::Kind::fetch) return false;
  for (const Operand& element : f.elements(operands[0])) {
    if (element.kind == Operand::Kind::reg && element.index == reg) return true;
    if (element.kind != Operand::Kind::vector) continue;
    for (const Operand& inner : f.elements(element))
      if (inner.kind == Operand::Kind::reg && inner.index == reg) return true;
  }
  return false;
}

}  // namespace

std::vector<bool> find_yielding_branches(const Function& f, const std::vector<uint32_t>& definitions) {
  std::vector<bool> yields(f.code.size(), false);
  Classifier classifier(f, definitions);
  std::vector<uint32_t> values;
  std::vector<uint32_t> candidates;
  for (uint32_t i = 0; i < f.code.size(); ++i)
    if (classifier.is_candidate(f.code[i], values)) candidates.push_back(i);
  if (candidates.empty()) return yields;

  FlowGraph graph = build_flow_graph(f);
  std::vector<LoopBlocks> loops;
  uint64_t work = 0;
  for (uint32_t b = 0; b < graph.blocks.size(); ++b)
    for (uint32_t s : graph.blocks[b].successors) {
      if (s > b) continue;
      if (work < kMaxWork)
        loops.push_back({b, s, loop_body(graph, b, s, work)});
      else
        yields[graph.blocks[b].end - 1] = true;
    }
  for (uint32_t candidate : candidates) {
    if (work > kMaxWork) {
      for (const LoopBlocks& loop : loops) yields[graph.blocks[loop.tail].end - 1] = true;
      break;
    }
    uint32_t block = graph.block_of[candidate];
    const LoopBlocks* inner = nullptr;
    for (const LoopBlocks& loop : loops) {
      bool inside = std::binary_search(loop.blocks.begin(), loop.blocks.end(), block);
      if (inside && (!inner || loop.blocks.size() < inner->blocks.size())) inner = &loop;
      work += 8;
    }
    if (!inner) continue;
    classifier.is_candidate(f.code[candidate], values);
    bool changes = false;
    for (uint32_t b : inner->blocks)
      for (uint32_t i = graph.blocks[b].begin; i < graph.blocks[b].end && !values.empty() && work < kMaxWork;
           ++i, ++work)
        for (uint32_t value : values) changes |= defines(f, f.code[i], value);
    if (changes) continue;
    for (const LoopBlocks& loop : loops)
      if (loop.head == inner->head) yields[graph.blocks[loop.tail].end - 1] = true;
  }
  return yields;
}

}  // namespace gpupool::softgpu
