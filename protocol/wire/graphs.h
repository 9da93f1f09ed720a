// Bodies of the commands about graphs. Conventions as in commands.h.
#pragma once
#include <cstdint>

#include "protocol/wire/frame.h"

namespace gpupool::wire {

// Graphs are built in the client; the server gets those that are to be executed. graph_nodes: `count` nodes
// follow, each a GraphNode, its dependencies (u32 numbers of earlier nodes of the graph), its edges and its
// body. They are appended to the graph, which the first graph_nodes makes. Errors in nodes are reported by
// the command that uses the graph.
struct GraphNodes {
  uint64_t graph;
  uint32_t count;
  uint32_t reserved;
};
enum class GraphNodeKind : uint32_t {
  empty = 0,              // no body
  kernel = 1,             // Launch without a stream, then its attributes and parameters
  fill = 2,               // GraphFill
  copy = 3,               // GraphCopy; CUDA_MEMCPY3D with handles of arrays, if one end is an array
  host = 4,               // GraphHost
  event_record = 5,       // GraphEvent
  event_wait = 6,         // GraphEvent
  memory_operations = 7,  // an array of CUstreamBatchMemOpParams
  // GraphCondition; precedes the nodes that name it, in the instantiated graph; does nothing in a launch
  condition = 8,
  // GraphConditional, then u64 handles of its bodies, which are graphs that graph_nodes adds to
  conditional = 9,
};
constexpr uint64_t kMaxGraphNodes = 1u << 20;  // in all graphs of a session
struct GraphNode {
  GraphNodeKind kind;
  uint32_t dependency_count;
  uint32_t body_bytes;
  uint32_t edge_count;
  uint64_t context;  // 0 if the kind needs none
};
// CUgraphEdgeData of a dependency. Dependencies without it are full dependencies.
struct GraphEdge {
  uint32_t from;  // one of the dependencies; edges are in ascending order
  uint8_t from_port;
  uint8_t type;
  uint16_t reserved;
  bool operator==(const GraphEdge&) const = default;
};
struct GraphFill {
  uint64_t address;
  uint64_t pitch;
  uint32_t value;
  uint32_t element;  // bytes: 1, 2 or 4
  uint64_t width;    // in elements
  uint64_t height;
};
struct GraphCopy {                         // within the device
  uint64_t from, from_pitch, from_height;  // heights: rows from one slice to the next
  uint64_t to, to_pitch, to_height;
  uint64_t width, height, depth;
};
// A node that the client executes: a host function, or a copy from or to its memory. In each launch the
// server sends MessageKind::host_callback and waits for host_function_done.
struct GraphHost {
  uint64_t callback;  // number that the client uses for no other host function, hold or node
};
struct GraphEvent {
  uint64_t event;
};
// The condition that device code sets with cudaGraphSetConditional(). Kernel parameters have `handle`, which
// the worker replaces by the device's handle.
struct GraphCondition {
  uint64_t handle;
  uint32_t initial;
  uint32_t at_launch;  // 1: each launch sets the initial value; else 0
};
// A body has kernels, fills, copies within the device, conditionals and empty nodes. It is destroyed with the
// graph that has the node.
struct GraphConditional {
  uint64_t condition;
  uint32_t type;  // CUgraphConditionalNodeType
  uint32_t bodies;
};
constexpr uint32_t kMaxGraphBodies = 1u << 12;  // of one node
// instantiate_graph makes an executable graph from a graph and takes the graph over. update_graph gives an
// executable graph the work of another graph of the same shape, which it takes over. Both reply with a
// GraphResult, even if the result is an error.
struct InstantiateGraph {
  uint64_t graph;
  uint64_t executable;  // new handle
  uint64_t flags;       // CUgraphInstantiate_flags
};
struct UpdateGraph {
  uint64_t executable;
  uint64_t graph;
};
constexpr uint32_t kNoGraphNode = ~0u;
// Values of GraphResult::result for instantiate_graph: CUgraphInstantiateResult, which cuda.h has since CUDA
// 12.0.
constexpr uint32_t kGraphInstantiated = 0;
constexpr uint32_t kGraphInstantiateError = 1;
struct GraphResult {
  uint32_t result;  // CUgraphInstantiateResult or CUgraphExecUpdateResult
  uint32_t node;    // node that caused the error, or kNoGraphNode
};
// set_graph_node: replaces the work of a node of an executable graph; a GraphNode without dependencies and
// its body follow. enable_graph_node: enables a node, or turns it into an empty one.
struct SetGraphNode {
  uint64_t executable;
  uint32_t node;     // number in the graph that was instantiated
  uint32_t enabled;  // 0 or 1; 0 for set_graph_node
};
struct LaunchGraph {  // launch_graph, upload_graph
  uint64_t executable;
  uint64_t stream;
};
struct DestroyGraph {
  uint64_t executable;  // or a graph that was not instantiated
};

static_assert(kIsBody<GraphNodes, 16>);
static_assert(kIsBody<GraphNode, 24>);
static_assert(kIsBody<GraphEdge, 8>);
static_assert(kIsBody<GraphFill, 40>);
static_assert(kIsBody<GraphCopy, 72>);
static_assert(kIsBody<GraphHost, 8>);
static_assert(kIsBody<GraphEvent, 8>);
static_assert(kIsBody<GraphCondition, 16>);
static_assert(kIsBody<GraphConditional, 16>);
static_assert(kIsBody<InstantiateGraph, 24>);
static_assert(kIsBody<UpdateGraph, 16>);
static_assert(kIsBody<GraphResult, 8>);
static_assert(kIsBody<SetGraphNode, 16>);
static_assert(kIsBody<LaunchGraph, 16>);
static_assert(kIsBody<DestroyGraph, 8>);

}  // namespace gpupool::wire
