#include "server/worker/graphs/graphs.h"

#include <algorithm>

#include "protocol/calls/graph_edges.h"
#include "server/worker/graphs/graph_work.h"
#include "server/worker/session/session.h"

namespace gpupool::worker {

using wire::GraphNodeKind;

Graphs::~Graphs() = default;

Graphs::Graph* Graphs::find(uint64_t handle, bool executable) {
  const auto found = graphs_.find(handle);
  return found != graphs_.end() && found->second->is_executable == executable ? found->second.get() : nullptr;
}

namespace {

// Client nodes are not allowed in bodies.
bool may_be_in_body(GraphNodeKind kind) {
  return kind == GraphNodeKind::empty || kind == GraphNodeKind::kernel || kind == GraphNodeKind::fill ||
         kind == GraphNodeKind::copy || kind == GraphNodeKind::conditional;
}

bool is_work(GraphNodeKind kind) {
  return kind != GraphNodeKind::empty && kind != GraphNodeKind::condition && kind != GraphNodeKind::host;
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
        before.level == place.level && (before.depends_on_part_work || is_work(before.kind));
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
  part.work_nodes += is_work(node.kind);
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

// Charges the graph's memory in the quota until end().
CUresult Graphs::charge(Graph& graph) {
  std::map<int, uint64_t> wanted;
  const auto count = [&](const Graph& one) {
    for (const Node& node : one.nodes) {
      if (is_work(node.kind) && node.context) wanted[node.context->device] += kGraphNodeBytes;
    }
  };
  count(graph);
  for (const Owner& body : graph.inner) count(*body);
  for (const auto& [device, bytes] : wanted) {
    if (const CUresult result = session_.memory.charge(device, bytes); result != CUDA_SUCCESS) return result;
    graph.charged[device] = bytes;
  }
  return CUDA_SUCCESS;
}

CUresult Graphs::instantiate(const wire::InstantiateGraph& body, wire::GraphResult& result) {
  const DeviceApi& api = session_.api;
  const Owner graph = take(body.graph);
  if (!graph) return CUDA_ERROR_INVALID_HANDLE;
  result = {wire::kGraphInstantiateError, graph->first_error_node};
  CUresult outcome = graph->first_error;
  if (outcome == CUDA_SUCCESS && graphs_.contains(body.executable)) outcome = CUDA_ERROR_INVALID_HANDLE;
  if (outcome == CUDA_SUCCESS &&
      (!api.cuGraphInstantiateWithFlags || !api.cuGraphLaunch || !api.cuGraphExecDestroy))
    outcome = CUDA_ERROR_NOT_SUPPORTED;
  if (outcome == CUDA_SUCCESS) outcome = charge(*graph);
  for (Part& part : graph->parts) {
    if (outcome != CUDA_SUCCESS || part.work_nodes == 0) continue;
    outcome = api.cuGraphInstantiateWithFlags(&part.executable, part.object,
                                              body.flags & CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY);
    if (outcome != CUDA_SUCCESS) part.executable = nullptr;
  }
  if (outcome != CUDA_SUCCESS) {
    end(*graph);
    return outcome;
  }
  graph->is_executable = true;
  result = {wire::kGraphInstantiated, wire::kNoGraphNode};
  graphs_[body.executable] = std::make_unique<Graph>(std::move(*graph));
  return CUDA_SUCCESS;
}

// A failed update must change nothing, as with CUDA: if the driver rejects a part, the parts before it are
// restored. If that fails too, the executable graph cannot be launched until it has been updated.
CUresult Graphs::update_parts(Graph& target, Graph& graph, wire::GraphResult& result) {
#if CUDA_VERSION >= 12000
  if (!session_.api.cuGraphExecUpdate_v2) return CUDA_ERROR_NOT_SUPPORTED;
  const auto alike = [](const Node& one, const Node& other) {
    return one.level == other.level && one.kind == other.kind;
  };
  if (target.parts.size() != graph.parts.size() ||
      !std::equal(target.nodes.begin(), target.nodes.end(), graph.nodes.begin(), graph.nodes.end(), alike)) {
    result.result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  }
  result.result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
  for (size_t i = 0; i < target.parts.size(); ++i) {
    if (!target.parts[i].executable) continue;
    CUgraphExecUpdateResultInfo info{};
    const CUresult outcome =
        session_.api.cuGraphExecUpdate_v2(target.parts[i].executable, graph.parts[i].object, &info);
    result.result = static_cast<uint32_t>(info.result);
    if (outcome == CUDA_SUCCESS) continue;
    const auto blamed = std::find_if(graph.nodes.begin(), graph.nodes.end(),
                                     [&](const Node& node) { return node.object == info.errorNode; });
    if (info.errorNode && blamed != graph.nodes.end())
      result.node = static_cast<uint32_t>(blamed - graph.nodes.begin());
    if (!restore_parts(target, i)) target.first_error = CUDA_ERROR_ILLEGAL_STATE;
    return outcome;
  }
  for (size_t i = 0; i < target.parts.size() && target.parts.size() > 1; ++i) {
    std::swap(target.parts[i].updated_from, graph.parts[i].object);
    target.parts[i].has_changed_nodes = false;
  }
  target.first_error = CUDA_SUCCESS;
  return CUDA_SUCCESS;
#else
  return CUDA_ERROR_NOT_SUPPORTED;
#endif
}

// Restores the first `count` parts to the last update, or to the original graph. Fails if nodes were set one
// by one since then, because those changes are in neither.
bool Graphs::restore_parts(const Graph& target, size_t count) {
#if CUDA_VERSION >= 12000
  return std::all_of(
      target.parts.begin(), target.parts.begin() + static_cast<ptrdiff_t>(count), [this](const Part& part) {
        CUgraphExecUpdateResultInfo info{};
        if (!part.executable) return true;
        return !part.has_changed_nodes &&
               session_.api.cuGraphExecUpdate_v2(part.executable,
                                                 part.updated_from ? part.updated_from : part.object,
                                                 &info) == CUDA_SUCCESS;
      });
#else
  return false;
#endif
}

CUresult Graphs::update(const wire::UpdateGraph& body, wire::GraphResult& result, bool accepted) {
  const Owner graph = take(body.graph);
  if (!graph) return CUDA_ERROR_INVALID_HANDLE;
  result = {CU_GRAPH_EXEC_UPDATE_ERROR, graph->first_error_node};
  Graph* const target = find(body.executable, true);
  CUresult outcome = target ? graph->first_error : CUDA_ERROR_INVALID_HANDLE;
  if (outcome == CUDA_SUCCESS) outcome = update_parts(*target, *graph, result);
  if (outcome == CUDA_SUCCESS) {
    std::swap(target->conditions, graph->conditions);
    // The graphs have the same shape. Swap what the nodes hold; end() of the other graph releases the old
    // objects.
    for (size_t i = 0; i < target->nodes.size(); ++i) {
      std::swap(target->nodes[i].event, graph->nodes[i].event);
      std::swap(target->nodes[i].event_handle, graph->nodes[i].event_handle);
      std::swap(target->nodes[i].callback, graph->nodes[i].callback);
      target->nodes[i].names_array = graph->nodes[i].names_array;
    }
  }
  if (target && outcome != CUDA_SUCCESS && accepted) target->first_error = outcome;
  end(*graph);
  return outcome;
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

CUresult Graphs::destroy(uint64_t handle) {
  if (const Owner graph = take(handle)) return end(*graph), CUDA_SUCCESS;
  const auto found = graphs_.find(handle);
  if (found == graphs_.end() || found->second->root) return CUDA_ERROR_INVALID_HANDLE;
  end(*found->second);
  graphs_.erase(found);
  return CUDA_SUCCESS;
}

void Graphs::end(Graph& graph) {
  give_up_launches(graph);
  for (const Owner& body : graph.inner) end(*body);
  for (const Part& part : graph.parts) {
    if (part.executable) session_.api.cuGraphExecDestroy(part.executable);
    if (part.updated_from) session_.api.cuGraphDestroy(part.updated_from);
    if (part.object && !graph.root) session_.api.cuGraphDestroy(part.object);
  }
  for (const auto& [device, bytes] : graph.charged) session_.memory.uncharge(device, bytes);
  for (Node& node : graph.nodes) release_node(node);
  nodes_ -= graph.nodes.size();
  edges_ -= graph.edges;
}

void Graphs::drop(const ContextState& context) {
  const auto uses_it = [&](const Graph& graph) {
    return std::any_of(graph.nodes.begin(), graph.nodes.end(),
                       [&](const Node& node) { return node.context == &context; });
  };
  std::vector<uint64_t> ending;
  for (const auto& [handle, graph] : graphs_) {
    if (graph->root) continue;
    bool uses = uses_it(*graph);
    for (const Owner& body : graph->inner) uses |= uses_it(*body);
    for (const uint64_t body : graph->bodies) {
      if (const auto found = graphs_.find(body); found != graphs_.end() && found->second->root == graph.get())
        uses |= uses_it(*found->second);
    }
    if (uses) ending.push_back(handle);
  }
  for (const uint64_t handle : ending) destroy(handle);
}

bool Graphs::names_array() const {
  return std::any_of(graphs_.begin(), graphs_.end(), [](const auto& known) {
    const auto has_one = [](const Graph& graph) {
      return std::any_of(graph.nodes.begin(), graph.nodes.end(),
                         [](const Node& node) { return node.names_array; });
    };
    const Graph& graph = *known.second;
    return has_one(graph) || std::any_of(graph.inner.begin(), graph.inner.end(),
                                         [&](const Owner& body) { return has_one(*body); });
  });
}

void Graphs::add_events(uint64_t executable, OrderKeys& waits_for, OrderKeys& records) const {
  const auto found = graphs_.find(executable);
  if (found == graphs_.end()) return;
  for (const Node& node : found->second->nodes) {
    if (node.event) (node.kind == GraphNodeKind::event_record ? records : waits_for).add(node.event_handle);
  }
}

void Graphs::clear() {
  for (auto& [handle, graph] : graphs_) {
    if (!graph->root) end(*graph);  // bodies hold nothing beyond the root
  }
  graphs_.clear();
  nodes_ = edges_ = 0;
}

}  // namespace gpupool::worker
