#include "server/softgpu/jit/flow_graph.h"

#include <algorithm>
#include <string_view>

namespace gpupool::softgpu {

using ptx::Function;
using ptx::Instruction;
using ptx::Operand;

namespace {

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

}  // namespace

FlowGraph build_flow_graph(const Function& f) {
  FlowGraph graph;
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
    FlowBlock& block = graph.blocks[b];
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

}  // namespace gpupool::softgpu
