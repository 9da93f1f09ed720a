// Tests graphs as the client keeps them: nodes, edges, order, clones and handles.
#include "client/graphs/graph.h"

#include <algorithm>

#include "tests/client/fake_pool.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::client;
using namespace gpupool::client::test;

namespace {

// Holds graph_mutex() and has the handles' session.
struct Locked {
  testing::FakeWorker& worker = connected_worker();
  std::unique_lock<std::mutex> lock{graph_mutex()};
};

GraphNode& add(Graph& graph, const std::vector<GraphNode*>& dependencies = {}, NodeWork work = {}) {
  GraphNode* const node = graph.add(CU_GRAPH_NODE_TYPE_EMPTY, 0, std::move(work), dependencies);
  REQUIRE(node);
  return *node;
}

std::shared_ptr<Graph> published() {
  auto graph = std::make_shared<Graph>();
  REQUIRE(publish(graph) != 0);
  return graph;
}

}  // namespace

TEST_CASE("graph: edges connect different nodes of one graph, and each pair once") {
  const Locked locked;
  Graph graph, other;
  GraphNode &a = add(graph), &b = add(graph), &stranger = add(other);
  CHECK(Graph::connect(a, b, {.from_port = 1, .type = 2}));
  CHECK_FALSE(Graph::connect(a, b));
  CHECK_FALSE(Graph::connect(a, a));
  CHECK_FALSE(Graph::connect(a, stranger));
  CHECK(b.dependencies == std::vector<GraphNode*>{&a});
  CHECK(a.dependents == std::vector<GraphNode*>{&b});
  CHECK(b.edges.of(a).from_port == 1);
  CHECK(Graph::disconnect(a, b));
  CHECK_FALSE(Graph::disconnect(a, b));
  CHECK(b.dependencies.empty());
  CHECK(a.dependents.empty());
  CHECK(Graph::connect(a, b));
  CHECK(b.edges.of(a) == cuda::kFullDependency);  // the earlier edge's data is gone
}

TEST_CASE("graph: sorts nodes behind their dependencies and finds cycles") {
  const Locked locked;
  Graph graph;
  GraphNode &last = add(graph), &left = add(graph), &right = add(graph), &first = add(graph);
  Graph::connect(first, left);
  Graph::connect(first, right);
  Graph::connect(left, last);
  Graph::connect(right, last);
  std::vector<GraphNode*> order{&last};  // replaced
  CHECK(graph.in_order(order));
  REQUIRE(order.size() == 4);
  CHECK(order.front() == &first);
  CHECK(order.back() == &last);
  Graph::connect(last, first);
  CHECK_FALSE(graph.in_order(order));
  Graph::disconnect(right, last);
  CHECK_FALSE(graph.in_order(order));
}

TEST_CASE("graph: a removed node loses its edges and its handle") {
  const Locked locked;
  Graph graph;
  GraphNode& a = add(graph);
  GraphNode& b = add(graph, {&a});
  GraphNode& c = add(graph, {&b});
  const CUgraphNode handle = node_handle(b);
  CHECK(find_node(handle) == &b);
  graph.remove(b);
  CHECK(find_node(handle) == nullptr);
  CHECK(graph.nodes.size() == 2);
  CHECK(a.dependents.empty());
  CHECK(c.dependencies.empty());
  CHECK(b.graph == nullptr);  // captures and events may still name the node
  CHECK_FALSE(Graph::connect(b, c));
}

TEST_CASE("graph: a graph's handles end with it") {
  const Locked locked;
  CUgraphNode node = nullptr;
  CUgraph child = nullptr;
  {
    Graph graph;
    const auto inner = published();
    child = graph_handle(*inner);
    node = node_handle(add(graph, {}, ChildWork{inner}));
    CHECK(find_node(node));
    CHECK(find_graph(child) == inner.get());
    CHECK(share_graph(child) == inner);
  }
  CHECK_FALSE(find_node(node));
  CHECK_FALSE(find_graph(child));
  CHECK_FALSE(share_graph(child));
}

TEST_CASE("graph: a handle keeps its graph alive") {
  const Locked locked;
  auto graph = published();
  const CUgraph handle = graph_handle(*graph);
  const std::weak_ptr<Graph> watched = graph;
  graph.reset();
  CHECK(find_graph(handle) == watched.lock().get());
  handles().retire(cuda::handle_bits(handle));
  CHECK(watched.expired());
}

TEST_CASE("graph: a clone has its own nodes, edges and child graphs") {
  const Locked locked;
  Graph graph;
  const auto inner = published();
  GraphNode& inside = add(*inner);
  GraphNode& a = add(graph, {}, EventWork{42});
  GraphNode& b = add(graph, {}, ChildWork{inner});
  Graph::connect(a, b, {.from_port = 1, .type = 0});
  const auto clone = graph.clone();
  REQUIRE(clone);
  graph.remove(a);  // does not change the clone
  REQUIRE(clone->nodes.size() == 2);
  const GraphNode &twin_a = *clone->nodes[0], &twin_b = *clone->nodes[1];
  CHECK(twin_a.original == a.handle);
  CHECK(std::get<EventWork>(twin_a.work).event == 42);
  CHECK(twin_b.dependencies == std::vector<GraphNode*>{clone->nodes[0].get()});
  CHECK(twin_b.edges.of(twin_a).from_port == 1);
  CHECK(twin_b.handle != b.handle);
  const Graph& copied = *std::get<ChildWork>(twin_b.work).graph;
  CHECK(&copied != inner.get());
  REQUIRE(copied.nodes.size() == 1);
  CHECK(copied.nodes[0]->original == inside.handle);
  CHECK(find_graph(graph_handle(copied)) == &copied);
}

TEST_CASE("graph: knows whether it allocates memory or has conditions") {
  const Locked locked;
  Graph graph;
  add(graph);
  CHECK_FALSE(graph.has_memory());
  CHECK_FALSE(graph.has_conditions());
  add(graph, {}, FreeWork{});
  CHECK(graph.has_memory());
  SECTION("a handle") {
    graph.conditions.push_back({});
  }
  SECTION("a node") {
    add(graph, {}, ConditionalWork{});
  }
  CHECK(graph.has_conditions());
}

TEST_CASE("graph: attributes of a kernel node precede its parameters") {
  KernelWork work;
  work.tail.assign(4, std::byte{'p'});
  CUlaunchAttribute priority{};
  priority.id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
  priority.value.priority = -3;
  work.set_attributes({priority, priority});
  CHECK(work.launch.attribute_count == 2);
  REQUIRE(work.attributes().size() == 2);
  CHECK(work.attributes()[1].value.priority == -3);
  work.set_attributes({});
  CHECK(work.attributes().empty());
  CHECK(work.tail == wire::Buffer(4, std::byte{'p'}));
}
