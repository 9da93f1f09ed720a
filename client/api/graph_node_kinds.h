// The kinds of graph nodes that have functions of their own (CUDA_GRAPH_NODE of calls.def; their common body
// is in graph_node_calls.h). Each kind has its type and
//   make()        checks parameters and makes the work of a node of them
//   read()        returns a node's parameters
//   context_of()  if the parameters name the context of a new node
//   keep()        if new parameters leave something of the old work
//   set_in_exec() if executable graphs do not replace the work as a whole
// An overload of make() and read() for each generation of the parameters. Call with graph_mutex() held.
#pragma once
#include "client/api/graph.h"

namespace gpupool::client {

// Where a node is, or will be.
struct NodePlace {
  Context* context = nullptr;    // null: no context is current
  const Graph* graph = nullptr;  // null: an executable graph
};

// Returns the parameters with the fields that all their generations have.
template <class Params>
CUDA_KERNEL_NODE_PARAMS newest(const Params& params) {
  CUDA_KERNEL_NODE_PARAMS made{};
  made.func = params.func;
  made.gridDimX = params.gridDimX;
  made.gridDimY = params.gridDimY;
  made.gridDimZ = params.gridDimZ;
  made.blockDimX = params.blockDimX;
  made.blockDimY = params.blockDimY;
  made.blockDimZ = params.blockDimZ;
  made.sharedMemBytes = params.sharedMemBytes;
  made.kernelParams = params.kernelParams;
  made.extra = params.extra;
  return made;
}

namespace node_kinds {

// Whether the work of a node can be set after it was added.
struct ChangeableKind {
  static constexpr bool fixed = false;
};
struct FixedKind {
  static constexpr bool fixed = true;
};

struct empty : FixedKind {
  static constexpr CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  static CUresult make(const NodePlace&, NodeWork&) { return CUDA_SUCCESS; }
};

struct kernel : ChangeableKind {
  static constexpr CUgraphNodeType type = CU_GRAPH_NODE_TYPE_KERNEL;
  static CUresult make(const NodePlace& place, NodeWork& work, const CUDA_KERNEL_NODE_PARAMS* params);
  static void read(GraphNode& node, CUDA_KERNEL_NODE_PARAMS& params);
#if CUDA_VERSION >= 12000
  static CUresult make(const NodePlace& place, NodeWork& work, const CUDA_KERNEL_NODE_PARAMS_v1* params);
  static void read(GraphNode& node, CUDA_KERNEL_NODE_PARAMS_v1& params);
  static CUcontext context_of(const CUDA_KERNEL_NODE_PARAMS* params);
#endif
  // The attributes stay.
  static void keep(const NodeWork& before, NodeWork& after);
};

struct copy : ChangeableKind {
  static constexpr CUgraphNodeType type = CU_GRAPH_NODE_TYPE_MEMCPY;
  static CUresult make(const NodePlace& place, NodeWork& work, const CUDA_MEMCPY3D* params);
  static void read(GraphNode& node, CUDA_MEMCPY3D& params) { params = std::get<CopyWork>(node.work).params; }
};

struct fill : ChangeableKind {
  static constexpr CUgraphNodeType type = CU_GRAPH_NODE_TYPE_MEMSET;
  static CUresult make(const NodePlace& place, NodeWork& work, const CUDA_MEMSET_NODE_PARAMS* params);
  static void read(GraphNode& node, CUDA_MEMSET_NODE_PARAMS& params) {
    params = std::get<FillWork>(node.work).params;
  }
};

struct host_function : ChangeableKind {
  static constexpr CUgraphNodeType type = CU_GRAPH_NODE_TYPE_HOST;
  static CUresult make(const NodePlace& place, NodeWork& work, const CUDA_HOST_NODE_PARAMS* params);
  static void read(GraphNode& node, CUDA_HOST_NODE_PARAMS& params) {
    params = std::get<HostWork>(node.work).params;
  }
};

CUresult make_event(NodeWork& work, CUevent event);
template <CUgraphNodeType Type>
struct event : ChangeableKind {
  static constexpr CUgraphNodeType type = Type;
  static CUresult make(const NodePlace&, NodeWork& work, CUevent event) { return make_event(work, event); }
  static void read(GraphNode& node, CUevent& event) {
    event = cuda::handle_from_bits<CUevent>(std::get<EventWork>(node.work).event);
  }
};
using event_record = event<CU_GRAPH_NODE_TYPE_EVENT_RECORD>;
using event_wait = event<CU_GRAPH_NODE_TYPE_WAIT_EVENT>;

#if CUDA_VERSION >= 11070
struct memory_operations : ChangeableKind {
  static constexpr CUgraphNodeType type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  static CUresult make(const NodePlace& place, NodeWork& work, const CUDA_BATCH_MEM_OP_NODE_PARAMS* params);
  static void read(GraphNode& node, CUDA_BATCH_MEM_OP_NODE_PARAMS& params);
  static CUcontext context_of(const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
    return params ? params->ctx : nullptr;
  }
};
#endif

struct child_graph : ChangeableKind {
  static constexpr CUgraphNodeType type = CU_GRAPH_NODE_TYPE_GRAPH;
  static CUresult make(const NodePlace& place, NodeWork& work, CUgraph child);
  static void read(GraphNode& node, CUgraph& child) {
    child = graph_handle(*std::get<ChildWork>(node.work).graph);
  }
  // Sets the work of the child's nodes, one by one (graph_exec.cc).
  static CUresult set_in_exec(CUgraphExec exec, CUgraphNode node, CUgraph child);
};

struct allocation : FixedKind {
  static constexpr CUgraphNodeType type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  static CUresult make(const NodePlace& place, NodeWork& work, CUDA_MEM_ALLOC_NODE_PARAMS* params) {
    return make_alloc_work(params, place.context, work);
  }
  static void read(GraphNode& node, CUDA_MEM_ALLOC_NODE_PARAMS& params) {
    params = std::get<AllocWork>(node.work).params;
  }
};

struct release : FixedKind {
  static constexpr CUgraphNodeType type = CU_GRAPH_NODE_TYPE_MEM_FREE;
  static CUresult make(const NodePlace&, NodeWork& work, CUdeviceptr address) {
    return make_free_work(address, work);
  }
  static void read(GraphNode& node, CUdeviceptr& address) {
    address = std::get<FreeWork>(node.work).memory->address;
  }
};

}  // namespace node_kinds
}  // namespace gpupool::client
