// The session's graphs: the nodes that the client has described, and the device's graphs made from them.
// Executor's thread.
//
// Queries about graphs are answered in the client. A graph exists here only until it is instantiated or used
// for an update. Nodes are checked when they are added; the command that uses the graph reports the first
// error.
//
// Client nodes (host functions, copies from and to the client's memory) are not given to the driver, because
// no driver operation may wait for the client. They divide the graph into parts: the level of a node is the
// largest number of client nodes on any path to it, and part k is a device graph of the nodes of level k. The
// order in which a launch gives the parts to the driver implies the edges between parts (graph_launch.cc).
// Bodies of conditional nodes cannot be divided; they have no client nodes, because CUDA allows none there
// and add() ends the session of a client that sends one.
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
#include "server/worker/session/command_order.h"
#include "server/worker/session/contexts.h"
#include "server/worker/session/stream_gates.h"

namespace gpupool::worker {

class Session;

constexpr size_t kMaxGraphs = 1u << 16;        // per session, including executable graphs
constexpr uint64_t kMaxGraphEdges = 4u << 20;  // in all graphs of a session
constexpr size_t kMaxClientNodes = 65536;      // in all graphs of a session
// Bytes of device memory that a driver uses per node of an executable graph that runs on the device; reported
// for kernel nodes and driver 550.
constexpr uint64_t kGraphNodeBytes = 64 * 1024;
static_assert(wire::kMaxGraphNodes <= kMaxGraphEdges);

struct NodeWork;  // graph_work.h

class Graphs {
 public:
  explicit Graphs(Session& session) : session_(session) {}
  ~Graphs();

  // Appends nodes to a graph, which is created if needed. Returns false if they are malformed.
  bool add(const wire::GraphNodes& head, wire::Reader& nodes);
  CUresult instantiate(const wire::InstantiateGraph& body, wire::GraphResult& result);
  // `accepted`: the client has already been told that the update succeeded, so after an error launches of the
  // executable graph fail.
  CUresult update(const wire::UpdateGraph& body, wire::GraphResult& result, bool accepted);
  // Changes one node of an executable graph. Returns nullopt if the node is malformed.
  std::optional<CUresult> set(const wire::SetGraphNode& head, wire::Reader& node);
  CUresult enable(const wire::SetGraphNode& body);
  // The stream's context must be current. `command`: sequence number of the launch command.
  CUresult launch(uint64_t executable, StreamState& stream, uint64_t command);
  CUresult upload(uint64_t executable, StreamState& stream);
  CUresult destroy(uint64_t handle);

  // True while a launch has parts that the driver does not have yet.
  bool launching() const { return !launches_.empty(); }
  // Call before the stream, or the context with its streams, is destroyed: their launches get no further
  // parts.
  void give_up_launches(const StreamState& stream);
  void give_up_launches(const ContextState& context);
  // Destroys the graphs that use a context. Call before the context is destroyed, when its work is done.
  void drop(const ContextState& context);
  void clear();
  size_t size() const { return graphs_.size(); }
  // Adds the client's handles of the events that an executable graph waits for and records.
  void add_events(uint64_t executable, OrderKeys& waits_for, OrderKeys& records) const;
  // True if a graph contains the address of an array; the driver has no way to replace it.
  bool names_array() const;

