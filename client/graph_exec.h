// Executable graphs: made by sending the server what a graph does (wire::GraphNodes), launched by one command. The server keeps
// them; the client remembers which of its nodes became which.
//
// What touches the program's memory or calls its functions runs in the client (calls/host_function.h) while the launch waits
// there. With graph_mutex() held, but for what says that it talks to the server. Any thread.
#pragma once
#include <atomic>
#include <set>
#include <unordered_map>

#include "client/graph.h"
#include "protocol/wire/graphs.h"

namespace gpupool::client {

struct GraphExec : Object {
  ~GraphExec() override;

  struct Node {
    CUgraphNodeType type{};
    wire::GraphNodeKind kind{};
    uint64_t node = 0;                    // handle in the program's graph, 0: none
    std::vector<uint32_t> dependencies;
    std::vector<wire::GraphEdge> edges;   // from those that are not full dependencies
    std::vector<uint64_t> bodies;         // of conditional nodes: numbers of their graphs
    uint64_t callback = 0;                // of host functions, and of copies to or from the program's memory
    std::shared_ptr<std::atomic<bool>> enabled;
  };
  Node* find(uint64_t node);
  std::vector<uint64_t> callbacks() const;

  uint64_t flags = 0;
  bool calls_back = false;
  std::vector<Node> nodes;
  std::unordered_map<uint64_t, uint32_t> numbers;  // of the program's nodes
  std::vector<cuda::graph_memory::Shared> allocated, freed;
  // Those of the graph that it was made of, where there are any; given up when the launches are through.
  std::shared_ptr<cuda::UserReferences> user_objects;
  std::set<uint64_t> launched_in;  // streams, then; under graph_mutex()
};

// A graph as the server gets it.
struct GraphDescription {
  GraphDescription() = default;
  GraphDescription(const GraphDescription&) = delete;
  GraphDescription& operator=(const GraphDescription&) = delete;
  ~GraphDescription();  // what is not a part of an executable graph is forgotten

  // CUDA_ERROR_NOT_SUPPORTED: it reaches more than one server.
  CUresult describe(const Graph& graph, Context& current);
  // Without graph_mutex(). Sends it as the graph `handle`.
  CUresult send(uint64_t handle) const;

  Context* context = nullptr;  // of its session
  std::vector<GraphExec::Node> nodes;
  std::vector<cuda::graph_memory::Shared> allocated, freed;
  std::shared_ptr<cuda::UserReferences> user_objects;  // null: none

 private:
  CUresult append(const Graph& graph, const std::vector<uint32_t>& roots, std::vector<uint32_t>* leaves);
  CUresult append_node(const GraphNode* node, std::vector<uint32_t> dependencies, std::vector<wire::GraphEdge> edges = {});
  CUresult append_conditions(const Graph& graph);
  CUresult append_bodies();
  // Where the next record goes.
  wire::Writer next_record();

  struct Message {
    uint64_t graph = 0;  // 0: the one that is described, else a body of it
    uint32_t count = 0;
    wire::Buffer bytes;
  };
  std::vector<Message> messages_;
  uint64_t body_ = 0;    // that is being described; 0: none
  std::vector<std::pair<uint64_t, const Graph*>> bodies_;  // that are to be described, too
};

// A number for a graph that only one description names.
uint64_t mint_graph_number(Session& session);

// The node's record, with `dependencies`; what it has to be called for gets a number.
CUresult write_node(wire::Writer& writer, const GraphNode* node, Session& session, GraphExec::Node& described);

}  // namespace gpupool::client
