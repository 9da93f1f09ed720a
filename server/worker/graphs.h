// The session's graphs: what the client has described node by node, and what the device made of it.
//
// The client does everything that only looks at a graph; a graph is here to become an executable one, or to update one, and
// is gone then. A node is checked when it is added, and the command that uses the graph reports what is wrong with it. The executor's thread.
//
// Client nodes (host functions, copies from and to the client's memory) do not get to the driver: no operation there may wait for the client.
// They cut the graph into parts. The level of a node is the largest number of client nodes on a path to it, and part k is a graph of
// the device's with the nodes of level k. Edges between parts are implied by the order in which a launch gives the parts to the driver
// (graph_launch.cc). Bodies of conditional nodes, which could not be cut, have no client nodes: CUDA allows none, and add() ends the session.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "protocol/wire/graphs.h"
#include "protocol/wire/reader.h"
#include "server/worker/command_order.h"
#include "server/worker/contexts.h"
#include "server/worker/stream_gates.h"

namespace gpupool::worker {

class Executor;

constexpr size_t kMaxGraphs = 1u << 16;               // of one session, executable ones among them
constexpr uint64_t kMaxGraphEdges = 4u << 20;         // in all of them
constexpr size_t kMaxClientNodes = 65536;             // likewise
// Device memory that a driver takes for each node of an executable graph that gives the device work; reported of kernels and driver 550.
constexpr uint64_t kGraphNodeBytes = 64 * 1024;
static_assert(wire::kMaxGraphNodes <= kMaxGraphEdges);

struct NodeWork;  // graph_work.h

class Graphs {
 public:
  explicit Graphs(Executor& session) : session_(session) {}
  ~Graphs();

  // False: malformed.
  bool add(const wire::GraphNodes& head, wire::Reader& nodes);
  CUresult instantiate(const wire::InstantiateGraph& body, wire::GraphResult& result);
  // `accepted`: the client takes the executable graph for updated already. After an error its launches fail then.
  CUresult update(const wire::UpdateGraph& body, wire::GraphResult& result, bool accepted);
  // nullopt: malformed.
  std::optional<CUresult> set(const wire::SetGraphNode& head, wire::Reader& node);
  CUresult enable(const wire::SetGraphNode& body);
  // The stream's context is current. `command`: the sequence number of the launch.
  CUresult launch(uint64_t executable, StreamState& stream, uint64_t command);
  CUresult upload(uint64_t executable, StreamState& stream);
  CUresult destroy(uint64_t handle);

  // Some launch has parts that the driver does not have yet.
  bool launching() const { return !launches_.empty(); }
  // The stream, or the context with its streams, is about to be destroyed: no further parts go there.
  void give_up_launches(const StreamState& stream);
  void give_up_launches(const ContextState& context);
  // The context is about to end, and whatever uses it; everything is done.
  void drop(const ContextState& context);
  void clear();
  size_t size() const { return graphs_.size(); }
  // Adds the client's handles of the events that an executable graph waits for and records.
  void add_events(uint64_t executable, OrderKeys& waits_for, OrderKeys& records) const;
  // The device has an array's address in it, which nobody can change.
  bool names_array() const;

