// Graphs as the client keeps them: nodes, what they do, what comes before what. Everything that only looks at a graph or changes it is
// answered here; the server learns of it when it becomes executable (graph_exec.h).
//
// One mutex guards all graphs, captures (capture.h) and what executable graphs know: building them is rare. A node that is
// removed stays until its graph ends, since captures and events may name it.
#pragma once
#include <memory>
#include <mutex>
#include <variant>
#include <vector>

#include "client/module.h"
#include "client/server_copy.h"
#include "protocol/cuda/graph_edges.h"
#include "protocol/cuda/graph_memory.h"
#include "protocol/cuda/user_objects.h"
#include "protocol/wire/commands.h"

namespace gpupool::client {

std::mutex& graph_mutex();

class Graph;

struct KernelWork {
  wire::Launch launch{};       // without a stream
  wire::Buffer tail;           // attributes, then parameters
  std::vector<CUlaunchAttribute> attributes() const;
  void set_attributes(const std::vector<CUlaunchAttribute>& attributes);
};
struct FillWork {
  CUDA_MEMSET_NODE_PARAMS params{};
};
struct CopyWork {
  CUDA_MEMCPY3D params{};
  Box box;
  std::optional<CUDA_MEMCPY3D> array_copy;  // where an end is an array
  bool on_host() const { return !box.from.on_device || !box.to.on_device; }
};
struct HostWork {
  CUDA_HOST_NODE_PARAMS params{};
};
struct EventWork {
  uint64_t event = 0;
};
struct ChildWork {
  std::shared_ptr<Graph> graph;
};
struct OperationsWork {
  std::vector<CUstreamBatchMemOpParams> operations;
  unsigned flags = 0;
};
struct AllocWork {
  CUDA_MEM_ALLOC_NODE_PARAMS params{};
  cuda::graph_memory::Shared memory;
};
struct FreeWork {
  cuda::graph_memory::Shared memory;
};
struct ConditionalWork {
  uint64_t condition = 0;
  uint32_t type = 0;           // CUgraphConditionalNodeType
  std::vector<std::shared_ptr<Graph>> bodies;
  std::vector<CUgraph> lent;   // their handles, for the program
};
using NodeWork = std::variant<std::monostate, KernelWork, FillWork, CopyWork, HostWork, EventWork, ChildWork, OperationsWork,
                              AllocWork, FreeWork, ConditionalWork>;

// What kernels set and conditional nodes go by (cuGraphConditionalHandleCreate).
struct GraphCondition {
  uint64_t handle = 0;
  uint64_t context = 0;
  uint32_t initial = 0;
  bool at_launch = false;  // every launch begins with the initial value
};

// Parameter copies, and the array of their addresses, that cuGraphKernelNodeGetParams lends to the program.
struct LentParameters {
  std::vector<std::byte> values;
  std::vector<void*> addresses;
};

struct GraphNode {
  Graph* graph = nullptr;  // null: removed
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  uint64_t handle = 0;
  uint64_t context = 0;
  uint64_t original = 0;   // handle of the node that this one was cloned from
  NodeWork work;
  std::vector<std::unique_ptr<LentParameters>> lent;  // one for each kernel layout; programs go on using them after they set parameters
  std::vector<GraphNode*> dependencies;
  cuda::EdgesFrom<GraphNode> edges;  // from the dependencies
  std::vector<GraphNode*> dependents;
};

class Graph {
 public:
  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph();

  // With graph_mutex() held, all of it. Null: no handle is left.
  GraphNode* add(CUgraphNodeType type, uint64_t context, NodeWork work, const std::vector<GraphNode*>& dependencies);
  static bool connect(GraphNode& from, GraphNode& to, cuda::EdgeData edge = {});
  static bool disconnect(GraphNode& from, GraphNode& to);
  void remove(GraphNode& node);
  std::shared_ptr<Graph> clone() const;  // null: no handles are left
  bool has_memory() const;  // memory nodes
  bool has_conditions() const;  // such a graph can be neither cloned nor a child
  // Nodes before those that depend on them; false: there is a cycle.
  bool in_order(std::vector<GraphNode*>& order) const;

  uint64_t handle = 0;
  std::vector<std::unique_ptr<GraphNode>> nodes;
  std::vector<GraphCondition> conditions;
  cuda::UserReferences user_objects;

 private:
  std::vector<std::unique_ptr<GraphNode>> removed_;
};

// What the program's handles stand for.
struct GraphObject : Object {
  std::shared_ptr<Graph> graph;
};
struct GraphNodeObject : Object {
  GraphNode* node = nullptr;
};

// With graph_mutex() held; null: there is none.
Graph* find_graph(CUgraph handle);
std::shared_ptr<Graph> share_graph(CUgraph handle);
GraphNode* find_node(CUgraphNode handle);
// 0: no handle is left. The graph's handle keeps it alive.
uint64_t publish(const std::shared_ptr<Graph>& graph);

inline CUgraph graph_handle(const Graph& graph) { return cuda::handle_from_bits<CUgraph>(graph.handle); }
inline CUgraphNode node_handle(const GraphNode& node) { return cuda::handle_from_bits<CUgraphNode>(node.handle); }

// --- What nodes do, from what the program says; checked as the calls do that do it at once ---

// client/calls/launch.cc. Launched in this context.
CUresult make_kernel(const CUDA_KERNEL_NODE_PARAMS& params, Context& context, KernelWork* work);
// client/calls/copy.cc. In the context's session; CUDA_ERROR_NOT_SUPPORTED: it reaches other servers.
CUresult make_copy(const CUDA_MEMCPY3D& params, Context& context, CopyWork* work);
// What such a node does when its turn has come, where it reaches the program's memory: run in the client. The stream that
// has to be waited for then, 0: none.
uint64_t copy_now(Context& context, const Box& box);
// client/calls/fill.cc
CUresult check_fill(const CUDA_MEMSET_NODE_PARAMS& params, Context& context);

}  // namespace gpupool::client
