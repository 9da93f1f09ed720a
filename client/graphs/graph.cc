#include "client/graphs/graph.h"

#include <algorithm>
#include <unordered_map>

namespace gpupool::client {

std::mutex& graph_mutex() {
  static std::mutex* const only = new std::mutex;
  return *only;
}

std::vector<CUlaunchAttribute> KernelWork::attributes() const {
  std::vector<CUlaunchAttribute> attributes(launch.attribute_count);
  if (!attributes.empty())
    std::memcpy(attributes.data(), tail.data(), attributes.size() * sizeof(CUlaunchAttribute));
  return attributes;
}

void KernelWork::set_attributes(const std::vector<CUlaunchAttribute>& attributes) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(attributes.data());
  tail.erase(tail.begin(),
             tail.begin() + static_cast<ptrdiff_t>(launch.attribute_count * sizeof(CUlaunchAttribute)));
  tail.insert(tail.begin(), bytes, bytes + attributes.size() * sizeof(CUlaunchAttribute));
  launch.attribute_count = static_cast<uint32_t>(attributes.size());
}

namespace {

// Retires the handles of graphs that the node owns.
void retire_inner(const NodeWork& work) {
  if (const auto* const child = std::get_if<ChildWork>(&work)) handles().retire(child->graph->handle);
  if (const auto* const conditional = std::get_if<ConditionalWork>(&work)) {
    for (const auto& body : conditional->bodies) handles().retire(body->handle);
  }
}

}  // namespace

Graph::~Graph() {
  for (const auto& node : nodes) {
    retire_inner(node->work);
    handles().retire(node->handle);
  }
  for (const GraphCondition& condition : conditions) handles().retire(condition.handle);
}

GraphNode* Graph::add(CUgraphNodeType type, uint64_t context, NodeWork work,
                      const std::vector<GraphNode*>& dependencies) {
  auto node = std::make_unique<GraphNode>();
  auto object = std::make_unique<GraphNodeObject>();
  object->node = node.get();
  node->graph = this;
  node->type = type;
  node->context = context;
  node->handle = sessions().front()->mint(Kind::graph_node, std::move(object));
  if (node->handle == 0) return nullptr;
  node->work = std::move(work);
  for (GraphNode* const dependency : dependencies) connect(*dependency, *node);
  nodes.push_back(std::move(node));
  return nodes.back().get();
}

bool Graph::connect(GraphNode& from, GraphNode& to, cuda::EdgeData edge) {
  if (&from == &to || from.graph != to.graph) return false;
  if (std::find(to.dependencies.begin(), to.dependencies.end(), &from) != to.dependencies.end()) return false;
  to.dependencies.push_back(&from);
  to.edges.set(from, edge);
  from.dependents.push_back(&to);
  return true;
}

bool Graph::disconnect(GraphNode& from, GraphNode& to) {
  if (std::erase(to.dependencies, &from) == 0) return false;
  to.edges.set(from, cuda::kFullDependency);
  std::erase(from.dependents, &to);
  return true;
}

void Graph::remove(GraphNode& node) {
  for (GraphNode* const other : std::vector(node.dependencies)) disconnect(*other, node);
  for (GraphNode* const other : std::vector(node.dependents)) disconnect(node, *other);
  node.graph = nullptr;
  retire_inner(node.work);
  handles().retire(node.handle);
  const auto place =
      std::find_if(nodes.begin(), nodes.end(), [&](const auto& other) { return other.get() == &node; });
  removed_.push_back(std::move(*place));
  nodes.erase(place);
  removed_.back()->work = {};
}

std::shared_ptr<Graph> Graph::clone() const {
  auto copy = std::make_shared<Graph>();
  copy->user_objects.add_all(user_objects);
  std::unordered_map<const GraphNode*, GraphNode*> twins;
  for (const auto& node : nodes) {
    NodeWork work = node->work;
    if (auto* const child = std::get_if<ChildWork>(&work)) {
      child->graph = child->graph->clone();
      if (!child->graph || publish(child->graph) == 0) return nullptr;
    }
    GraphNode* const twin = copy->add(node->type, node->context, std::move(work), {});
    if (!twin) return nullptr;
    twin->original = node->handle;
    twins[node.get()] = twin;
  }
  for (const auto& node : nodes) {
    for (const GraphNode* const dependency : node->dependencies)
      connect(*twins[dependency], *twins[node.get()], node->edges.of(*dependency));
  }
  return copy;
}

bool Graph::has_memory() const {
  return std::any_of(nodes.begin(), nodes.end(), [](const auto& node) {
    return std::holds_alternative<AllocWork>(node->work) || std::holds_alternative<FreeWork>(node->work);
  });
}

bool Graph::has_conditions() const {
  return !conditions.empty() || std::any_of(nodes.begin(), nodes.end(), [](const auto& node) {
    return std::holds_alternative<ConditionalWork>(node->work);
  });
}

bool Graph::in_order(std::vector<GraphNode*>& order) const {
  std::unordered_map<const GraphNode*, size_t> unmet;
  order.clear();
  for (const auto& node : nodes) {
    unmet[node.get()] = node->dependencies.size();
    if (node->dependencies.empty()) order.push_back(node.get());
  }
  for (size_t i = 0; i < order.size(); ++i) {
    for (GraphNode* const dependent : order[i]->dependents) {
      if (--unmet[dependent] == 0) order.push_back(dependent);
    }
  }
  return order.size() == nodes.size();
}

Graph* find_graph(CUgraph handle) {
  const auto* const object = handles().find_as<GraphObject>(Kind::graph, cuda::handle_bits(handle));
  return object ? object->graph.get() : nullptr;
}

std::shared_ptr<Graph> share_graph(CUgraph handle) {
  const auto* const object = handles().find_as<GraphObject>(Kind::graph, cuda::handle_bits(handle));
  return object ? object->graph : nullptr;
}

GraphNode* find_node(CUgraphNode handle) {
  const auto* const object = handles().find_as<GraphNodeObject>(Kind::graph_node, cuda::handle_bits(handle));
  return object ? object->node : nullptr;
}

uint64_t publish(const std::shared_ptr<Graph>& graph) {
  auto object = std::make_unique<GraphObject>();
  object->graph = graph;
  graph->handle = sessions().front()->mint(Kind::graph, std::move(object));
  return graph->handle;
}

}  // namespace gpupool::client