 private:
  struct Node {
    CUgraphNode object = nullptr;  // null: a client node
    wire::GraphNodeKind kind{};
    uint32_t level = 0;
    bool depends_on_part_work = false;  // depends on device work in its own part
    ContextState* context = nullptr;
    CUevent event = nullptr;    // held in Session::events
    uint64_t event_handle = 0;  // the client's handle
    uint64_t callback = 0;      // id of a client node, which is in callbacks_
    bool names_array = false;
    // True if the node gives the device work.
    bool is_work() const {
      return kind != wire::GraphNodeKind::empty && kind != wire::GraphNodeKind::condition &&
             kind != wire::GraphNodeKind::host;
    }
  };
  struct Part {
    CUgraph object = nullptr;            // null: no nodes but client nodes so far
    CUgraphExec executable = nullptr;    // null: not instantiated yet, or no work
    CUgraph updated_from = nullptr;      // graph of the last update; null: never updated
    bool has_changed_nodes = false;      // nodes were set one by one since the last update
    uint32_t work_nodes = 0;             // number of nodes that give the device work
    std::vector<uint32_t> client_nodes;  // indices in Graph::nodes; the next part comes after these nodes
  };
  struct Condition {
    wire::GraphCondition wanted;
    ContextState* context;
    uint64_t made = 0;   // the device's handle; 0: not created yet
    uint32_t level = 0;  // level of the part that the condition is in
  };
  struct Graph {
    bool is_executable = false;
    std::vector<Part> parts = std::vector<Part>(1);
    std::vector<Node> nodes;
    uint64_t edges = 0;
    Graph* root = nullptr;                               // body only: the graph that owns it
    uint32_t level = 0;                                  // body only: level of the part that it is in
    std::vector<uint64_t> bodies;                        // root only: handles of all bodies
    std::vector<std::unique_ptr<Graph>> inner;           // executable root only: the bodies themselves
    std::unordered_map<uint64_t, Condition> conditions;  // root only, by the client's handle
    std::map<int, uint64_t> charged;  // executable graph only: bytes of the quota, by device
    size_t refused = 0;               // nodes that were dropped because of an error
    // First error; in an executable graph: error of an update that failed half way.
    CUresult first_error = CUDA_SUCCESS;
    uint32_t first_error_node = wire::kNoGraphNode;
  };
  // A launch of a graph with client nodes, until the driver has all parts.
  struct Launch {
    Graph* graph;  // null: the launch is over
    StreamState* stream;
    uint64_t command;       // sequence number of the launch command
    uint32_t next = 0;      // index of the next part
    size_t unanswered = 0;  // unanswered client nodes of the previous part
    // Gates of the unanswered client nodes, by callback id.
    std::vector<std::pair<uint64_t, std::shared_ptr<StreamGate>>> gates;
    std::atomic<bool> failed{false};
    struct Held {     // a key held in the backlog
      uint32_t part;  // the key is released after this part was launched
      uint64_t key;
      bool writes;
    };
    std::vector<Held> held;
  };
  using Owner = std::unique_ptr<Graph>;

  Graph* find(uint64_t handle, bool executable);
  // Dependencies of a node. Both lists are in ascending order; `edges` contains the edges with edge data.
  struct Dependencies {
    std::vector<uint32_t> numbers;
    std::vector<wire::GraphEdge> edges;
    bool read(wire::Reader& reader, const wire::GraphNode& node, size_t index);
  };
  // Removes a graph with its bodies from the table. Returns null if there is none, or if it is executable or
  // a body.
  Owner take(uint64_t handle);
  CUresult charge(Graph& graph);
  CUresult update_parts(Graph& target, Graph& graph, wire::GraphResult& result);
  bool restore_parts(const Graph& target, size_t count);
  void end(Graph& graph);

  // In graph_nodes.cc:
  CUresult add_node(Graph& graph, const NodeWork& work, const Node& place, const Dependencies& dependencies);
  CUresult add_to_device(Graph& graph, const NodeWork& work, Node& node, const Dependencies& dependencies);
  CUresult make_node(Graph& graph, const NodeWork& work, Node& node, const std::vector<CUgraphNode>& before);
  CUresult connect(CUgraph graph, CUgraphNode from, CUgraphNode to, const wire::GraphEdge& edge);
  // True if CUDA allows these edges to a node of this kind.
  static bool allows_edges(const Graph& graph, wire::GraphNodeKind kind,
                           const std::vector<wire::GraphEdge>& edges);
  // Returns a node with the level and depends_on_part_work that follow from the dependencies.
  static Node place(const Graph& graph, std::span<const uint32_t> dependencies);
  CUresult change_node(Graph& graph, Node& node, const NodeWork& work);
  CUresult retain_node(Node& node, const NodeWork& work);
  void release_node(Node& node);

  // In graph_conditions.cc:
  CUresult keep_condition(Graph& graph, const NodeWork& work);
  // Creates the condition in the part of `level`, unless it exists. All nodes that name it must be on that
  // level.
  CUresult use_condition(Graph& root, Condition& condition, uint32_t level);
  CUresult add_conditional(Graph& graph, const NodeWork& work, uint32_t level,
                           std::span<const CUgraphNode> before, CUgraphNode* object);
  bool refuse_bodies(Graph& graph, wire::Reader body);
  CUresult translate_conditions(Graph& graph, uint32_t level, NodeWork& work);

  // In graph_launch.cc:
  CUresult launch_part(const Part& part, StreamState& stream);
  CUresult launch_next_part(const std::shared_ptr<Launch>& launch);
  CUresult announce_client_nodes(const std::shared_ptr<Launch>& launch, const Part& part,
                                 bool depends_on_part_work);
  void answered(const std::shared_ptr<Launch>& launch);
  void release(const Launch::Held& held);
  void finish(std::shared_ptr<Launch> launch);
  void give_up_launches(const Graph& graph);
  template <class F>
  void give_up(F&& which);

  Session& session_;
  std::unordered_map<uint64_t, Owner> graphs_;
  std::unordered_set<uint64_t> callbacks_;
  std::vector<std::shared_ptr<Launch>> launches_;
  uint64_t nodes_ = 0;
  uint64_t edges_ = 0;
};

}  // namespace gpupool::worker