 private:
  struct Node {
    CUgraphNode object = nullptr;    // null: a client node
    wire::GraphNodeKind kind{};
    uint32_t level = 0;
    bool behind_work = false;        // of the device in its own part
    ContextState* context = nullptr;
    CUevent event = nullptr;         // held
    uint64_t event_handle = 0;       // the client's
    uint64_t callback = 0;           // of a client node; in callbacks_
    bool names_array = false;
  };
  struct Part {
    CUgraph object = nullptr;          // null: nothing but client nodes so far
    CUgraphExec executable = nullptr;  // null: not instantiated yet, or no work in it
    CUgraph updated_from = nullptr;    // by the last update; null: there was none
    bool has_changed_nodes = false;    // set one by one since then
    uint32_t works = 0;                // nodes that are not empty
    std::vector<uint32_t> client_nodes;  // their numbers; the next part comes after these
  };
  struct Condition {
    wire::GraphCondition wanted;
    ContextState* context;
    uint64_t made = 0;                 // the device's handle; 0: none yet
    uint32_t level = 0;                // of the part that has it
  };
  struct Graph {
    bool is_executable = false;
    std::vector<Part> parts = std::vector<Part>(1);
    std::vector<Node> nodes;
    uint64_t edges = 0;
    Graph* root = nullptr;             // of a body: the graph that it will end with
    uint32_t level = 0;                // of a body: of the part that it is in
    std::vector<uint64_t> bodies;      // of a root: numbers of them all
    std::vector<std::unique_ptr<Graph>> inner;  // the same, once it is executable
    std::unordered_map<uint64_t, Condition> conditions;  // of a root, by the client's handle
    std::map<int, uint64_t> charged;   // of an executable graph: bytes of the quota, by device
    size_t refused = 0;                // nodes that were not kept, since one was wrong
    CUresult wrong = CUDA_SUCCESS;     // of an executable graph: an update that failed half way
    uint32_t wrong_node = wire::kNoGraphNode;
  };
  // Of a graph with client nodes, until the driver has all of its parts.
  struct Launch {
    Graph* graph;                      // null: over
    StreamState* stream;
    uint64_t command;                  // its sequence number
    uint32_t next = 0;                 // the part that comes next
    size_t unanswered = 0;             // client nodes of the part before
    std::vector<std::pair<uint64_t, std::shared_ptr<StreamGate>>> gates;  // theirs, by number
    std::atomic<bool> failed{false};
    struct Held {                      // a key in the backlog
      uint32_t part;                   // it is released behind this one
      uint64_t key;
      bool writes;
    };
    std::vector<Held> held;
  };
  using Owner = std::unique_ptr<Graph>;

  Graph* find(uint64_t handle, bool executable);
  // Both lists in ascending order; `edges` has those that are not full dependencies.
  struct Dependencies {
    std::vector<uint32_t> numbers;
    std::vector<wire::GraphEdge> edges;
    bool read(wire::Reader& reader, const wire::GraphNode& node, size_t index);
  };
  CUresult add_node(Graph& graph, const NodeWork& work, const Node& place, const Dependencies& dependencies);
  CUresult add_to_device(Graph& graph, const NodeWork& work, Node& node, const Dependencies& dependencies);
  CUresult make_node(Graph& graph, const NodeWork& work, Node& node, const std::vector<CUgraphNode>& before);
  CUresult connect(CUgraph graph, CUgraphNode from, CUgraphNode to, const wire::GraphEdge& edge);
  // Whether the edges are such as CUDA has between nodes of these kinds.
  static bool may_have(const Graph& graph, wire::GraphNodeKind kind, const std::vector<wire::GraphEdge>& edges);
  // Where a node with these dependencies stands.
  static Node place(const Graph& graph, std::span<const uint32_t> dependencies);
  CUresult keep_condition(Graph& graph, const NodeWork& work);
  // Makes the condition, if it is not made, in the part of `level`; all that names it must be there.
  CUresult use_condition(Graph& root, Condition& condition, uint32_t level);
  CUresult add_conditional(Graph& graph, const NodeWork& work, uint32_t level, std::span<const CUgraphNode> before, CUgraphNode* object);
  bool refuse_bodies(Graph& graph, wire::Reader body);
  CUresult translate_conditions(Graph& graph, uint32_t level, NodeWork& work);
  // Takes it, with its bodies, out of the table; null: there is none that is whole and not executable.
  Owner take(uint64_t handle);
  CUresult update_parts(Graph& target, Graph& graph, wire::GraphResult& result);
  bool restore_parts(const Graph& target, size_t count);
  CUresult change_node(Graph& graph, Node& node, const NodeWork& work);
  CUresult charge(Graph& graph);
  CUresult hold(Node& node, const NodeWork& work);
  void let_go(Node& node);
  void end(Graph& graph);

  // graph_launch.cc
  CUresult launch_part(const Part& part, StreamState& stream);
  CUresult go_on(const std::shared_ptr<Launch>& launch);
  CUresult call_client(const std::shared_ptr<Launch>& launch, const Part& part, bool behind_work);
  void answered(const std::shared_ptr<Launch>& launch);
  void release(const Launch::Held& held);
  void finish(std::shared_ptr<Launch> launch);
  void give_up_launches(const Graph& graph);
  template <class F>
  void give_up(F&& which);

  Executor& session_;
  std::unordered_map<uint64_t, Owner> graphs_;
  std::unordered_set<uint64_t> callbacks_;
  std::vector<std::shared_ptr<Launch>> launches_;
  uint64_t nodes_ = 0;
  uint64_t edges_ = 0;
};

}  // namespace gpupool::worker
