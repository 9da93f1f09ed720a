// Graphs as the client keeps them: nodes, their work, their dependencies. Calls that only build or inspect a
// graph are answered here; the server learns of a graph when it is instantiated (graph_exec.h).
//
// One mutex, graph_mutex(), guards all graphs, captures (capture.h) and the client's part of executable
// graphs; building them is rare. A removed node lives until its graph is destroyed, because captures and
// events may name it.
#pragma once
#include <memory>
#include <mutex>
#include <variant>
#include <vector>

#include "client/copies/server_copy.h"
#include "client/session/module.h"
#include "protocol/calls/graph_edges.h"
#include "protocol/calls/graph_memory.h"
#include "protocol/calls/user_objects.h"
#include "protocol/wire/commands.h"

namespace gpupool::client {

std::mutex& graph_mutex();

class Graph;

struct KernelWork {
  wire::Launch launch{};  // its stream is not set
  wire::Buffer tail;      // the launch attributes, then the parameters
  std::vector<CUlaunchAttribute> attributes() const;
  void set_attributes(const std::vector<CUlaunchAttribute>& attributes);
};
struct FillWork {
  CUDA_MEMSET_NODE_PARAMS params{};
};
struct CopyWork {
  CUDA_MEMCPY3D params{};
  CopyBox box;
  std::optional<CUDA_MEMCPY3D> array_copy;  // set if either side is an array
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
  uint32_t type = 0;  // CUgraphConditionalNodeType
  std::vector<std::shared_ptr<Graph>> bodies;
  std::vector<CUgraph> body_handles;  // handles of `bodies`, as given to the program
};
using NodeWork = std::variant<std::monostate, KernelWork, FillWork, CopyWork, HostWork, EventWork, ChildWork,
                              OperationsWork, AllocWork, FreeWork, ConditionalWork>;

// A condition that kernels set and conditional nodes test (cuGraphConditionalHandleCreate).
struct GraphCondition {
  uint64_t handle = 0;
  uint64_t context = 0;
  uint32_t initial = 0;
  bool at_launch = false;  // each launch resets it to the initial value
};

// Copies of a node's parameters and the array of their addresses, which cuGraphKernelNodeGetParams returns to
// the program.
struct ReturnedParameters {
  std::vector<std::byte> values;
  std::vector<void*> addresses;
};

struct GraphNode {
  Graph* graph = nullptr;  // null: the node was removed
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  uint64_t handle = 0;
  uint64_t context = 0;
  uint64_t original = 0;  // handle of the node that this one was cloned from; 0: none
  NodeWork work;
  // One per kernel layout; programs keep using the pointers after setting parameters.
  std::vector<std::unique_ptr<ReturnedParameters>> returned_parameters;
  std::vector<GraphNode*> dependencies;
  cuda::EdgesFrom<GraphNode> edges;  // edge data of `dependencies`
  std::vector<GraphNode*> dependents;
};

class Graph {
 public:
  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph();

  // Call all functions with graph_mutex() held. add() returns null if the handle table is full.
  GraphNode* add(CUgraphNodeType type, uint64_t context, NodeWork work,
                 const std::vector<GraphNode*>& dependencies);
  static bool connect(GraphNode& from, GraphNode& to, cuda::EdgeData edge = {});
  static bool disconnect(GraphNode& from, GraphNode& to);
  void remove(GraphNode& node);
  std::shared_ptr<Graph> clone() const;  // null: the handle table is full
  bool has_memory() const;               // true if it has allocation or free nodes
  bool has_conditions() const;           // if true, it can be neither cloned nor added as a child graph
  // Sorts the nodes topologically; false: the graph has a cycle.
  bool in_order(std::vector<GraphNode*>& order) const;

  uint64_t handle = 0;
  std::vector<std::unique_ptr<GraphNode>> nodes;
  std::vector<GraphCondition> conditions;
  cuda::UserReferences user_objects;

 private:
  std::vector<std::unique_ptr<GraphNode>> removed_;
};

// Objects in the handle table for graphs and their nodes.
struct GraphObject : Object {
  std::shared_ptr<Graph> graph;
};
struct GraphNodeObject : Object {
  GraphNode* node = nullptr;
};

// Look-ups by handle; null: no live graph or node has it. Call with graph_mutex() held.
Graph* find_graph(CUgraph handle);
std::shared_ptr<Graph> share_graph(CUgraph handle);
GraphNode* find_node(CUgraphNode handle);
// Gives the graph a handle, which keeps it alive. 0: the handle table is full.
uint64_t publish(const std::shared_ptr<Graph>& graph);

inline CUgraph graph_handle(const Graph& graph) {
  return cuda::handle_from_bits<CUgraph>(graph.handle);
}
inline CUgraphNode node_handle(const GraphNode& node) {
  return cuda::handle_from_bits<CUgraphNode>(node.handle);
}

// --- Work of nodes, made from the program's parameters and checked like the immediate calls ---

// client/api/launch.cc. The kernel is launched in `context`.
CUresult make_kernel(const CUDA_KERNEL_NODE_PARAMS& params, Context& context, KernelWork* work);
// client/api/copy_node.cc. All memory must belong to the context's session; else CUDA_ERROR_NOT_SUPPORTED.
CUresult make_copy(const CUDA_MEMCPY3D& params, Context& context, CopyWork* work);
// Performs a copy node that accesses the program's memory, in the client, when the node's turn has come.
// Returns the stream to synchronise with afterwards; 0: none.
uint64_t copy_now(Context& context, const CopyBox& box);
// Checks a fill: client/api/fill.cc
CUresult check_fill(const CUDA_MEMSET_NODE_PARAMS& params, Context& context);

}  // namespace gpupool::client
