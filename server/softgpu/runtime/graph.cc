#include "server/softgpu/runtime/graph.h"

#include <algorithm>

#include "server/softgpu/runtime/context.h"
#include "server/softgpu/runtime/module.h"
#include "server/softgpu/runtime/runtime.h"

namespace gpupool::softgpu {

std::mutex& graph_mutex() {
  static std::mutex* const mutex = new std::mutex;
  return *mutex;
}

Ref<GraphNode> Graph::add(CUgraphNodeType type, const std::vector<GraphNode*>& dependencies) {
  Ref<GraphNode> node = make_ref<GraphNode>(*this, type);
  node->handle = runtime().handles().add(node);
  nodes.push_back(node);
  for (GraphNode* dependency : dependencies) connect(*dependency, *node);
  return node;
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
  for (GraphNode* other : std::vector<GraphNode*>(node.dependencies)) disconnect(*other, node);
  for (GraphNode* other : std::vector<GraphNode*>(node.dependents)) disconnect(node, *other);
  node.graph = nullptr;
  node.memory.reset();
  runtime().handles().remove<GraphNode>(node.handle);
  const auto it =
      std::find_if(nodes.begin(), nodes.end(), [&](const auto& other) { return other.get() == &node; });
  if (node.conditional) {
    for (const Ref<Graph>& body : node.conditional->bodies) {
      runtime().handles().remove<Graph>(body->handle);
      body->clear();
    }
  }
  removed_.push_back(std::move(*it));
  nodes.erase(it);
}

void Graph::clear() {
  while (!nodes.empty()) remove(*Ref<GraphNode>(nodes.back()));
  for (const auto& [condition, object] : conditions) runtime().handles().remove<Condition>(condition);
  conditions.clear();
}

bool Graph::has_memory() const {
  return std::any_of(nodes.begin(), nodes.end(), [](const auto& node) { return node->memory != nullptr; });
}

bool Graph::has_conditions() const {
  return !conditions.empty() || std::any_of(nodes.begin(), nodes.end(),
                                            [](const auto& node) { return node->conditional != nullptr; });
}

Ref<Graph> Graph::clone() const {
  Ref<Graph> copy = make_ref<Graph>();
  copy->user_objects.add_all(user_objects);
  std::map<const GraphNode*, GraphNode*> twins;
  for (const Ref<GraphNode>& node : nodes) {
    const Ref<GraphNode> twin = copy->add(node->type, {});
    twin->prototype = node->prototype;
    twin->event = node->event;
    twin->child = node->child ? node->child->clone() : nullptr;
    twin->copy = node->copy;
    twin->fill = node->fill;
    twin->batch = node->batch;
    twin->original = node->handle;
    twins[node.get()] = twin.get();
  }
  for (const Ref<GraphNode>& node : nodes) {
    for (const GraphNode* dependency : node->dependencies)
      connect(*twins[dependency], *twins[node.get()], node->edges.of(*dependency));
  }
  return copy;
}

std::vector<GraphNode*> Graph::topological_order() const {
  std::map<const GraphNode*, size_t> unmet;
  std::vector<GraphNode*> order;
  for (const Ref<GraphNode>& node : nodes) {
    unmet[node.get()] = node->dependencies.size();
    if (node->dependencies.empty()) order.push_back(node.get());
  }
  for (size_t i = 0; i < order.size(); ++i) {
    for (GraphNode* dependent : order[i]->dependents) {
      if (--unmet[dependent] == 0) order.push_back(dependent);
    }
  }
  if (order.size() != nodes.size()) order.clear();
  return order;
}

// --- Executable graphs ---

bool GraphExec::append(const Graph& graph, const std::vector<uint32_t>& roots,
                       std::vector<uint32_t>* leaves) {
  const std::vector<GraphNode*> order = graph.topological_order();
  if (order.empty() && !graph.nodes.empty()) return false;
  if (order.empty()) {
    *leaves = roots;
    return true;
  }
  // Entries that are complete when a node is: its own entry, or the leaves of its child graph.
  std::map<const GraphNode*, std::vector<uint32_t>> ends;
  for (const GraphNode* node : order) {
    std::vector<uint32_t> dependencies;
    std::vector<cuda::EdgeData> edges;
    for (const GraphNode* dependency : node->dependencies) {
      dependencies.insert(dependencies.end(), ends[dependency].begin(), ends[dependency].end());
      edges.resize(dependencies.size(), node->edges.of(*dependency));
    }
    if (node->dependencies.empty()) dependencies = roots;
    edges.resize(dependencies.size());
    if (node->child) {
      if (!append(*node->child, dependencies, &ends[node])) return false;
    } else {
      Entry entry;
      entry.type = node->type;
      entry.prototype = node->prototype;
      entry.event = node->event;
      entry.node = node->handle;
      if (node->conditional) {
        entry.condition = node->conditional->condition;
        entry.condition_type = node->conditional->type;
        for (const Ref<Graph>& body : node->conditional->bodies) {
          entry.bodies.push_back(make_ref<GraphExec>(0));
          if (entry.bodies.back()->build(*body) != CUDA_SUCCESS || !entry.bodies.back()->may_be_body())
            return false;
        }
      }
      for (const uint32_t dependency : dependencies) entries_[dependency].leaf = false;
      entry.dependencies = std::move(dependencies);
      entry.edges = std::move(edges);
      ends[node] = {static_cast<uint32_t>(entries_.size())};
      entries_.push_back(std::move(entry));
    }
    if (node->dependents.empty()) leaves->insert(leaves->end(), ends[node].begin(), ends[node].end());
  }
  return true;
}

void GraphExec::collect_references(const Graph& graph) {
  user_objects->add_all(graph.user_objects);
  for (const Ref<GraphNode>& node : graph.nodes) {
    if (node->child) collect_references(*node->child);
    if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) allocated.push_back(node->memory);
    if (node->type == CU_GRAPH_NODE_TYPE_MEM_FREE) freed.push_back(node->memory);
  }
}

