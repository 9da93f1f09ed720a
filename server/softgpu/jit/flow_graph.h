// The control-flow graph of one PTX function: basic blocks and their edges. Private to jit/'s analyses.
#pragma once
#include <cstdint>
#include <vector>

#include "server/softgpu/ptx/ast.h"

namespace gpupool::softgpu {

struct FlowBlock {
  uint32_t begin = 0, end = 0;  // instructions [begin, end)
  std::vector<uint32_t> successors, predecessors;
};

struct FlowGraph {
  std::vector<FlowBlock> blocks;   // in code order
  std::vector<uint32_t> block_of;  // per instruction
};

FlowGraph build_flow_graph(const ptx::Function& function);

}  // namespace gpupool::softgpu
