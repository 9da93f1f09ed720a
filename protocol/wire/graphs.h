// Bodies of the commands about graphs. As in commands.h.
#pragma once
#include <cstdint>

#include "protocol/wire/frame.h"

namespace gpupool::wire {

// Graphs are built in the client; the server gets what is to be executed. graph_nodes: `count` times a GraphNode, its
// dependencies (u32 each, numbers of earlier nodes of the same graph), its edges and its body follow; they are appended to the graph,
// which the first such command makes. What is wrong with a node is told by the command that uses the graph.
struct GraphNodes {
  uint64_t graph;
  uint32_t count;
  uint32_t reserved;
};
enum class GraphNodeKind : uint32_t {
  empty = 0,              // no body
  kernel = 1,             // Launch without a stream, its attributes and parameters
  fill = 2,               // GraphFill
  copy = 3,               // GraphCopy; CUDA_MEMCPY3D with handles of arrays, where an end is one
  host = 4,               // GraphHost
  event_record = 5,       // GraphEvent
  event_wait = 6,         // GraphEvent
  memory_operations = 7,  // CUstreamBatchMemOpParams, as many as there are
  condition = 8,          // GraphCondition; before all that name it, in the graph that is instantiated. Does nothing in a launch
  conditional = 9,        // GraphConditional, then as many handles of graphs (u64) as it has bodies, to which graph_nodes adds
};
constexpr uint64_t kMaxGraphNodes = 1u << 20;  // of one session, in all of its graphs
struct GraphNode {
  GraphNodeKind kind;
  uint32_t dependency_count;
  uint32_t body_bytes;
  uint32_t edge_count;
  uint64_t context;       // 0 where the kind needs none
};
// The data of an edge from a dependency, as CUgraphEdgeData has it. Edges without one are full dependencies.
struct GraphEdge {
  uint32_t from;          // one of the dependencies, in ascending order
  uint8_t from_port;
  uint8_t type;
  uint16_t reserved;
  bool operator==(const GraphEdge&) const = default;
};
struct GraphFill {
  uint64_t address;
  uint64_t pitch;
  uint32_t value;
  uint32_t element;       // bytes: 1, 2 or 4
  uint64_t width;         // in elements
  uint64_t height;
};
struct GraphCopy {        // within the device
  uint64_t from, from_pitch, from_height;  // height: rows from one slice to the next
  uint64_t to, to_pitch, to_height;
  uint64_t width, height, depth;
};
// The client does something: a host function, or a copy from or to its memory. It is told with MessageKind::host_callback and
// answers with host_function_done, each time a launch gets there.
struct GraphHost {
  uint64_t callback;      // a number of the client's that no other host function, hold or node has
};
struct GraphEvent {
  uint64_t event;
};
// What cudaGraphSetConditional sets. Kernels' parameters have `handle` where the device's is to be.
struct GraphCondition {
  uint64_t handle;
  uint32_t initial;
  uint32_t at_launch;     // 0 or 1: it has the initial value at the beginning of each launch
};
// A body has kernels, fills, copies within the device, conditionals and empty nodes; it ends with the graph that it is in.
struct GraphConditional {
  uint64_t condition;
  uint32_t type;          // CUgraphConditionalNodeType
  uint32_t bodies;
};
constexpr uint32_t kMaxGraphBodies = 1u << 12;  // of one node
// instantiate_graph makes an executable graph of a graph, which it takes over; update_graph gives it the work of another graph of
// the same shape, which is gone then. Both reply with a GraphResult, also when the result is an error.
struct InstantiateGraph {
  uint64_t graph;
  uint64_t executable;    // new handle
  uint64_t flags;         // CUgraphInstantiate_flags
};
struct UpdateGraph {
  uint64_t executable;
  uint64_t graph;
};
constexpr uint32_t kNoGraphNode = ~0u;
// GraphResult::result of instantiate_graph: values of CUgraphInstantiateResult, which cuda.h has since CUDA 12.0.
constexpr uint32_t kGraphInstantiated = 0;
constexpr uint32_t kGraphInstantiateError = 1;
struct GraphResult {
  uint32_t result;        // CUgraphInstantiateResult or CUgraphExecUpdateResult
  uint32_t node;          // that is to blame
};
// set_graph_node: new work for a node of an executable graph; a GraphNode without dependencies and its body follow.
// enable_graph_node: it is executed, or stands empty.
struct SetGraphNode {
  uint64_t executable;
  uint32_t node;          // number in the graph that the executable one was made of
  uint32_t enabled;       // 0 or 1; 0 for set_graph_node
};
struct LaunchGraph {      // launch_graph, upload_graph
  uint64_t executable;
  uint64_t stream;
};
struct DestroyGraph {
  uint64_t executable;    // or a graph that was not instantiated
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