CUresult GraphExec::build(const Graph& graph) {
  user_objects = std::make_shared<cuda::UserReferences>();
  allocated.clear();
  freed.clear();
  collect_references(graph);
  std::vector<uint32_t> leaves;
  if (!append(graph, {}, &leaves)) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Ref<Condition>> all;
  collect_conditions(all);
  for (Ref<Condition>& condition : all) {
    if (condition->at_launch) assigned_at_launch_.push_back(std::move(condition));
  }
  return CUDA_SUCCESS;
}

bool GraphExec::may_be_body() const {
  return std::all_of(entries_.begin(), entries_.end(), [](const Entry& entry) {
    return entry.type == CU_GRAPH_NODE_TYPE_KERNEL || entry.type == CU_GRAPH_NODE_TYPE_MEMCPY ||
           entry.type == CU_GRAPH_NODE_TYPE_MEMSET || entry.type == CU_GRAPH_NODE_TYPE_EMPTY ||
           entry.condition;
  });
}

void GraphExec::collect_conditions(std::vector<Ref<Condition>>& all) const {
  for (const Entry& entry : entries_) {
    if (entry.condition) all.push_back(entry.condition);
    for (const Ref<GraphExec>& body : entry.bodies) body->collect_conditions(all);
  }
}

bool GraphExec::same_shape(const GraphExec& other, uint64_t* mismatch) const {
  if (other.entries_.size() != entries_.size()) return false;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry &mine = entries_[i], &its = other.entries_[i];
    bool same = its.type == mine.type && its.dependencies == mine.dependencies && its.edges == mine.edges &&
                its.condition_type == mine.condition_type && its.bodies.size() == mine.bodies.size();
    for (size_t body = 0; same && body < mine.bodies.size(); ++body) {
      uint64_t inner = 0;
      same = mine.bodies[body]->same_shape(*its.bodies[body], &inner);
    }
    if (same) continue;
    *mismatch = its.node;
    return false;
  }
  return true;
}

CUresult GraphExec::update(const Graph& graph, uint64_t* mismatch) {
  GraphExec other(flags);
  if (const CUresult result = other.build(graph); result != CUDA_SUCCESS) return result;
  std::lock_guard guard(mutex);
  if (!same_shape(other, mismatch)) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  for (size_t i = 0; i < entries_.size(); ++i) {
    entries_[i].prototype = other.entries_[i].prototype;
    entries_[i].event = other.entries_[i].event;
    entries_[i].condition = other.entries_[i].condition;
    entries_[i].bodies = other.entries_[i].bodies;
  }
  assigned_at_launch_ = other.assigned_at_launch_;
  user_objects = other.user_objects;
  allocated = other.allocated;
  freed = other.freed;
  return CUDA_SUCCESS;
}

CUresult GraphExec::update_child(const Graph& embedded, const Graph& child) {
  GraphExec before(0), after(0);
  if (const CUresult result = before.build(embedded); result != CUDA_SUCCESS) return result;
  if (const CUresult result = after.build(child); result != CUDA_SUCCESS) return result;
  uint64_t mismatch = 0;
  if (!before.same_shape(after, &mismatch)) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  std::lock_guard guard(mutex);
  std::vector<Entry*> mine;
  for (const Entry& entry : before.entries_) {
    mine.push_back(find(entry.node));
    if (mine.back() == nullptr) return CUDA_ERROR_INVALID_VALUE;  // not part of this executable graph
  }
  for (size_t i = 0; i < mine.size(); ++i) {
    mine[i]->prototype = after.entries_[i].prototype;
    mine[i]->event = after.entries_[i].event;
  }
  return CUDA_SUCCESS;
}

