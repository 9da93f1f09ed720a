#include "client/graphs/graph_exec.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "client/memory/array.h"
#include "client/streams/host_function.h"

namespace gpupool::client {
namespace {

// Returns GraphExec::Node::launch for the body of a kernel node, which ends with the parameters.
std::string launch_in(const wire::Buffer& body, uint64_t context) {
  wire::Launch launch;
  std::memcpy(&launch, body.data(), sizeof launch);
  std::string text(reinterpret_cast<const char*>(body.data()), body.size() - launch.parameter_bytes);
  return text.append(reinterpret_cast<const char*>(&context), sizeof context);
}

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

// Writes the work of one node; `node` null: a node without work, where dependencies meet. add() fills in
// `described` and the body of the record.
class NodeWriter {
 public:
  NodeWriter(const GraphNode* node, Session& session, GraphExec::Node& described)
      : node_(node), session_(session), described_(described) {}

  CUresult add() {
    return node_ ? std::visit([this](const auto& work) { return add(work); }, node_->work) : CUDA_SUCCESS;
  }
  const wire::Buffer& body() const { return body_; }
  uint64_t context() const { return context_ ? context_->handle : 0; }

 private:
  // Work that needs no command: of empty nodes, and of nodes that are described otherwise.
  CUresult add(const std::monostate&) { return CUDA_SUCCESS; }
  CUresult add(const ChildWork&) { return CUDA_SUCCESS; }
  CUresult add(const AllocWork&) { return CUDA_SUCCESS; }
  CUresult add(const FreeWork&) { return CUDA_SUCCESS; }
  CUresult add(const KernelWork& kernel) {
    const CUresult result = start(GraphNodeKind::kernel);
    put_body(body_, kernel.launch);
    wire::Writer(body_).put_bytes(kernel.tail.data(), kernel.tail.size());
    return result;
  }
  CUresult add(const FillWork& fill) {
    const auto& params = fill.params;
    if (params.width == 0 || params.height == 0) return CUDA_SUCCESS;
    const CUresult result = start(GraphNodeKind::fill);
    put_body(body_, wire::GraphFill{params.dst, params.pitch, params.value, params.elementSize, params.width,
                                    params.height});
    return result;
  }
  CUresult add(const CopyWork& copy) {
    if (is_empty(copy.box)) return CUDA_SUCCESS;
    if (copy.on_host()) return add_host_copy(copy);
    const CUresult result = start(GraphNodeKind::copy);
    if (result != CUDA_SUCCESS) return result;
    if (!copy.array_copy) return write_copy(body_, copy.box);
    put_body(body_, *copy.array_copy);
    return CUDA_SUCCESS;
  }
  CUresult add(const HostWork& host) {
    const CUresult result = start(GraphNodeKind::host);
    call_back([params = host.params]() -> uint64_t {
      params.fn(params.userData);
      return 0;
    });
    return result;
  }
  CUresult add(const EventWork& event) {
    const CUresult result = start(node_->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD ? GraphNodeKind::event_record
                                                                                 : GraphNodeKind::event_wait);
    put_body(body_, wire::GraphEvent{event.event});
    return result;
  }
  CUresult add(const OperationsWork& memory) {
    const CUresult result = start(GraphNodeKind::memory_operations);
    wire::Writer(body_).put_bytes(memory.operations.data(),
                                  memory.operations.size() * sizeof(CUstreamBatchMemOpParams));
    return result;
  }
  CUresult add(const ConditionalWork& conditional) {
    const CUresult result = start(GraphNodeKind::conditional);
    put_body(body_, wire::GraphConditional{conditional.condition, conditional.type,
                                           static_cast<uint32_t>(described_.bodies.size())});
    wire::Writer(body_).put_bytes(described_.bodies.data(), described_.bodies.size() * sizeof(uint64_t));
    return result;
  }

  CUresult add_host_copy(const CopyWork& copy) {
    const CUresult result = start(GraphNodeKind::host);
    call_back([box = copy.box, array_copy = copy.array_copy, handle = node_->context,
               enabled = described_.enabled]() -> uint64_t {
      Context* const context = find_context(handle);
      if (!context || !enabled->load()) return 0;
      return array_copy ? copy_array_now(*context, *array_copy) : copy_now(*context, box);
    });
    return result;
  }

  CUresult start(GraphNodeKind kind) {
    described_.kind = kind;
    context_ = find_context(node_->context);
    if (!context_) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return context_->session == &session_ ? session_.before_call(context_) : CUDA_ERROR_NOT_SUPPORTED;
  }
  void call_back(std::function<uint64_t()> action) {
    described_.callback = keep_host_function(session_, std::move(action));
    put_body(body_, wire::GraphHost{described_.callback});
  }

  const GraphNode* node_;
  Session& session_;
  GraphExec::Node& described_;
  Context* context_ = nullptr;
  wire::Buffer body_;
};

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
  described.type = node ? node->type : CU_GRAPH_NODE_TYPE_EMPTY;
  described.node = node ? node->handle : 0;
  described.kind = GraphNodeKind::empty;
  described.enabled = std::make_shared<std::atomic<bool>>(true);
  NodeWriter work(node, session, described);
  if (const CUresult result = work.add(); result != CUDA_SUCCESS) return result;
  const wire::Buffer& body = work.body();
  if (described.kind == GraphNodeKind::kernel) described.launch = launch_in(body, work.context());
  writer.put(wire::GraphNode{described.kind, static_cast<uint32_t>(described.dependencies.size()),
                             static_cast<uint32_t>(body.size()),
                             static_cast<uint32_t>(described.edges.size()), work.context()});
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
