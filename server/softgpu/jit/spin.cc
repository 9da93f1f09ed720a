#include "server/softgpu/jit/spin.h"

#include <algorithm>

namespace gpupool::softgpu {
namespace {

using ptx::Function;
using ptx::Instruction;
using ptx::Operand;

// Beyond this much work (huge generated functions) every branch back yields instead.
constexpr uint64_t kMaxWork = 20'000'000;

struct Block {
  uint32_t begin = 0, end = 0;
  std::vector<uint32_t> successors, predecessors;
};

struct Graph {
  std::vector<Block> blocks;
  std::vector<uint32_t> block_of;  // per instruction
};

void add_targets(const Function& f, const Instruction& i, std::vector<uint32_t>& labels) {
  for (const Operand& operand : f.operands(i)) {
    if (operand.kind == Operand::Kind::label) labels.push_back(operand.index);
    if (operand.kind == Operand::Kind::targets)
      for (uint32_t label : f.target_lists[operand.index]) labels.push_back(label);
  }
}

bool ends_block(std::string_view op) {
  return op == "bra" || op == "brx" || op == "ret" || op == "exit" || op == "trap";
}

Graph build_graph(const Function& f) {
  Graph graph;
  uint32_t count = static_cast<uint32_t>(f.code.size());
  std::vector<bool> leader(count + 1, false);
  leader[0] = true;
  for (uint32_t position : f.labels) leader[position] = true;
  for (uint32_t i = 0; i < count; ++i)
    if (ends_block(f.code[i].opcode)) leader[i + 1] = true;
  graph.block_of.resize(count + 1);
  for (uint32_t i = 0; i < count; ++i) {
    if (leader[i]) graph.blocks.push_back({i, i, {}, {}});
    graph.block_of[i] = static_cast<uint32_t>(graph.blocks.size() - 1);
    graph.blocks.back().end = i + 1;
  }
  std::vector<uint32_t> labels;
  for (uint32_t b = 0; b < graph.blocks.size(); ++b) {
    Block& block = graph.blocks[b];
    const Instruction& last = f.code[block.end - 1];
    labels.clear();
    if (last.opcode == "bra" || last.opcode == "brx") add_targets(f, last, labels);
    for (uint32_t label : labels)
      if (f.labels[label] < count) block.successors.push_back(graph.block_of[f.labels[label]]);
    if ((!ends_block(last.opcode) || last.is_predicated) && b + 1 < graph.blocks.size())
      block.successors.push_back(b + 1);
    std::sort(block.successors.begin(), block.successors.end());
    block.successors.erase(std::unique(block.successors.begin(), block.successors.end()),
                           block.successors.end());
  }
  for (uint32_t b = 0; b < graph.blocks.size(); ++b)
    for (uint32_t s : graph.blocks[b].successors) graph.blocks[s].predecessors.push_back(b);
  return graph;
}

class Classifier {
 public:
  Classifier(const Function& f, const std::vector<uint32_t>& definitions) : f_(f), definitions_(definitions) {
    constant_.assign(f.registers.size(), false);
    for (const Instruction& i : f.code) {
      auto operands = f.operands(i);
      if (i.opcode == "mov" && !i.is_predicated && operands.size() == 2 &&
          operands[0].kind == Operand::Kind::reg && operands[1].kind == Operand::Kind::integer &&
          definitions[operands[0].index] == 1)
        constant_[operands[0].index] = true;
    }
  }

  // May this instruction be what a loop waits for? Value operands that must be checked against the loop go to
  // `values`.
  bool is_candidate(const Instruction& i, std::vector<uint32_t>& values) const {
    values.clear();
    auto operands = f_.operands(i);
    if (i.opcode == "ld")
      return has(i, "volatile") || has(i, "acquire") || has(i, "relaxed") || has(i, "mmio");
    if (i.opcode != "atom" || operands.size() < 3) return false;
    if (has(i, "cas")) return add_value(operands[2], values);
    if (has(i, "exch")) return add_value(operands[2], values);
    bool identity = operands[2].kind == Operand::Kind::integer && operands[2].value == 0;
    return identity && (has(i, "add") || has(i, "or") || has(i, "xor"));
  }

  bool has(const Instruction& i, std::string_view word) const {
    auto modifiers = f_.modifiers(i);
    return std::find(modifiers.begin(), modifiers.end(), word) != modifiers.end();
  }

 private:
  bool add_value(const Operand& operand, std::vector<uint32_t>& values) const {
    if (operand.kind == Operand::Kind::reg && !constant_[operand.index]) values.push_back(operand.index);
    return operand.kind == Operand::Kind::reg || operand.kind == Operand::Kind::integer;
  }

  const Function& f_;
  const std::vector<uint32_t>& definitions_;
  std::vector<bool> constant_;
};

struct Loop {
  uint32_t tail = 0, head = 0;
  std::vector<uint32_t> blocks;  // sorted
};

// The blocks that reach `tail` without passing `head`.
std::vector<uint32_t> loop_body(const Graph& graph, uint32_t tail, uint32_t head, uint64_t& work) {
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

std::vector<bool> find_waiting_branches(const Function& f, const std::vector<uint32_t>& definitions) {
  std::vector<bool> yields(f.code.size(), false);
  Classifier classifier(f, definitions);
  std::vector<uint32_t> values;
  std::vector<uint32_t> candidates;
  for (uint32_t i = 0; i < f.code.size(); ++i)
    if (classifier.is_candidate(f.code[i], values)) candidates.push_back(i);
  if (candidates.empty()) return yields;

  Graph graph = build_graph(f);
  std::vector<Loop> loops;
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
      for (const Loop& loop : loops) yields[graph.blocks[loop.tail].end - 1] = true;
      break;
    }
    uint32_t block = graph.block_of[candidate];
    const Loop* inner = nullptr;
    for (const Loop& loop : loops) {
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
    for (const Loop& loop : loops)
      if (loop.head == inner->head) yields[graph.blocks[loop.tail].end - 1] = true;
  }
  return yields;
}

}  // namespace gpupool::softgpu
