// CUDA graphs: operations with dependencies, described once and launched many times; and stream capture,
// which makes a graph of work that is queued on streams.
//
// A node holds a prototype of its operation, which never starts; an executable graph launches clones of the
// prototypes. One lock of the process, graph_mutex(), guards graphs and nodes, since building them is rare.
// Each executable graph has a lock of its own.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "protocol/calls/graph_edges.h"
#include "protocol/calls/graph_memory.h"
#include "protocol/calls/user_objects.h"
#include "protocol/driver/cuda_header.h"
#include "server/softgpu/runtime/conditional.h"
#include "server/softgpu/runtime/handles.h"
#include "server/softgpu/runtime/op.h"
#include "server/softgpu/runtime/stream.h"
#include "server/softgpu/runtime/transfer.h"

namespace gpupool::softgpu {

std::mutex& graph_mutex();

class Graph;

class GraphNode final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::graph_node;
  GraphNode(Graph& graph, CUgraphNodeType type) : graph(&graph), type(type) {}

  Graph* graph;  // null once the node is destroyed
  const CUgraphNodeType type;
  uint64_t handle = 0;
  Ref<Op> prototype;   // of kernels, copies, fills, host functions and batches of memory operations
  uint64_t event = 0;  // handle, for event nodes
  Ref<Graph> child;    // for child graph nodes
  std::unique_ptr<Conditional> conditional;  // for conditional nodes
  CUDA_MEMCPY3D copy{};                      // for copies: the program's parameters
  CUDA_MEMSET_NODE_PARAMS fill{};
  std::vector<CUstreamBatchMemOpParams> batch;
  cuda::graph_memory::Shared memory;  // for memory nodes
  CUDA_MEM_ALLOC_NODE_PARAMS alloc{};
  // Parameter lists that cuGraphKernelNodeGetParams returned, one per layout of parameters. They stay valid
  // when the parameters are set, because programs keep using them.
  struct ReturnedParameters {
    std::vector<std::byte> values;
    std::vector<void*> addresses;
  };
  std::vector<std::unique_ptr<ReturnedParameters>> returned_parameters;
  uint64_t original = 0;  // handle of the node that this one was cloned from; 0: none
  std::vector<GraphNode*> dependencies;
  cuda::EdgesFrom<GraphNode> edges;  // edge data of the dependencies
  std::vector<GraphNode*> dependents;
};

class Graph final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::graph;
  // All functions: with graph_mutex() held. connect() returns false for an existing edge, an edge from a node
  // to itself or to another graph; disconnect() for a missing edge.
  Ref<GraphNode> add(CUgraphNodeType type, const std::vector<GraphNode*>& dependencies);
  static bool connect(GraphNode& from, GraphNode& to, cuda::EdgeData edge = {});
  static bool disconnect(GraphNode& from, GraphNode& to);
  void remove(GraphNode& node);
  void clear();
  Ref<Graph> clone() const;
  // Returns the nodes in topological order; empty if the graph has a cycle or no nodes.
  std::vector<GraphNode*> topological_order() const;
  // Graphs with conditions or memory nodes can neither be cloned nor be child graphs.
  bool has_conditions() const;
  bool has_memory() const;

  uint64_t handle = 0;
  std::vector<Ref<GraphNode>> nodes;
  std::vector<std::pair<uint64_t, Ref<Condition>>> conditions;  // with their handles
  cuda::UserReferences user_objects;

 private:
  std::vector<Ref<GraphNode>> removed_;  // captures and events may still refer to them
};

