#include "server/worker/graphs/graphs.h"

#include <algorithm>

#include "server/worker/session/session.h"

namespace gpupool::worker {

using wire::GraphNodeKind;

Graphs::~Graphs() = default;

Graphs::Graph* Graphs::find(uint64_t handle, bool executable) {
  const auto found = graphs_.find(handle);
  return found != graphs_.end() && found->second->is_executable == executable ? found->second.get() : nullptr;
}

Graphs::Owner Graphs::take(uint64_t handle) {
  const auto found = graphs_.find(handle);
  if (found == graphs_.end() || found->second->is_executable || found->second->root) return nullptr;
  Owner graph = std::move(found->second);
  graphs_.erase(found);
  for (const uint64_t body : graph->bodies) {
    graph->inner.push_back(std::move(graphs_.at(body)));
    graphs_.erase(body);
  }
  return graph;
}

// Charges the graph's memory in the quota until end().
CUresult Graphs::charge(Graph& graph) {
  std::map<int, uint64_t> wanted;
  const auto count = [&](const Graph& one) {
    for (const Node& node : one.nodes) {
      if (node.is_work() && node.context) wanted[node.context->device] += kGraphNodeBytes;
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
