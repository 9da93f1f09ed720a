// CUDA graphs: operations with dependencies that are described once and launched many times; and the capture
// of what is queued on streams into a graph.
//
// A node holds a prototype of its operation, never started itself; an executable graph launches clones of the
// prototypes. Graphs and nodes are guarded by one lock of the process (graph_mutex()), since building them is
// rare; executable graphs have a lock each.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "protocol/cuda/cuda_header.h"
#include "protocol/cuda/graph_edges.h"
#include "protocol/cuda/graph_memory.h"
#include "protocol/cuda/user_objects.h"
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
  Ref<Op> prototype;     // kernels, copies, fills, host functions, memory operations
  uint64_t event = 0;    // handle, of event nodes
  Ref<Graph> child;      // of child graph nodes
  std::unique_ptr<Conditional> conditional;  // of conditional nodes
  CUDA_MEMCPY3D copy{};  // as given, of copies
  CUDA_MEMSET_NODE_PARAMS fill{};
  std::vector<CUstreamBatchMemOpParams> batch;
  cuda::graph_memory::Shared memory;  // of memory nodes
  CUDA_MEM_ALLOC_NODE_PARAMS alloc{};
  // Parameter lists that cuGraphKernelNodeGetParams lends to the program, one per kernel layout. They stay valid after SetParams, because
  // programs go on using them.
  struct LentParameters {
    std::vector<std::byte> values;
    std::vector<void*> addresses;
  };
  std::vector<std::unique_ptr<LentParameters>> lent;
  uint64_t original = 0;          // handle of the node that this one was cloned from
  std::vector<GraphNode*> dependencies;
  cuda::EdgesFrom<GraphNode> edges;  // from the dependencies
  std::vector<GraphNode*> dependents;
};

class Graph final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::graph;
  // All with graph_mutex() held.
  Ref<GraphNode> add(CUgraphNodeType type, const std::vector<GraphNode*>& dependencies);
  static bool connect(GraphNode& from, GraphNode& to, cuda::EdgeData edge = {});
  static bool disconnect(GraphNode& from, GraphNode& to);
  void remove(GraphNode& node);
  void clear();
  Ref<Graph> clone() const;
  // Nodes before those that depend on them; empty for a graph with a cycle (or without nodes).
  std::vector<GraphNode*> in_order() const;
  // Such graphs can be neither cloned nor another one's child.
  bool has_conditions() const;
  bool has_memory() const;

  uint64_t handle = 0;
  std::vector<Ref<GraphNode>> nodes;
  std::vector<std::pair<uint64_t, Ref<Condition>>> conditions;  // with their handles
  cuda::UserReferences user_objects;

 private:
  std::vector<Ref<GraphNode>> removed_;  // captures and events may still name them
};

class GraphExec final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::graph_exec;
  explicit GraphExec(uint64_t flags) : flags(flags) {}

  // From a graph, with graph_mutex() held: CUDA_ERROR_INVALID_VALUE when it has a cycle.
  CUresult build(const Graph& graph);
  // Takes over the operations of a graph of the same shape; the node that does not fit otherwise.
  CUresult update(const Graph& graph, uint64_t* mismatch);
  // Takes over the operations of `child` for those of a child graph that it was built with. With graph_mutex() held.
  CUresult update_child(const Graph& embedded, const Graph& child);
  CUresult launch(Stream& stream);
  // The operations of one run, behind `begin` and before `end`, which the caller submits after them. With mutex held, or of a body.
  std::vector<Ref<Op>> make_ops(Context& context, Op& begin, Op& end) const;
  // The entry made from a node of the graph, or null. With mutex held.
  struct Entry {
    CUgraphNodeType type;
    Ref<Op> prototype;
    uint64_t event = 0;
    uint64_t node = 0;  // handle of the node that it was made from
    bool enabled = true;
    Ref<Condition> condition;             // of conditional nodes
    uint32_t condition_type = 0;
    std::vector<Ref<GraphExec>> bodies;
    std::vector<uint32_t> dependencies;  // earlier entries, all of which are waited for to their end
    std::vector<cuda::EdgeData> edges;   // their data
    bool leaf = true;
  };
  Entry* find(uint64_t node);
  size_t nodes() const { return entries_.size(); }

  const uint64_t flags;
  std::mutex mutex;
  // Of the graph that it was made from; launches in flight hold them too.
  std::shared_ptr<cuda::UserReferences> user_objects;
  std::vector<cuda::graph_memory::Shared> allocated, freed;

 private:
  bool append(const Graph& graph, const std::vector<uint32_t>& roots, std::vector<uint32_t>* leaves);
  // Whether the other one has the same nodes in the same order; the node that does not fit otherwise.
  bool same_shape(const GraphExec& other, uint64_t* mismatch) const;
  bool may_be_body() const;  // as CUDA has it
  void collect_conditions(std::vector<Ref<Condition>>& all) const;
  void hold(const Graph& graph);
  std::vector<Entry> entries_;
  std::vector<Ref<Condition>> assigned_at_launch_;  // of all bodies, too
  Ref<Op> last_;  // launches of one executable graph follow each other
};

// Fills in what cuGraphMemcpyNodeGetParams and cuGraphMemsetNodeGetParams answer.
void describe_transfer(const Transfer& transfer, GraphNode& node);

// Is any stream captured?
inline constinit std::atomic<int> captures_in_progress{0};
// cuThreadExchangeStreamCaptureMode, of the calling thread.
CUstreamCaptureMode& thread_capture_mode();
// A call that CUDA counts among the unsafe ones: may this thread make it now? Without graph_mutex() held.
CUresult refuse_unsafe();

// A capture in progress, shared by the streams that take part in it.
class Capture final : public Object {
 public:
  Capture(Ref<Graph> graph, CUstreamCaptureMode mode, uint64_t id, const Stream* origin, bool own_graph)
      : graph(std::move(graph)), mode(mode), id(id), origin(origin), own_graph(own_graph), thread(std::this_thread::get_id()) {
    enlist();
  }

  const Ref<Graph> graph;
  const CUstreamCaptureMode mode;
  const uint64_t id;
  const Stream* const origin;
  const bool own_graph;  // made for it
  const std::thread::id thread;
  // With graph_mutex() held:
  bool invalid = false;
  bool ended = false;
  std::map<const Stream*, std::vector<CapturedDependency>> frontier;  // what a stream's next operation depends on
  std::vector<Ref<Stream>> streams;

  CUresult add_op(const Stream& stream, const Ref<Op>& op);
  // An event node or an edge set in place of an operation.
  Ref<GraphNode> add_node(const Stream& stream, CUgraphNodeType type, uint64_t event);
  // The stream takes part from now on, behind the nodes.
  void join(const Ref<Stream>& stream, const std::vector<CapturedDependency>& nodes);
  // The stream is destroyed. Without its first stream nobody can end the capture any more; of another one the work must still be joined.
  void leave(Stream& stream);
  void end();

 private:
  ~Capture() override { strike(); }
  Ref<GraphNode> append(const Stream& stream, CUgraphNodeType type);
  void enlist();
  void strike();
};

}  // namespace gpupool::softgpu
