// Nodes of graphs (graphs.h): adding them to a graph, and changing those of executable graphs. Executor's
// thread.
#include <algorithm>
#include <cstring>

#include "protocol/calls/graph_edges.h"
#include "server/worker/graphs/graph_work.h"
#include "server/worker/graphs/graphs.h"
#include "server/worker/session/session.h"

namespace gpupool::worker {

using wire::GraphNodeKind;

namespace {

// Client nodes are not allowed in bodies.
bool may_be_in_body(GraphNodeKind kind) {
  return kind == GraphNodeKind::empty || kind == GraphNodeKind::kernel || kind == GraphNodeKind::fill ||
         kind == GraphNodeKind::copy || kind == GraphNodeKind::conditional;
}

}  // namespace

bool Graphs::Dependencies::read(wire::Reader& reader, const wire::GraphNode& node, size_t index) {
  const auto bytes = reader.get_bytes(uint64_t{node.dependency_count} * sizeof(uint32_t));
  const auto edge_bytes = reader.get_bytes(uint64_t{node.edge_count} * sizeof(wire::GraphEdge));
  if (!reader.ok()) return false;
  numbers.resize(node.dependency_count);
  edges.resize(node.edge_count);
  if (!bytes.empty()) std::memcpy(numbers.data(), bytes.data(), bytes.size());
  if (!edge_bytes.empty()) std::memcpy(edges.data(), edge_bytes.data(), edge_bytes.size());
  // A node depends on earlier nodes only, each named once, so no graph has a cycle.
  std::sort(numbers.begin(), numbers.end());
  if (!numbers.empty() &&
      (numbers.back() >= index || std::adjacent_find(numbers.begin(), numbers.end()) != numbers.end()))
    return false;
  for (size_t i = 0; i < edges.size(); ++i) {
    if (i != 0 && edges[i - 1].from >= edges[i].from) return false;
    if (edges[i].reserved != 0 || !std::binary_search(numbers.begin(), numbers.end(), edges[i].from))
      return false;
  }
  return true;
}

bool Graphs::allows_edges(const Graph& graph, GraphNodeKind kind, const std::vector<wire::GraphEdge>& edges) {
  return std::all_of(edges.begin(), edges.end(), [&](const wire::GraphEdge& edge) {
    return cuda::may_connect({edge.from_port, edge.type},
                             graph.nodes[edge.from].kind == GraphNodeKind::kernel,
                             kind == GraphNodeKind::kernel);
  });
}

bool Graphs::add(const wire::GraphNodes& head, wire::Reader& nodes) {
  Graph* graph = find(head.graph, false);
  if (!graph) {
    if (graphs_.contains(head.graph)) return false;
    auto made = std::make_unique<Graph>();
    const DeviceApi& api = session_.api;
    if (!api.cuGraphCreate || !api.cuGraphDestroy)
      made->first_error = CUDA_ERROR_NOT_SUPPORTED;
    else if (graphs_.size() >= kMaxGraphs)
      return false;
    graph = (graphs_[head.graph] = std::move(made)).get();
  }
  Dependencies dependencies;
  for (uint32_t i = 0; i < head.count; ++i) {
    const auto node = nodes.get<wire::GraphNode>();
    const size_t index = graph->nodes.size() + graph->refused;
    if (!dependencies.read(nodes, node, index)) return false;
    const auto body = nodes.get_bytes(node.body_bytes);
    if (!nodes.ok()) return false;
    if (graph->first_error != CUDA_SUCCESS) {
      if (node.kind == GraphNodeKind::conditional && !refuse_bodies(*graph, wire::Reader(body))) return false;
      ++graph->refused;
      continue;
    }
    NodeWork work;
    const auto read = nodes_ < wire::kMaxGraphNodes && edges_ + dependencies.numbers.size() <= kMaxGraphEdges
                          ? work.read(session_, node, wire::Reader(body))
                          : std::optional(CUDA_ERROR_OUT_OF_MEMORY);
    if (!read) return false;
    if ((graph->root && !may_be_in_body(work.kind)) || !allows_edges(*graph, node.kind, dependencies.edges))
      return false;
    const Node at = place(*graph, dependencies.numbers);
    CUresult result = *read == CUDA_SUCCESS ? translate_conditions(*graph, at.level, work) : *read;
    if (result == CUDA_SUCCESS) result = add_node(*graph, work, at, dependencies);
    if (result == CUDA_SUCCESS) continue;
    if (node.kind == GraphNodeKind::conditional && !refuse_bodies(*graph, wire::Reader(body))) return false;
    if (graph->root && graph->root->first_error == CUDA_SUCCESS) graph->root->first_error = result;
    graph->first_error = result;
    graph->first_error_node = static_cast<uint32_t>(index);
    ++graph->refused;
  }
  return nodes.finished();
}

Graphs::Node Graphs::place(const Graph& graph, std::span<const uint32_t> dependencies) {
  Node place;
  for (const uint32_t number : dependencies) {
    const Node& before = graph.nodes[number];
    place.level = std::max(place.level, before.level + (before.kind == GraphNodeKind::host));
  }
  for (const uint32_t number : dependencies) {
    const Node& before = graph.nodes[number];
    place.depends_on_part_work |=
        before.level == place.level && (before.depends_on_part_work || before.is_work());
  }
  return place;
}

CUresult Graphs::add_node(Graph& graph, const NodeWork& work, const Node& place,
                          const Dependencies& dependencies) {
  Node node = place;
  node.kind = work.kind;
  node.context = work.context;
  node.names_array = work.names_array();
  CUresult result = retain_node(node, work);
  // Each client node is followed by a part, which may be empty.
  graph.parts.resize(
      std::max<size_t>(graph.parts.size(), node.level + 1 + (node.kind == GraphNodeKind::host)));
  if (result == CUDA_SUCCESS && node.kind != GraphNodeKind::host)
    result = add_to_device(graph, work, node, dependencies);
  if (result != CUDA_SUCCESS) {
    release_node(node);
    return result;
  }
  Part& part = graph.parts[node.level];
  part.work_nodes += node.is_work();
  if (node.kind == GraphNodeKind::host)
    part.client_nodes.push_back(static_cast<uint32_t>(graph.nodes.size()));
  graph.nodes.push_back(node);
  graph.edges += dependencies.numbers.size();
  edges_ += dependencies.numbers.size();
  ++nodes_;
  return CUDA_SUCCESS;
}

// Full dependencies are passed with the node; edges with data are added afterwards.
CUresult Graphs::add_to_device(Graph& graph, const NodeWork& work, Node& node,
                               const Dependencies& dependencies) {
  CUgraph& object = graph.parts[node.level].object;
  if (const CUresult made = object ? CUDA_SUCCESS : session_.api.cuGraphCreate(&object, 0);
      made != CUDA_SUCCESS)
    return made;
  std::vector<CUgraphNode> before;
  auto edge = dependencies.edges.begin();
  for (const uint32_t number : dependencies.numbers) {
    const bool has_data = edge != dependencies.edges.end() && edge->from == number;
    edge += has_data;
    if (!has_data && graph.nodes[number].level == node.level) before.push_back(graph.nodes[number].object);
  }
  CUresult result = make_node(graph, work, node, before);
  for (const wire::GraphEdge& edge : dependencies.edges) {
    const Node& from = graph.nodes[edge.from];
    if (result == CUDA_SUCCESS && from.level == node.level)
      result = connect(object, from.object, node.object, edge);
  }
  return result;
}

// If the driver rejects or does not support edge data, adds a full dependency, which is correct but may delay
// kernels.
CUresult Graphs::connect(CUgraph graph, CUgraphNode from, CUgraphNode to, const wire::GraphEdge& edge) {
  const DeviceApi& api = session_.api;
#if CUDA_VERSION >= 12030
  const CUgraphEdgeData data = cuda::to_cuda({edge.from_port, edge.type});
  if (api.cuGraphAddDependencies_v2 &&
      api.cuGraphAddDependencies_v2(graph, &from, &to, &data, 1) == CUDA_SUCCESS)
    return CUDA_SUCCESS;
#endif
  return api.cuGraphAddDependencies ? api.cuGraphAddDependencies(graph, &from, &to, 1)
                                    : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult Graphs::make_node(Graph& graph, const NodeWork& work, Node& node,
                           const std::vector<CUgraphNode>& before) {
  const DeviceApi& api = session_.api;
  const CUgraph object = graph.parts[node.level].object;
  const CUgraphNode* const first = before.data();
  const size_t count = before.size();
  const CUcontext context = work.context ? work.context->object : nullptr;
  const auto call = [&](auto function, auto... more) {
    return function ? function(&node.object, object, first, count, more...) : CUDA_ERROR_NOT_SUPPORTED;
  };
  switch (work.kind) {
    case GraphNodeKind::empty: return call(api.cuGraphAddEmptyNode);
    case GraphNodeKind::kernel: {
#if CUDA_VERSION >= 12000
      CUresult result = call(api.cuGraphAddKernelNode_v2, &work.kernel);
      for (const CUlaunchAttribute& attribute : work.attributes) {
        if (result != CUDA_SUCCESS) break;
        result = api.cuGraphKernelNodeSetAttribute
                     ? api.cuGraphKernelNodeSetAttribute(node.object, attribute.id, &attribute.value)
                     : CUDA_ERROR_NOT_SUPPORTED;
      }
      return result;
#else
      return CUDA_ERROR_NOT_SUPPORTED;
#endif
    }
    case GraphNodeKind::fill: return call(api.cuGraphAddMemsetNode, &work.fill, context);
    case GraphNodeKind::copy: return call(api.cuGraphAddMemcpyNode, &work.copy, context);
    case GraphNodeKind::host: break;
    case GraphNodeKind::condition: {
      const CUresult result = keep_condition(graph, work);
      return result == CUDA_SUCCESS ? call(api.cuGraphAddEmptyNode) : result;
    }
    case GraphNodeKind::conditional: return add_conditional(graph, work, node.level, before, &node.object);
    case GraphNodeKind::event_record: return call(api.cuGraphAddEventRecordNode, work.event);
    case GraphNodeKind::event_wait: return call(api.cuGraphAddEventWaitNode, work.event);
    case GraphNodeKind::memory_operations: {
      CUDA_BATCH_MEM_OP_NODE_PARAMS operations{};
      operations.ctx = context;
      operations.count = static_cast<unsigned>(work.operations.size());
      operations.paramArray = const_cast<CUstreamBatchMemOpParams*>(work.operations.data());
      return call(api.cuGraphAddBatchMemOpNode, &operations);
    }
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

// Keeps the node's event alive, which the device does not, and reserves the client's id of a client node.
CUresult Graphs::retain_node(Node& node, const NodeWork& work) {
  if (work.kind == GraphNodeKind::host) {
    if (callbacks_.size() >= kMaxClientNodes || !callbacks_.insert(work.callback).second)
      return CUDA_ERROR_OUT_OF_MEMORY;
    node.callback = work.callback;
  }
  if (work.event) session_.events.hold(work.event);
  node.event = work.event;
  node.event_handle = work.event_handle;
  return CUDA_SUCCESS;
}

void Graphs::release_node(Node& node) {
  if (node.event) session_.events.release(std::exchange(node.event, nullptr));
  if (node.callback != 0) callbacks_.erase(std::exchange(node.callback, 0));
}

std::optional<CUresult> Graphs::set(const wire::SetGraphNode& head, wire::Reader& reader) {
  const auto node = reader.get<wire::GraphNode>();
  const auto body = reader.get_bytes(node.body_bytes);
  if (!reader.finished() || node.dependency_count != 0 || node.edge_count != 0) return std::nullopt;
  Graph* const graph = find(head.executable, true);
  if (!graph) return CUDA_ERROR_INVALID_HANDLE;
  if (head.node >= graph->nodes.size() || graph->nodes[head.node].kind != node.kind)
    return CUDA_ERROR_INVALID_VALUE;
  NodeWork work;
  const auto read = work.read(session_, node, wire::Reader(body));
  if (!read || *read != CUDA_SUCCESS) return read;
  Node& changed = graph->nodes[head.node];
  const CUresult translated = translate_conditions(*graph, changed.level, work);
  return translated == CUDA_SUCCESS ? change_node(*graph, changed, work) : translated;
}

CUresult Graphs::change_node(Graph& graph, Node& node, const NodeWork& work) {
  const DeviceApi& api = session_.api;
  const CUcontext context = work.context ? work.context->object : nullptr;
  Node after = node;
  after.context = work.context;
  after.names_array = work.names_array();
  const auto call = [&](auto function, auto... more) {
    return function ? function(graph.parts[node.level].executable, node.object, more...)
                    : CUDA_ERROR_NOT_SUPPORTED;
  };
  after.event = nullptr;
  after.callback = 0;
  if (const CUresult held = retain_node(after, work); held != CUDA_SUCCESS) return held;
  CUresult result = CUDA_ERROR_NOT_SUPPORTED;
  switch (work.kind) {
    case GraphNodeKind::empty:
    case GraphNodeKind::condition:
    case GraphNodeKind::conditional: break;
    case GraphNodeKind::kernel:
#if CUDA_VERSION >= 12000
      result = call(api.cuGraphExecKernelNodeSetParams_v2, &work.kernel);
#endif
      break;
    case GraphNodeKind::fill: result = call(api.cuGraphExecMemsetNodeSetParams, &work.fill, context); break;
    case GraphNodeKind::copy: result = call(api.cuGraphExecMemcpyNodeSetParams, &work.copy, context); break;
    case GraphNodeKind::host: result = CUDA_SUCCESS; break;
    case GraphNodeKind::event_record:
      result = call(api.cuGraphExecEventRecordNodeSetEvent, work.event);
      break;
    case GraphNodeKind::event_wait: result = call(api.cuGraphExecEventWaitNodeSetEvent, work.event); break;
    case GraphNodeKind::memory_operations: {
      CUDA_BATCH_MEM_OP_NODE_PARAMS operations{};
      operations.ctx = context;
      operations.count = static_cast<unsigned>(work.operations.size());
      operations.paramArray = const_cast<CUstreamBatchMemOpParams*>(work.operations.data());
      result = call(api.cuGraphExecBatchMemOpNodeSetParams, &operations);
      break;
    }
  }
  if (result == CUDA_SUCCESS) {
    std::swap(node, after);
    graph.parts[node.level].has_changed_nodes |= node.kind != GraphNodeKind::host;
  }
  release_node(after);
  return result;
}

CUresult Graphs::enable(const wire::SetGraphNode& body) {
  Graph* const graph = find(body.executable, true);
  if (!graph) return CUDA_ERROR_INVALID_HANDLE;
  if (body.node >= graph->nodes.size()) return CUDA_ERROR_INVALID_VALUE;
  const Node& node = graph->nodes[body.node];
  if (node.kind != GraphNodeKind::kernel && node.kind != GraphNodeKind::fill &&
      node.kind != GraphNodeKind::copy)
    return CUDA_ERROR_INVALID_VALUE;
  if (!session_.api.cuGraphNodeSetEnabled) return CUDA_ERROR_NOT_SUPPORTED;
  return session_.api.cuGraphNodeSetEnabled(graph->parts[node.level].executable, node.object, body.enabled);
}

}  // namespace gpupool::worker
