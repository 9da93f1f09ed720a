// Text for cuGraphDebugDotPrint, which the client library and softgpu implement. Any thread.
#pragma once
#include <cstdint>
#include <ostream>

#include "protocol/driver/cuda_header.h"

namespace gpupool::cuda {

// Returns "OTHER" for an unknown type.
inline const char* dot_name(CUgraphNodeType type) {
  switch (static_cast<int>(type)) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return "KERNEL";
    case CU_GRAPH_NODE_TYPE_MEMCPY: return "MEMCPY";
    case CU_GRAPH_NODE_TYPE_MEMSET: return "MEMSET";
    case CU_GRAPH_NODE_TYPE_HOST: return "HOST";
    case CU_GRAPH_NODE_TYPE_GRAPH: return "GRAPH";
    case CU_GRAPH_NODE_TYPE_EMPTY: return "EMPTY";
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: return "EVENT_WAIT";
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return "EVENT_RECORD";
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return "MEM_ALLOC";
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return "MEM_FREE";
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: return "BATCH_MEM_OP";
    case 13: return "CONDITIONAL";  // CU_GRAPH_NODE_TYPE_CONDITIONAL, which is not in all versions of cuda.h
    default: return "OTHER";
  }
}

// Prints a launch's dimensions as a part of a label, if the flags of cuGraphDebugDotPrint ask for them.
inline void print_launch(std::ostream& out, unsigned flags, const uint32_t (&grid)[3],
                         const uint32_t (&block)[3], uint32_t shared_bytes) {
  if (!(flags & (CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE | CU_GRAPH_DEBUG_DOT_FLAGS_KERNEL_NODE_PARAMS))) return;
  out << "\\ngrid " << grid[0] << ' ' << grid[1] << ' ' << grid[2];
  out << "\\nblock " << block[0] << ' ' << block[1] << ' ' << block[2];
  out << "\\nshared memory " << shared_bytes;
}

}  // namespace gpupool::cuda
