#include "server/worker/graphs.h"

#include <algorithm>

#include "server/worker/executor.h"
#include "server/worker/graph_work.h"

namespace gpupool::worker {

using wire::GraphNodeKind;

Graphs::~Graphs() = default;

Graphs::Graph* Graphs::find(uint64_t handle, bool executable) {
  const auto found = graphs_.find(handle);
  return found != graphs_.end() && (found->second->executable != nullptr) == executable ? found->second.get() : nullptr;
}

namespace {

// What may be done again and again without the client.
bool may_be_in_body(GraphNodeKind kind) {
  return kind == GraphNodeKind::empty || kind == GraphNodeKind::kernel || kind == GraphNodeKind::fill || kind == GraphNodeKind::copy ||
         kind == GraphNodeKind::conditional;
}

}  // namespace

bool Graphs::add(const wire::GraphNodes& head, wire::Reader& nodes) {
  Graph* graph = find(head.graph, false);
  if (!graph) {
    if (graphs_.contains(head.graph)) return false;
    auto made = std::make_unique<Graph>();
    const DeviceApi& api = session_.api;
    if (!api.cuGraphCreate || !api.cuGraphDestroy) made->wrong = CUDA_ERROR_NOT_SUPPORTED;
    else if (graphs_.size() >= kMaxGraphs) return false;
    else made->wrong = api.cuGraphCreate(&made->object, 0);
    graph = (graphs_[head.graph] = std::move(made)).get();
  }
  std::vector<uint32_t> dependencies;
  for (uint32_t i = 0; i < head.count; ++i) {
    const auto node = nodes.get<wire::GraphNode>();
    const size_t index = graph->nodes.size() + graph->refused;
    const auto bytes = nodes.get_bytes(uint64_t{node.dependency_count} * sizeof(uint32_t));
    const auto body = nodes.get_bytes(node.body_bytes);
    if (!nodes.ok()) return false;
    dependencies.resize(node.dependency_count);
    if (!bytes.empty()) std::memcpy(dependencies.data(), bytes.data(), bytes.size());
    // Earlier ones, once each: no graph has a cycle.
    std::sort(dependencies.begin(), dependencies.end());
    if (!dependencies.empty() && (dependencies.back() >= index || std::adjacent_find(dependencies.begin(), dependencies.end()) != dependencies.end())) {
      return false;
    }
    if (graph->wrong != CUDA_SUCCESS) {
      if (node.kind == GraphNodeKind::conditional && !refuse_bodies(*graph, wire::Reader(body))) return false;
      ++graph->refused;
      continue;
    }
    NodeWork work;
    const auto read = nodes_ < wire::kMaxGraphNodes && edges_ + dependencies.size() <= kMaxGraphEdges
                          ? work.read(session_, node, wire::Reader(body)) : std::optional(CUDA_ERROR_OUT_OF_MEMORY);
    if (!read) return false;
    if (graph->root && !may_be_in_body(work.kind)) return false;
    translate_conditions(*graph, work);
    const CUresult result = *read == CUDA_SUCCESS ? add_node(*graph, work, dependencies) : *read;
    if (result == CUDA_SUCCESS) continue;
    if (node.kind == GraphNodeKind::conditional && !refuse_bodies(*graph, wire::Reader(body))) return false;
    if (graph->root && graph->root->wrong == CUDA_SUCCESS) graph->root->wrong = result;
    graph->wrong = result;
    graph->wrong_node = static_cast<uint32_t>(index);
    ++graph->refused;
  }
  return nodes.finished();
}

CUresult Graphs::add_node(Graph& graph, const NodeWork& work, std::span<const uint32_t> numbers) {
  const DeviceApi& api = session_.api;
  Node node{.kind = work.kind, .context = work.context, .names_array = work.names_array()};
  std::vector<CUgraphNode> before;
  for (const uint32_t number : numbers) before.push_back(graph.nodes[number].object);
  const CUgraphNode* const first = before.data();
  const size_t count = before.size();
  const CUcontext context = work.context ? work.context->object : nullptr;
  const auto call = [&](auto function, auto... more) {
    return function ? function(&node.object, graph.object, first, count, more...) : CUDA_ERROR_NOT_SUPPORTED;
  };
  hold(node, work);
  CUresult result = CUDA_ERROR_NOT_SUPPORTED;
  switch (work.kind) {
    case GraphNodeKind::empty: result = call(api.cuGraphAddEmptyNode); break;
    case GraphNodeKind::kernel:
#if CUDA_VERSION >= 12000
      result = call(api.cuGraphAddKernelNode_v2, &work.kernel);
      for (const CUlaunchAttribute& attribute : work.attributes) {
        if (result != CUDA_SUCCESS) break;
        result = api.cuGraphKernelNodeSetAttribute ? api.cuGraphKernelNodeSetAttribute(node.object, attribute.id, &attribute.value)
                                                   : CUDA_ERROR_NOT_SUPPORTED;
      }
#endif
      break;
    case GraphNodeKind::fill: result = call(api.cuGraphAddMemsetNode, &work.fill, context); break;
    case GraphNodeKind::copy: result = call(api.cuGraphAddMemcpyNode, &work.copy, context); break;
    case GraphNodeKind::host: {
      HostCallbacks::Turn* const turn = session_.callbacks.keep(work.callback, context);
      if (!turn) return CUDA_ERROR_OUT_OF_MEMORY;
      node.callback = work.callback;
      const CUDA_HOST_NODE_PARAMS host{&HostCallbacks::run, turn};
      result = call(api.cuGraphAddHostNode, &host);
      break;
    }
    case GraphNodeKind::condition:
      result = add_condition(graph, work);
      if (result == CUDA_SUCCESS) result = call(api.cuGraphAddEmptyNode);
      break;
    case GraphNodeKind::conditional: result = add_conditional(graph, work, before, &node.object); break;
    case GraphNodeKind::event_record: result = call(api.cuGraphAddEventRecordNode, work.event); break;
    case GraphNodeKind::event_wait: result = call(api.cuGraphAddEventWaitNode, work.event); break;
    case GraphNodeKind::memory_operations: {
      CUDA_BATCH_MEM_OP_NODE_PARAMS operations{};
      operations.ctx = context;
      operations.count = static_cast<unsigned>(work.operations.size());
      operations.paramArray = const_cast<CUstreamBatchMemOpParams*>(work.operations.data());
      result = call(api.cuGraphAddBatchMemOpNode, &operations);
      break;
    }
  }
  if (result != CUDA_SUCCESS) {
    let_go(node);
    return result;
  }
  graph.nodes.push_back(node);
  graph.dependencies.emplace_back(numbers.begin(), numbers.end());
  graph.edges += count;
  edges_ += count;
  ++nodes_;
  return CUDA_SUCCESS;
}

// What the device does not keep alive by itself.
void Graphs::hold(Node& node, const NodeWork& work) {
  if (work.event) session_.events.hold(work.event);
  node.event = work.event;
}

void Graphs::let_go(Node& node) {
  if (node.event) session_.events.release(std::exchange(node.event, nullptr));
  if (node.callback != 0) session_.callbacks.let_go(std::exchange(node.callback, 0));
}

// Which nodes that wait for the client have everything else of the graph before them or behind them: GPU time does not go on while
// they wait. All before: the nodes that nothing so far comes after, they come after. All behind: no later node comes only after earlier
// ones.
void Graphs::find_lonely(Graph& graph) {
  const size_t count = graph.nodes.size();
  std::vector<bool> all_before(count), has_next(count);
  size_t ends = 0;
  for (size_t i = 0; i < count; ++i) {
    size_t taken = 0;
    for (const uint32_t before : graph.dependencies[i]) {
      taken += !has_next[before];
      has_next[before] = true;
    }
    all_before[i] = taken == ends;
    ends = ends - taken + 1;
  }
  auto latest = static_cast<int64_t>(count);  // of what later nodes come after, for each the latest: the earliest such
  for (size_t i = count; i-- > 0;) {
    graph.nodes[i].only = all_before[i] && latest >= static_cast<int64_t>(i);
    const auto& before = graph.dependencies[i];
    latest = before.empty() ? -1 : std::min<int64_t>(latest, before.back());
    if (graph.nodes[i].callback != 0 && graph.nodes[i].only) session_.callbacks.only(graph.nodes[i].callback);
  }
  graph.dependencies = {};
}

CUresult Graphs::instantiate(const wire::InstantiateGraph& body, wire::GraphResult& result) {
  const DeviceApi& api = session_.api;
  const Owner graph = take(body.graph);
  if (!graph) return CUDA_ERROR_INVALID_HANDLE;
  result = {wire::kGraphInstantiateError, graph->wrong_node};
  CUresult outcome = graph->wrong;
  if (outcome == CUDA_SUCCESS && graphs_.contains(body.executable)) outcome = CUDA_ERROR_INVALID_HANDLE;
  if (outcome == CUDA_SUCCESS && (!api.cuGraphInstantiateWithFlags || !api.cuGraphLaunch || !api.cuGraphExecDestroy)) outcome = CUDA_ERROR_NOT_SUPPORTED;
  if (outcome == CUDA_SUCCESS) {
    outcome = api.cuGraphInstantiateWithFlags(&graph->executable, graph->object, body.flags & CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY);
  }
  if (outcome != CUDA_SUCCESS) {
    graph->executable = nullptr;
    end(*graph);
    return outcome;
  }
  find_lonely(*graph);
  result = {wire::kGraphInstantiated, wire::kNoGraphNode};
  graphs_[body.executable] = std::make_unique<Graph>(std::move(*graph));
  return CUDA_SUCCESS;
}

CUresult Graphs::update(const wire::UpdateGraph& body, wire::GraphResult& result) {
  const Owner graph = take(body.graph);
  if (!graph) return CUDA_ERROR_INVALID_HANDLE;
  result = {CU_GRAPH_EXEC_UPDATE_ERROR, graph->wrong_node};
  Graph* const target = find(body.executable, true);
  CUresult outcome = target ? graph->wrong : CUDA_ERROR_INVALID_HANDLE;
#if CUDA_VERSION >= 12000
  if (outcome == CUDA_SUCCESS && !session_.api.cuGraphExecUpdate_v2) outcome = CUDA_ERROR_NOT_SUPPORTED;
  if (outcome == CUDA_SUCCESS) {
    CUgraphExecUpdateResultInfo info{};
    outcome = session_.api.cuGraphExecUpdate_v2(target->executable, graph->object, &info);
    const auto blamed = std::find_if(graph->nodes.begin(), graph->nodes.end(), [&](const Node& node) { return node.object == info.errorNode; });
    result.result = static_cast<uint32_t>(info.result);
    if (info.errorNode && blamed != graph->nodes.end()) result.node = static_cast<uint32_t>(blamed - graph->nodes.begin());
  }
#else
  if (outcome == CUDA_SUCCESS) outcome = CUDA_ERROR_NOT_SUPPORTED;
#endif
  if (outcome == CUDA_SUCCESS) {
    std::swap(target->conditions, graph->conditions);
    // The shapes are the same: what the nodes refer to changes hands, and goes with the graph that is not needed any more.
    for (size_t i = 0; i < target->nodes.size() && i < graph->nodes.size(); ++i) {
      std::swap(target->nodes[i].event, graph->nodes[i].event);
      std::swap(target->nodes[i].callback, graph->nodes[i].callback);
      target->nodes[i].names_array = graph->nodes[i].names_array;
      if (target->nodes[i].callback != 0 && target->nodes[i].only) session_.callbacks.only(target->nodes[i].callback);
    }
  }
  end(*graph);
  return outcome;
}

std::optional<CUresult> Graphs::set(const wire::SetGraphNode& head, wire::Reader& reader) {
  const auto node = reader.get<wire::GraphNode>();
  const auto body = reader.get_bytes(node.body_bytes);
  if (!reader.finished() || node.dependency_count != 0) return std::nullopt;
  Graph* const graph = find(head.executable, true);
  if (!graph) return CUDA_ERROR_INVALID_HANDLE;
  if (head.node >= graph->nodes.size() || graph->nodes[head.node].kind != node.kind) return CUDA_ERROR_INVALID_VALUE;
  NodeWork work;
  const auto read = work.read(session_, node, wire::Reader(body));
  if (!read || *read != CUDA_SUCCESS) return read;
  translate_conditions(*graph, work);
  return change_node(*graph, graph->nodes[head.node], work);
}

CUresult Graphs::change_node(Graph& graph, Node& node, const NodeWork& work) {
  const DeviceApi& api = session_.api;
  const CUcontext context = work.context ? work.context->object : nullptr;
  Node after{.object = node.object, .kind = node.kind, .context = work.context, .names_array = work.names_array()};
  const auto call = [&](auto function, auto... more) {
    return function ? function(graph.executable, node.object, more...) : CUDA_ERROR_NOT_SUPPORTED;
  };
  hold(after, work);
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
    case GraphNodeKind::host: {
      HostCallbacks::Turn* const turn = session_.callbacks.keep(work.callback, context);
      if (!turn) return CUDA_ERROR_OUT_OF_MEMORY;
      after.callback = work.callback;
      after.only = node.only;
      if (node.only) session_.callbacks.only(work.callback);
      const CUDA_HOST_NODE_PARAMS host{&HostCallbacks::run, turn};
      result = call(api.cuGraphExecHostNodeSetParams, &host);
      break;
    }
    case GraphNodeKind::event_record: result = call(api.cuGraphExecEventRecordNodeSetEvent, work.event); break;
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
  if (result == CUDA_SUCCESS) std::swap(node, after);
  let_go(after);
  return result;
}

CUresult Graphs::enable(const wire::SetGraphNode& body) {
  Graph* const graph = find(body.executable, true);
  if (!graph) return CUDA_ERROR_INVALID_HANDLE;
  if (body.node >= graph->nodes.size()) return CUDA_ERROR_INVALID_VALUE;
  const Node& node = graph->nodes[body.node];
  if (node.kind != GraphNodeKind::kernel && node.kind != GraphNodeKind::fill && node.kind != GraphNodeKind::copy) return CUDA_ERROR_INVALID_VALUE;
  if (!session_.api.cuGraphNodeSetEnabled) return CUDA_ERROR_NOT_SUPPORTED;
  return session_.api.cuGraphNodeSetEnabled(graph->executable, node.object, body.enabled);
}

CUresult Graphs::launch(uint64_t executable, StreamState& stream) {
  Graph* const graph = find(executable, true);
  if (!graph) return CUDA_ERROR_INVALID_HANDLE;
  const auto for_callbacks = [&](auto&& visit) {
    for (const Node& node : graph->nodes) {
      if (node.callback != 0) visit(node.callback);
    }
  };
  const bool calls_back = std::any_of(graph->nodes.begin(), graph->nodes.end(), [](const Node& node) { return node.callback != 0; });
  return session_.compute.run(stream, kernel_kind(graph->executable, graph->nodes.size(), 0), [&] {
    for_callbacks([&](uint64_t id) { session_.callbacks.launched(id, stream.compute); });
    const CUresult result = session_.api.cuGraphLaunch(graph->executable, stream.stream);
    if (result != CUDA_SUCCESS) for_callbacks([&](uint64_t id) { session_.callbacks.not_launched(id); });
    else if (calls_back) session_.hold_back_until_done(stream);
    return result;
  });
}

CUresult Graphs::upload(uint64_t executable, StreamState& stream) {
  const Graph* const graph = find(executable, true);
  if (!graph) return CUDA_ERROR_INVALID_HANDLE;
  return session_.api.cuGraphUpload ? session_.api.cuGraphUpload(graph->executable, stream.stream) : CUDA_SUCCESS;
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
  for (const Owner& body : graph.inner) end(*body);
  if (graph.executable) session_.api.cuGraphExecDestroy(graph.executable);
  if (graph.object && !graph.root) session_.api.cuGraphDestroy(graph.object);
  for (Node& node : graph.nodes) let_go(node);
  nodes_ -= graph.nodes.size();
  edges_ -= graph.edges;
}

void Graphs::drop(const ContextState& context) {
  const auto uses_it = [&](const Graph& graph) {
    return std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) { return node.context == &context; });
  };
  std::vector<uint64_t> ending;
  for (const auto& [handle, graph] : graphs_) {
    if (graph->root) continue;
    bool uses = uses_it(*graph);
    for (const Owner& body : graph->inner) uses |= uses_it(*body);
    for (const uint64_t body : graph->bodies) {
      if (const auto found = graphs_.find(body); found != graphs_.end() && found->second->root == graph.get()) uses |= uses_it(*found->second);
    }
    if (uses) ending.push_back(handle);
  }
  for (const uint64_t handle : ending) destroy(handle);
}

bool Graphs::names_array() const {
  return std::any_of(graphs_.begin(), graphs_.end(), [](const auto& known) {
    const auto has_one = [](const Graph& graph) {
      return std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const Node& node) { return node.names_array; });
    };
    const Graph& graph = *known.second;
    return has_one(graph) || std::any_of(graph.inner.begin(), graph.inner.end(), [&](const Owner& body) { return has_one(*body); });
  });
}

bool Graphs::has_events(uint64_t executable) const {
  const auto found = graphs_.find(executable);
  if (found == graphs_.end()) return false;
  const auto& nodes = found->second->nodes;
  return std::any_of(nodes.begin(), nodes.end(), [](const Node& node) { return node.event != nullptr; });
}

void Graphs::clear() {
  for (auto& [handle, graph] : graphs_) {
    if (!graph->root) end(*graph);  // bodies have nothing but what ends with it
  }
  graphs_.clear();
  nodes_ = edges_ = 0;
}

}  // namespace gpupool::worker