class GraphExec final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::graph_exec;
  explicit GraphExec(uint64_t flags) : flags(flags) {}

  // Instantiates the graph. With graph_mutex() held. CUDA_ERROR_INVALID_VALUE if it has a cycle, or if the
  // body of a conditional node has nodes of other types than CUDA allows.
  CUresult build(const Graph& graph);
  // Implements cuGraphExecUpdate: takes over the operations of a graph of the same shape. Otherwise fails
  // with CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE; *mismatch is the first node of `graph` that differs, if the
  // numbers of nodes are equal. With graph_mutex() held.
  CUresult update(const Graph& graph, uint64_t* mismatch);
  // Replaces the operations of the child graph `embedded` by those of `child`, which must have the same
  // shape. With graph_mutex() held.
  CUresult update_child(const Graph& embedded, const Graph& child);
  CUresult launch(Stream& stream);
  // Makes the operations of one run, behind `begin` and before `end`. The caller submits them, then `end`,
  // then `begin`. With `mutex` held, unless this is the body of a conditional node.
  std::vector<Ref<Op>> make_ops(Context& context, Op& begin, Op& end) const;
  // One node. Child graphs are flattened into their parent's entries.
  struct Entry {
    CUgraphNodeType type;
    Ref<Op> prototype;
    uint64_t event = 0;
    uint64_t node = 0;  // handle of the node that the entry was made from
    bool enabled = true;
    Ref<Condition> condition;  // for conditional nodes
    uint32_t condition_type = 0;
    std::vector<Ref<GraphExec>> bodies;
    std::vector<uint32_t> dependencies;  // indices of earlier entries, which must be complete
    std::vector<cuda::EdgeData> edges;   // edge data of the dependencies
    bool leaf = true;
  };
  // Returns the entry that was made from the node, or null. With `mutex` held.
  Entry* find(uint64_t node);
  size_t nodes() const { return entries_.size(); }

  const uint64_t flags;
  std::mutex mutex;
  // References of the source graph, shared with launches in flight.
  std::shared_ptr<cuda::UserReferences> user_objects;
  std::vector<cuda::graph_memory::Shared> allocated, freed;

 private:
  bool append(const Graph& graph, const std::vector<uint32_t>& roots, std::vector<uint32_t>* leaves);
  // True if the other graph has the same nodes in the same order. Otherwise *mismatch is the first of its
  // nodes that differs, if the numbers of nodes are equal.
  bool same_shape(const GraphExec& other, uint64_t* mismatch) const;
  bool may_be_body() const;  // CUDA allows some types of nodes only
  void collect_conditions(std::vector<Ref<Condition>>& all) const;
  void collect_references(const Graph& graph);
  std::vector<Entry> entries_;
  std::vector<Ref<Condition>> assigned_at_launch_;  // including those of bodies
  Ref<Op> last_;                                    // end of the previous launch; launches do not overlap
};

// Sets the parameters that cuGraphMemcpyNodeGetParams or cuGraphMemsetNodeGetParams returns for a captured
// transfer.
void describe_transfer(const Transfer& transfer, GraphNode& node);

// Number of captures in progress; most calls only compare it with 0.
inline constinit std::atomic<int> captures_in_progress{0};
// The calling thread's capture mode (cuThreadExchangeStreamCaptureMode).
CUstreamCaptureMode& thread_capture_mode();
// Called by functions that are potentially unsafe during stream capture (cuStreamBeginCapture). If a capture
// forbids them in this thread, invalidates it and returns CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED. Without
// graph_mutex() held.
CUresult refuse_unsafe();

// A capture in progress, shared by the streams that take part in it.
class Capture final : public Object {
 public:
  Capture(Ref<Graph> graph, CUstreamCaptureMode mode, uint64_t id, const Stream* origin, bool owns_graph)
      : graph(std::move(graph)),
        mode(mode),
        id(id),
        origin(origin),
        owns_graph(owns_graph),
        thread(std::this_thread::get_id()) {
    add_to_list();
  }

  const Ref<Graph> graph;
  const CUstreamCaptureMode mode;
  const uint64_t id;
  const Stream* const origin;
  const bool owns_graph;  // made by cuStreamBeginCapture, not given by the program
  const std::thread::id thread;
  // With graph_mutex() held:
  bool invalid = false;
  bool ended = false;
  std::map<const Stream*, std::vector<CapturedDependency>> frontier;  // dependencies of a stream's next node
  // The lists that cuStreamGetCaptureInfo returned for a stream; valid until its next query or the end of the
  // capture.
  struct ReturnedDependencies {
    std::vector<CUgraphNode> nodes;
    std::vector<CUgraphEdgeData> edges;
  };
  std::map<const Stream*, ReturnedDependencies> returned_dependencies;
  std::vector<Ref<Stream>> streams;

  // Adds a node for the operation. If the operation cannot be cloned, invalidates the capture and returns
  // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.
  CUresult add_op(const Stream& stream, const Ref<Op>& op);
  // Adds a node without an operation. `event`: the handle of an event node's event, else 0.
  Ref<GraphNode> add_node(const Stream& stream, CUgraphNodeType type, uint64_t event);
  // Adds the stream to the capture, if it is new, and makes its next node depend on `nodes`.
  void join(const Ref<Stream>& stream, const std::vector<CapturedDependency>& nodes);
  // Called when the stream is destroyed. Destroying the first stream invalidates and ends the capture; work
  // captured from another stream must still be joined.
  void stream_destroyed(Stream& stream);
  void end();

 private:
  ~Capture() override { remove_from_list(); }
  Ref<GraphNode> append(const Stream& stream, CUgraphNodeType type);
  void add_to_list();
  void remove_from_list();
};

}  // namespace gpupool::softgpu
