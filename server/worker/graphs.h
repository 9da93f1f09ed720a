// The session's graphs: what the client has described node by node, and what the device made of it.
//
// The client does everything that only looks at a graph; a graph is here to become an executable one, or to update one, and
// is gone then. What a node says is checked when it is added, and what is wrong with one is told when the graph is used. Nodes that need
// the client (host functions, copies from and to its memory) are host functions of the device in which HostCallbacks waits
// for it. The executor's thread.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "protocol/wire/graphs.h"
#include "protocol/wire/reader.h"
#include "server/worker/compute_lane.h"
#include "server/worker/contexts.h"
#include "server/worker/host_callbacks.h"

namespace gpupool::worker {

class Executor;

constexpr size_t kMaxGraphs = 1u << 16;               // of one session, executable ones among them
constexpr uint64_t kMaxGraphEdges = 4u << 20;         // in all of them
static_assert(wire::kMaxGraphNodes <= kMaxGraphEdges);

struct NodeWork;  // graph_work.h

class Graphs {
 public:
  explicit Graphs(Executor& session) : session_(session) {}
  ~Graphs();

  // False: malformed.
  bool add(const wire::GraphNodes& head, wire::Reader& nodes);
  CUresult instantiate(const wire::InstantiateGraph& body, wire::GraphResult& result);
  CUresult update(const wire::UpdateGraph& body, wire::GraphResult& result);
  // nullopt: malformed.
  std::optional<CUresult> set(const wire::SetGraphNode& head, wire::Reader& node);
  CUresult enable(const wire::SetGraphNode& body);
  // The stream's context is current.
  CUresult launch(uint64_t executable, StreamState& stream);
  CUresult upload(uint64_t executable, StreamState& stream);
  CUresult destroy(uint64_t handle);

  // The context is about to end, and whatever uses it; everything is done.
  void drop(const ContextState& context);
  void clear();
  size_t size() const { return graphs_.size(); }
  // An executable graph that records events or waits for them.
  bool has_events(uint64_t executable) const;
  // The device has an array's address in it, which nobody can change.
  bool names_array() const;

 private:
  struct Node {
    CUgraphNode object = nullptr;
    wire::GraphNodeKind kind{};
    ContextState* context = nullptr;
    CUevent event = nullptr;         // held
    uint64_t callback = 0;           // kept
    bool names_array = false;
    bool only = false;               // everything else of the graph is before it or behind it
  };
  struct Graph {
    CUgraph object = nullptr;
    CUgraphExec executable = nullptr;  // null: not instantiated yet
    std::vector<Node> nodes;
    std::vector<std::vector<uint32_t>> dependencies;  // of each node, until it is executable
    uint64_t edges = 0;
    Graph* root = nullptr;             // of a body: the graph that it will end with
    std::vector<uint64_t> bodies;      // of a root: numbers of them all
    std::vector<std::unique_ptr<Graph>> inner;  // the same, once it is executable
    std::unordered_map<uint64_t, uint64_t> conditions;  // of a root: the device's handle for the client's
    size_t refused = 0;                // nodes that were not kept, since one was wrong
    CUresult wrong = CUDA_SUCCESS;
    uint32_t wrong_node = wire::kNoGraphNode;
  };
  using Owner = std::unique_ptr<Graph>;

  Graph* find(uint64_t handle, bool executable);
  CUresult add_node(Graph& graph, const NodeWork& work, std::span<const uint32_t> dependencies);
  CUresult add_condition(Graph& graph, const NodeWork& work);
  CUresult add_conditional(Graph& graph, const NodeWork& work, std::span<const CUgraphNode> before, CUgraphNode* object);
  bool refuse_bodies(Graph& graph, wire::Reader body);
  static void translate_conditions(const Graph& graph, NodeWork& work);
  // Takes it, with its bodies, out of the table; null: there is none that is whole and not executable.
  Owner take(uint64_t handle);
  CUresult change_node(Graph& graph, Node& node, const NodeWork& work);
  void hold(Node& node, const NodeWork& work);
  void let_go(Node& node);
  void end(Graph& graph);
  void find_lonely(Graph& graph);

  Executor& session_;
  std::unordered_map<uint64_t, Owner> graphs_;
  uint64_t nodes_ = 0;
  uint64_t edges_ = 0;
};

}  // namespace gpupool::worker
