// Executable graphs. Instantiating sends the server a description of the graph (wire::GraphNodes); a launch
// is one command. The server keeps the executable graph; the client remembers how its nodes correspond to the
// program's.
//
// Nodes that access the program's memory or call its functions run in the client
// (client/streams/host_function.h) while the server holds the launch. Call everything with graph_mutex()
// held, except functions documented otherwise. Any thread.
#pragma once
#include <atomic>
#include <set>
#include <string>
#include <unordered_map>

#include "client/graphs/graph.h"
#include "protocol/wire/graphs.h"

namespace gpupool::client {

struct GraphExec : Object {
  ~GraphExec() override;

  struct Node {
    CUgraphNodeType type{};
    wire::GraphNodeKind kind{};
    uint64_t node = 0;  // handle in the program's graph; 0: none
    std::vector<uint32_t> dependencies;
    std::vector<wire::GraphEdge> edges;  // edge data, for dependencies that are not plain ones
    std::vector<uint64_t> bodies;        // conditional nodes: numbers of their body graphs
    // Id of the client-side work of host nodes and of copies to or from the program's memory; 0: none.
    uint64_t callback = 0;
    std::shared_ptr<std::atomic<bool>> enabled;
    // Kernel nodes: the node's context and its wire::Launch with the attributes, without the parameters.
    std::string launch;
  };
  Node* find(uint64_t node);
  std::vector<uint64_t> callbacks() const;

  uint64_t flags = 0;
  bool calls_back = false;
  std::vector<Node> nodes;
  std::unordered_map<uint64_t, uint32_t> numbers;  // index in `nodes` by the program's node handle
  std::vector<cuda::graph_memory::Shared> allocated, freed;
  // References to the graph's user objects, if it has any; released on update or destruction, once pending
  // launches are done.
  std::shared_ptr<cuda::UserReferences> user_objects;
  std::set<uint64_t> launched_in;  // streams of launches so far; guarded by graph_mutex()
};

// A graph in the form in which it is sent to the server.
struct GraphDescription {
  GraphDescription() = default;
  GraphDescription(const GraphDescription&) = delete;
  GraphDescription& operator=(const GraphDescription&) = delete;
  ~GraphDescription();  // forgets the callbacks that no executable graph has taken over

  // CUDA_ERROR_NOT_SUPPORTED: the graph involves more than one server.
  CUresult describe(const Graph& graph, Context& current);
  // Sends the description as the graph `handle`. Call without graph_mutex().
  CUresult send(uint64_t handle) const;

  Context* context = nullptr;  // a context of the graph's session
  std::vector<GraphExec::Node> nodes;
  std::vector<cuda::graph_memory::Shared> allocated, freed;
  std::shared_ptr<cuda::UserReferences> user_objects;  // null: none

 private:
  CUresult append(const Graph& graph, const std::vector<uint32_t>& roots, std::vector<uint32_t>* leaves);
  CUresult append_node(const GraphNode* node, std::vector<uint32_t> dependencies,
                       std::vector<wire::GraphEdge> edges = {});
  CUresult append_conditions(const Graph& graph);
  CUresult append_bodies();
  // Returns a writer at the place of the next node record.
  wire::Writer next_record();

  struct Message {
    uint64_t graph = 0;  // 0: the described graph; else a body graph
    uint32_t count = 0;
    wire::Buffer bytes;
  };
  std::vector<Message> messages_;
  uint64_t body_ = 0;  // number of the body graph being described; 0: none
  std::vector<std::pair<uint64_t, const Graph*>> bodies_;  // body graphs still to be described
};

// Returns an unused graph number, for a graph that only a description names.
uint64_t mint_graph_number(Session& session);

// Writes the node's record with `described.dependencies`. Work that must run in the client gets a callback
// id.
CUresult write_node(wire::Writer& writer, const GraphNode* node, Session& session,
                    GraphExec::Node& described);

// Requires graph_mutex(). Returns null if there is no such executable graph.
GraphExec* find_exec(CUgraphExec handle);

}  // namespace gpupool::client