GraphExec::Entry* GraphExec::find(uint64_t node) {
  for (Entry& entry : entries_) {
    if (entry.node == node) return &entry;
  }
  return nullptr;
}

namespace {

// The last operation of a launch: drops the launch's references to user objects and graph memory.
class LaunchEnd final : public Op {
 public:
  LaunchEnd(std::shared_ptr<cuda::UserReferences> held, std::vector<cuda::graph_memory::Shared> memory)
      : held_(std::move(held)), memory_(std::move(memory)) {}

 private:
  void start() override {
    held_.reset();
    memory_.clear();
    complete();
  }
  void skip() override { start(); }
  std::shared_ptr<cuda::UserReferences> held_;
  std::vector<cuda::graph_memory::Shared> memory_;
};

// Returns the context that an entry's operation runs in: a kernel's own if that is another one, else the
// launch's.
Context& context_of(const GraphExec::Entry& entry, Context& launched_in) {
  if (entry.type != CU_GRAPH_NODE_TYPE_KERNEL || !entry.prototype) return launched_in;
  Context& own = static_cast<const GridOp&>(*entry.prototype).function().context();
  return &own == &launched_in.root() ? launched_in : own;
}

}  // namespace

std::vector<Ref<Op>> GraphExec::make_ops(Context& context, Op& begin, Op& end) const {
  std::vector<Ref<Op>> ops;
  ops.reserve(entries_.size());
  for (const Entry& entry : entries_) {
    Ref<Op> op;
    Ref<Op> waited;
    if (entry.type == CU_GRAPH_NODE_TYPE_EVENT_RECORD) {
      const Ref<Event> event = runtime().handles().find<Event>(entry.event);
      Ref<EventOp> record = event ? event->make_record() : make_ref<EventOp>();
      if (event) event->set_record(record);
      op = std::move(record);
    } else if (entry.condition) {
      op = make_ref<ConditionalOp>(entry.condition, entry.condition_type, entry.bodies);
    } else {
      if (entry.type == CU_GRAPH_NODE_TYPE_WAIT_EVENT) {
        if (const Ref<Event> event = runtime().handles().find<Event>(entry.event))
          waited = event->wait_operation();
      }
      op = entry.enabled && entry.prototype ? entry.prototype->clone() : Ref<Op>(make_ref<MarkerOp>());
    }
    op->set_context(&context_of(entry, context));
    if (waited) op->after(*waited);
    if (entry.dependencies.empty()) op->after(begin);
    for (const uint32_t dependency : entry.dependencies) op->after(*ops[dependency]);
    if (entry.leaf) end.after(*op);
    ops.push_back(std::move(op));
  }
  end.after(begin);
  return ops;
}

namespace {

// Resets conditions to their initial values when a launch starts.
class AssignOp final : public Op {
 public:
  explicit AssignOp(std::vector<Ref<Condition>> conditions) : conditions_(std::move(conditions)) {}

 private:
  void start() override {
    for (const Ref<Condition>& condition : conditions_) condition->assign_initial();
    complete();
  }
  const std::vector<Ref<Condition>> conditions_;
};

}  // namespace

CUresult GraphExec::launch(Stream& stream) {
  std::lock_guard guard(mutex);
  Context& context = stream.context();
  const Ref<Op> begin = assigned_at_launch_.empty() ? Ref<Op>(make_ref<MarkerOp>())
                                                    : Ref<Op>(make_ref<AssignOp>(assigned_at_launch_));
  std::vector<cuda::graph_memory::Shared> used(allocated);
  used.insert(used.end(), freed.begin(), freed.end());
  if (!used.empty()) {
    const bool again = (flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
    if (const CUresult refused = cuda::graph_memory::check_launch(allocated, again); refused != CUDA_SUCCESS)
      return refused;
  }
  const Ref<Op> end = make_ref<LaunchEnd>(user_objects, std::move(used));
  const std::vector<Ref<Op>> ops = make_ops(context, *begin, *end);
  end->set_context(&context);
  if (last_) begin->after(*last_);
  const uint64_t price = costs().price(Cost::graph_launch, Cost::graph_launch_node, nodes());
  if (const CUresult result = context.enqueue_graph_launch(stream, begin, end, price); result != CUDA_SUCCESS)
    return result;
  cuda::graph_memory::commit_launch(allocated, freed);
  last_ = end;
  for (const Ref<Op>& op : ops) op->submit();
  end->submit();
  begin->submit();
  return CUDA_SUCCESS;
}

}  // namespace gpupool::softgpu
