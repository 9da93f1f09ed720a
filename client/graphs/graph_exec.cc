#include "client/graphs/graph_exec.h"

#include <algorithm>
#include <utility>

#include "client/api/host_function.h"
#include "client/memory/array.h"

namespace gpupool::client {
namespace {

constexpr size_t kMessageBytes = 1u << 20;

using wire::GraphNodeKind;

Context* find_context(uint64_t handle) {
  return handles().find_as<Context>(Kind::context, handle);
}

template <class T>
void put_body(wire::Buffer& body, const T& value) {
  wire::Writer(body).put(value);
}

// Node types that CUDA allows in the body of a conditional node.
bool may_be_in_body(const GraphNode& node) {
  const auto* const copy = std::get_if<CopyWork>(&node.work);
  return std::holds_alternative<std::monostate>(node.work) || std::holds_alternative<KernelWork>(node.work) ||
         std::holds_alternative<FillWork>(node.work) || std::holds_alternative<ConditionalWork>(node.work) ||
         (copy && !copy->on_host());
}

// Computes the pitch, and the rows from one slice to the next where that matters. False: the layout cannot be
// expressed.
bool slice_rows(const CopyBox& box, const CopyEnd& end, uint64_t* pitch, uint64_t* rows) {
  *pitch = box.height == 1 && box.depth == 1 ? box.width : end.pitch;
  *rows = box.height;
  if (box.depth == 1) return true;
  if (end.pitch == 0 || end.slice % end.pitch != 0) return false;
  *rows = end.slice / end.pitch;
  return true;
}

CUresult write_copy(wire::Buffer& body, const CopyBox& box) {
  wire::GraphCopy copy{};
  copy.from = box.from.address;
  copy.to = box.to.address;
  copy.width = box.width;
  copy.height = box.height;
  copy.depth = box.depth;
  if (!slice_rows(box, box.from, &copy.from_pitch, &copy.from_height) ||
      !slice_rows(box, box.to, &copy.to_pitch, &copy.to_height)) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  put_body(body, copy);
  return CUDA_SUCCESS;
}

}  // namespace

GraphExec::~GraphExec() {
  if (calls_back) forget_host_functions(callbacks());
}

GraphExec::Node* GraphExec::find(uint64_t node) {
  const auto found = numbers.find(node);
  return found == numbers.end() ? nullptr : &nodes[found->second];
}

std::vector<uint64_t> GraphExec::callbacks() const {
  std::vector<uint64_t> callbacks;
  for (const Node& node : nodes) {
    if (node.callback != 0) callbacks.push_back(node.callback);
  }
  return callbacks;
}

CUresult write_node(wire::Writer& writer, const GraphNode* node, Session& session,
                    GraphExec::Node& described) {
  wire::Buffer body;
  CUresult result = CUDA_SUCCESS;
  Context* context = nullptr;
  described.type = node ? node->type : CU_GRAPH_NODE_TYPE_EMPTY;
  described.node = node ? node->handle : 0;
  described.kind = GraphNodeKind::empty;
  described.enabled = std::make_shared<std::atomic<bool>>(true);
  const auto needs = [&](GraphNodeKind kind) {
    described.kind = kind;
    context = find_context(node->context);
    if (!context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return context->session == &session ? session.before_call(context) : CUDA_ERROR_NOT_SUPPORTED;
  };
  const auto call_back = [&](std::function<uint64_t()> action) {
    described.callback = keep_host_function(session, std::move(action));
    put_body(body, wire::GraphHost{described.callback});
  };
  if (!node) {
    // a node without work, where dependencies meet
  } else if (const auto* const kernel = std::get_if<KernelWork>(&node->work)) {
    result = needs(GraphNodeKind::kernel);
    put_body(body, kernel->launch);
    wire::Writer(body).put_bytes(kernel->tail.data(), kernel->tail.size());
  } else if (const auto* const fill = std::get_if<FillWork>(&node->work)) {
    const auto& params = fill->params;
    if (params.width != 0 && params.height != 0) {
      result = needs(GraphNodeKind::fill);
      put_body(body, wire::GraphFill{params.dst, params.pitch, params.value, params.elementSize, params.width,
                                     params.height});
    }
  } else if (const auto* const copy = std::get_if<CopyWork>(&node->work)) {
    if (is_empty(copy->box)) {
      // nothing to do
    } else if (!copy->on_host()) {
      result = needs(GraphNodeKind::copy);
      if (result == CUDA_SUCCESS && copy->array_copy)
        put_body(body, *copy->array_copy);
      else if (result == CUDA_SUCCESS)
        result = write_copy(body, copy->box);
    } else {
      result = needs(GraphNodeKind::host);
      call_back([box = copy->box, array_copy = copy->array_copy, handle = node->context,
                 enabled = described.enabled]() -> uint64_t {
        Context* const context = find_context(handle);
        if (!context || !enabled->load()) return 0;
        return array_copy ? copy_array_now(*context, *array_copy) : copy_now(*context, box);
      });
    }
  } else if (const auto* const host = std::get_if<HostWork>(&node->work)) {
    result = needs(GraphNodeKind::host);
    call_back([params = host->params]() -> uint64_t {
      params.fn(params.userData);
      return 0;
    });
  } else if (const auto* const event = std::get_if<EventWork>(&node->work)) {
    result = needs(node->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD ? GraphNodeKind::event_record
                                                                 : GraphNodeKind::event_wait);
    put_body(body, wire::GraphEvent{event->event});
  } else if (const auto* const memory = std::get_if<OperationsWork>(&node->work)) {
    result = needs(GraphNodeKind::memory_operations);
    wire::Writer(body).put_bytes(memory->operations.data(),
                                 memory->operations.size() * sizeof(CUstreamBatchMemOpParams));
  } else if (const auto* const conditional = std::get_if<ConditionalWork>(&node->work)) {
    result = needs(GraphNodeKind::conditional);
    put_body(body, wire::GraphConditional{conditional->condition, conditional->type,
                                          static_cast<uint32_t>(described.bodies.size())});
    wire::Writer(body).put_bytes(described.bodies.data(), described.bodies.size() * sizeof(uint64_t));
  }
  if (result != CUDA_SUCCESS) return result;
  writer.put(wire::GraphNode{described.kind, static_cast<uint32_t>(described.dependencies.size()),
                             static_cast<uint32_t>(body.size()),
                             static_cast<uint32_t>(described.edges.size()), context ? context->handle : 0});
  writer.put_bytes(described.dependencies.data(), described.dependencies.size() * sizeof(uint32_t));
  writer.put_bytes(described.edges.data(), described.edges.size() * sizeof(wire::GraphEdge));
  writer.put_bytes(body.data(), body.size());
  return CUDA_SUCCESS;
}

GraphDescription::~GraphDescription() {
  std::vector<uint64_t> callbacks;
  for (const auto& node : nodes) {
    if (node.callback != 0) callbacks.push_back(node.callback);
  }
  forget_host_functions(callbacks);
}

uint64_t mint_graph_number(Session& session) {
  const uint64_t handle = session.mint(Kind::graph, nullptr);
  handles().retire(handle);
  return handle;
}

wire::Writer GraphDescription::next_record() {
  if (messages_.empty() || messages_.back().graph != body_ || messages_.back().bytes.size() > kMessageBytes)
    messages_.push_back({body_, 0, {}});
  ++messages_.back().count;
  return wire::Writer(messages_.back().bytes);
}

// Appends the conditions of the graph and of all bodies in it, because kernels may set any of them.
CUresult GraphDescription::append_conditions(const Graph& graph) {
  for (const GraphCondition& condition : graph.conditions) {
    const Context* const own = find_context(condition.context);
    if (!own) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (own->session != context->session) return CUDA_ERROR_NOT_SUPPORTED;
    wire::Buffer body;
    put_body(body, wire::GraphCondition{condition.handle, condition.initial, condition.at_launch ? 1u : 0u});
    auto writer = next_record();
    writer.put(wire::GraphNode{GraphNodeKind::condition, 0, static_cast<uint32_t>(body.size()), 0,
                               condition.context});
    writer.put_bytes(body.data(), body.size());
    GraphExec::Node& described = nodes.emplace_back();
    described.type = CU_GRAPH_NODE_TYPE_EMPTY;
    described.kind = GraphNodeKind::condition;
    described.enabled = std::make_shared<std::atomic<bool>>(true);
  }
  for (const auto& node : graph.nodes) {
    const auto* const conditional = std::get_if<ConditionalWork>(&node->work);
    for (size_t i = 0; conditional && i < conditional->bodies.size(); ++i) {
      if (const CUresult result = append_conditions(*conditional->bodies[i]); result != CUDA_SUCCESS)
        return result;
    }
  }
  return CUDA_SUCCESS;
}

// Appends the bodies of conditional nodes. Their nodes are dropped from `nodes`, because no call names a body
// node of an executable graph.
CUresult GraphDescription::append_bodies() {
  auto own = std::exchange(nodes, {});
  CUresult result = CUDA_SUCCESS;
  while (!bodies_.empty() && result == CUDA_SUCCESS) {
    const auto [number, body] = bodies_.back();
    bodies_.pop_back();
    body_ = number;
    nodes.clear();
    result = append(*body, {}, nullptr);
  }
  body_ = 0;
  nodes = std::move(own);
  return result;
}

CUresult GraphDescription::append_node(const GraphNode* node, std::vector<uint32_t> dependencies,
                                       std::vector<wire::GraphEdge> edges) {
  if (nodes.size() >= wire::kMaxGraphNodes) return CUDA_ERROR_OUT_OF_MEMORY;
  std::sort(dependencies.begin(), dependencies.end());
  dependencies.erase(std::unique(dependencies.begin(), dependencies.end()), dependencies.end());
  std::sort(edges.begin(), edges.end(),
            [](const auto& one, const auto& other) { return one.from < other.from; });
  if (dependencies.size() * sizeof(uint32_t) + edges.size() * sizeof(wire::GraphEdge) >
      wire::kMaxBodyBytes / 2)
    return CUDA_ERROR_NOT_SUPPORTED;
  if (body_ != 0 && node && !may_be_in_body(*node)) return CUDA_ERROR_INVALID_VALUE;
  GraphExec::Node& described = nodes.emplace_back();
  described.dependencies = std::move(dependencies);
  described.edges = std::move(edges);
  const auto* const conditional = node ? std::get_if<ConditionalWork>(&node->work) : nullptr;
  for (size_t i = 0; conditional && i < conditional->bodies.size(); ++i) {
    described.bodies.push_back(mint_graph_number(*context->session));
    bodies_.emplace_back(described.bodies.back(), conditional->bodies[i].get());
  }
  auto writer = next_record();
  return write_node(writer, node, *context->session, described);
}

// Surrounds a child graph with two empty nodes, so that its root nodes need not list every predecessor, nor
// later nodes every leaf of it.
CUresult GraphDescription::append(const Graph& graph, const std::vector<uint32_t>& roots,
                                  std::vector<uint32_t>* leaves) {
  std::vector<GraphNode*> order;
  if (!graph.in_order(order)) return CUDA_ERROR_INVALID_VALUE;
  // For each node, the record after which it is complete.
  std::unordered_map<const GraphNode*, uint32_t> last;
  for (const GraphNode* const node : order) {
    std::vector<uint32_t> dependencies;
    if (node->dependencies.empty()) dependencies = roots;
    std::vector<wire::GraphEdge> edges;
    for (const GraphNode* const dependency : node->dependencies) {
      dependencies.push_back(last[dependency]);
      const cuda::EdgeData edge = node->edges.of(*dependency);
      if (edge != cuda::kFullDependency) edges.push_back({last[dependency], edge.from_port, edge.type, 0});
    }
    if (const auto* const child = std::get_if<ChildWork>(&node->work)) {
      if (const CUresult result = append_node(nullptr, std::move(dependencies)); result != CUDA_SUCCESS)
        return result;
      std::vector<uint32_t> ends;
      const uint32_t begin = static_cast<uint32_t>(nodes.size() - 1);
      if (const CUresult result = append(*child->graph, {begin}, &ends); result != CUDA_SUCCESS)
        return result;
      ends.push_back(begin);
      if (const CUresult result = append_node(nullptr, std::move(ends)); result != CUDA_SUCCESS)
        return result;
    } else if (const CUresult result = append_node(node, std::move(dependencies), std::move(edges));
               result != CUDA_SUCCESS) {
      return result;
    }
    if (const auto* const alloc = std::get_if<AllocWork>(&node->work)) allocated.push_back(alloc->memory);
    if (const auto* const free = std::get_if<FreeWork>(&node->work)) freed.push_back(free->memory);
    last[node] = static_cast<uint32_t>(nodes.size() - 1);
    if (node->dependents.empty() && leaves) leaves->push_back(last[node]);
  }
  return CUDA_SUCCESS;
}

CUresult GraphDescription::describe(const Graph& graph, Context& current) {
  // Chooses the context, and so the session: the last node's context that is not in the session of `current`,
  // else `current`. Nodes of other sessions fail later.
  context = &current;
  std::vector<const Graph*> open{&graph};
  for (size_t i = 0; i < open.size(); ++i) {
    if (!open[i]->user_objects.empty()) {
      if (!user_objects) user_objects = std::make_shared<cuda::UserReferences>();
      user_objects->add_all(open[i]->user_objects);
    }
    for (const auto& node : open[i]->nodes) {
      if (const auto* const conditional = std::get_if<ConditionalWork>(&node->work)) {
        for (const auto& body : conditional->bodies) open.push_back(body.get());
      }
      if (const auto* const child = std::get_if<ChildWork>(&node->work))
        open.push_back(child->graph.get());
      else if (Context* const own = node->context ? find_context(node->context) : nullptr;
               own && own->session != current.session)
        context = own;
    }
  }
  messages_.emplace_back();  // a graph without nodes also needs a message
  CUresult result = append_conditions(graph);
  if (result == CUDA_SUCCESS) result = append(graph, {}, nullptr);
  return result == CUDA_SUCCESS ? append_bodies() : result;
}

CUresult GraphDescription::send(uint64_t handle) const {
  for (const Message& message : messages_) {
    const CUresult result = context->session->post(
        static_cast<uint16_t>(wire::Command::graph_nodes), context, [&](wire::Writer& writer) {
          writer.put(wire::GraphNodes{message.graph != 0 ? message.graph : handle, message.count, 0});
          writer.put_bytes(message.bytes.data(), message.bytes.size());
        });
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

GraphExec* find_exec(CUgraphExec handle) {
  return handles().find_as<GraphExec>(Kind::graph_exec, cuda::handle_bits(handle));
}

}  // namespace gpupool::client
