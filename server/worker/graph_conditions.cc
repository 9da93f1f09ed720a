// Conditions of graphs, and the bodies of the nodes that go by them (graphs.h).
#include <algorithm>
#include <cstring>

#include "protocol/wire/graphs.h"
#include "server/worker/executor.h"
#include "server/worker/graph_work.h"
#include "server/worker/graphs.h"

namespace gpupool::worker {

Graphs::Owner Graphs::take(uint64_t handle) {
  const auto found = graphs_.find(handle);
  if (found == graphs_.end() || found->second->executable || found->second->root) return nullptr;
  Owner graph = std::move(found->second);
  graphs_.erase(found);
  for (const uint64_t body : graph->bodies) {
    graph->inner.push_back(std::move(graphs_.at(body)));
    graphs_.erase(body);
  }
  return graph;
}

// A kernel that sets a condition has been given the client's handle for it, wherever in its parameters.
void Graphs::translate_conditions(const Graph& graph, NodeWork& work) {
  const auto& conditions = (graph.root ? graph.root : &graph)->conditions;
  const std::span<std::byte> parameters = work.parameters();
  if (conditions.empty()) return;
  for (size_t at = 0; at + sizeof(uint64_t) <= parameters.size(); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, &parameters[at], sizeof word);
    if (const auto found = conditions.find(word); found != conditions.end()) std::memcpy(&parameters[at], &found->second, sizeof word);
  }
}

CUresult Graphs::add_condition(Graph& graph, const NodeWork& work) {
#if CUDA_VERSION >= 12030
  const auto& wanted = work.condition;
  if (graph.conditions.contains(wanted.handle)) return CUDA_ERROR_INVALID_HANDLE;
  if (!session_.api.cuGraphConditionalHandleCreate) return CUDA_ERROR_NOT_SUPPORTED;
  CUgraphConditionalHandle made = 0;
  const CUresult result = session_.api.cuGraphConditionalHandleCreate(&made, graph.object, work.context->object, wanted.initial,
                                                                      wanted.at_launch != 0 ? CU_GRAPH_COND_ASSIGN_DEFAULT : 0);
  if (result == CUDA_SUCCESS) graph.conditions[wanted.handle] = made;
  return result;
#else
  return CUDA_ERROR_NOT_SUPPORTED;
#endif
}

CUresult Graphs::add_conditional(Graph& graph, const NodeWork& work, std::span<const CUgraphNode> before, CUgraphNode* object) {
#if CUDA_VERSION >= 12030
  Graph& root = graph.root ? *graph.root : graph;
  const auto condition = root.conditions.find(work.conditional.condition);
  if (condition == root.conditions.end()) return CUDA_ERROR_INVALID_VALUE;
  if (!session_.api.cuGraphAddNode_v2) return CUDA_ERROR_NOT_SUPPORTED;
  if (graphs_.size() + work.bodies.size() > kMaxGraphs) return CUDA_ERROR_OUT_OF_MEMORY;
  for (const uint64_t body : work.bodies) {
    if (graphs_.contains(body) || std::count(work.bodies.begin(), work.bodies.end(), body) != 1) return CUDA_ERROR_INVALID_HANDLE;
  }
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  params.conditional.handle = condition->second;
  params.conditional.type = static_cast<CUgraphConditionalNodeType>(work.conditional.type);
  params.conditional.size = work.conditional.bodies;
  params.conditional.ctx = work.context->object;
  const CUresult result = session_.api.cuGraphAddNode_v2(object, graph.object, before.data(), nullptr, before.size(), &params);
  if (result != CUDA_SUCCESS) return result;
  for (size_t i = 0; i < work.bodies.size(); ++i) {
    auto body = std::make_unique<Graph>();
    body->object = params.conditional.phGraph_out[i];
    body->root = &root;
    graphs_[work.bodies[i]] = std::move(body);
    root.bodies.push_back(work.bodies[i]);
  }
  return CUDA_SUCCESS;
#else
  return CUDA_ERROR_NOT_SUPPORTED;
#endif
}

// Of a node that was not made: what follows about them belongs to nothing.
bool Graphs::refuse_bodies(Graph& graph, wire::Reader body) {
  const auto head = body.get<wire::GraphConditional>();
  const auto bytes = body.get_bytes(uint64_t{head.bodies} * sizeof(uint64_t));
  if (!body.finished() || head.bodies > wire::kMaxGraphBodies || graphs_.size() + head.bodies > kMaxGraphs) return false;
  Graph& root = graph.root ? *graph.root : graph;
  for (uint32_t i = 0; i < head.bodies; ++i) {
    uint64_t number = 0;
    std::memcpy(&number, bytes.data() + i * sizeof number, sizeof number);
    auto made = std::make_unique<Graph>();
    made->root = &root;
    made->wrong = CUDA_ERROR_INVALID_VALUE;
    if (!graphs_.try_emplace(number, std::move(made)).second) return false;
    root.bodies.push_back(number);
  }
  return true;
}

}  // namespace gpupool::worker
