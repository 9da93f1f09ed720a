// Tests executable graphs against a fake worker: the description that the server gets, its answers, launches
// and host nodes.
#include "client/graphs/graph_exec.h"

#include <thread>

#include "tests/client/fake_pool.h"
#include "tests/support/catch.h"
#include "tests/support/processes.h"

using namespace gpupool;
using namespace gpupool::client;
using namespace gpupool::client::test;
using namespace gpupool::testing;
using wire::Command;
using wire::GraphNodeKind;

namespace {

struct DescribedNode {
  wire::GraphNode head{};
  std::vector<uint32_t> dependencies;
  std::vector<wire::GraphEdge> edges;
  std::string body;
};

// Decodes a graph_nodes command.
std::vector<DescribedNode> nodes_of(const ReceivedCommand& command) {
  std::vector<DescribedNode> nodes;
  std::string_view rest = command.body;
  const auto take = [&](void* to, size_t bytes) {
    REQUIRE(rest.size() >= bytes);
    rest.copy(static_cast<char*>(to), bytes);
    rest.remove_prefix(bytes);
  };
  wire::GraphNodes head{};
  take(&head, sizeof head);
  for (uint32_t i = 0; i < head.count; ++i) {
    DescribedNode& node = nodes.emplace_back();
    take(&node.head, sizeof node.head);
    node.dependencies.resize(node.head.dependency_count);
    take(node.dependencies.data(), node.dependencies.size() * sizeof(uint32_t));
    node.edges.resize(node.head.edge_count);
    take(node.edges.data(), node.edges.size() * sizeof(wire::GraphEdge));
    node.body.resize(node.head.body_bytes);
    take(node.body.data(), node.body.size());
  }
  CHECK(rest.empty());
  return nodes;
}

// A graph of the program, in the primary context.
struct Program {
  FakeWorker& worker = connected_worker();
  Context& context = current_primary();
  std::shared_ptr<Graph> graph = make_graph();

  static std::shared_ptr<Graph> make_graph() {
    const std::lock_guard lock(graph_mutex());
    auto made = std::make_shared<Graph>();
    REQUIRE(publish(made) != 0);
    return made;
  }
  GraphNode& add(CUgraphNodeType type, NodeWork work, const std::vector<GraphNode*>& dependencies = {},
                 Graph* to = nullptr) {
    const std::lock_guard lock(graph_mutex());
    GraphNode* const node = (to ? *to : *graph).add(type, context.handle, std::move(work), dependencies);
    REQUIRE(node);
    return *node;
  }
  GraphNode& add_fill(const std::vector<GraphNode*>& dependencies = {}, Graph* to = nullptr) {
    CUDA_MEMSET_NODE_PARAMS params{};
    params.dst = 0x4000;
    params.pitch = 64;
    params.value = 7;
    params.elementSize = 4;
    params.width = 16;
    params.height = 2;
    return add(CU_GRAPH_NODE_TYPE_MEMSET, FillWork{params}, dependencies, to);
  }
  GraphNode& add_host(CUhostFn function, void* data) {
    CUDA_HOST_NODE_PARAMS params{};
    params.fn = function;
    params.userData = data;
    return add(CU_GRAPH_NODE_TYPE_HOST, HostWork{params});
  }
  void answer(uint32_t result, uint32_t node = wire::kNoGraphNode, CUresult error = CUDA_SUCCESS) {
    worker.answer(Command::instantiate_graph, bytes_of(wire::GraphResult{result, node}), error);
  }
  CUresult instantiate(CUgraphExec* exec, CUDA_GRAPH_INSTANTIATE_PARAMS* params = nullptr) {
    CUDA_GRAPH_INSTANTIATE_PARAMS own{};
    return cuGraphInstantiateWithParams(exec, graph_handle(*graph), params ? params : &own);
  }
  CUgraphExec executable() {
    answer(wire::kGraphInstantiated);
    CUgraphExec exec = nullptr;
    REQUIRE(instantiate(&exec) == CUDA_SUCCESS);
    return exec;
  }
};

}  // namespace

TEST_CASE("graph exec: describes nodes behind their dependencies, by number") {
  Program program;
  GraphNode& event = program.add(CU_GRAPH_NODE_TYPE_EVENT_RECORD, EventWork{0x1234});
  GraphNode& fill = program.add_fill({&event});
  GraphNode& end = program.add(CU_GRAPH_NODE_TYPE_EMPTY, {});
  {
    const std::lock_guard lock(graph_mutex());
    REQUIRE(Graph::connect(fill, end));
    REQUIRE(Graph::connect(event, end, {.from_port = 1, .type = 1}));
  }
  const CUgraphExec exec = program.executable();
  const ReceivedCommand command = program.worker.await_command(Command::graph_nodes);
  const auto instantiated =
      program.worker.await_command(Command::instantiate_graph).as<wire::InstantiateGraph>();
  CHECK(command.as<wire::GraphNodes>().graph == instantiated.graph);
  CHECK(instantiated.executable == cuda::handle_bits(exec));
  const auto nodes = nodes_of(command);
  REQUIRE(nodes.size() == 3);
  CHECK(nodes[0].head.kind == GraphNodeKind::event_record);
  CHECK(nodes[0].head.context == program.context.handle);
  CHECK(nodes[0].dependencies.empty());
  CHECK(nodes[0].body == bytes_of(wire::GraphEvent{0x1234}));
  CHECK(nodes[1].head.kind == GraphNodeKind::fill);
  CHECK(nodes[1].dependencies == std::vector<uint32_t>{0});
  CHECK(nodes[1].body == bytes_of(wire::GraphFill{0x4000, 64, 7, 4, 16, 2}));
  CHECK(nodes[2].head.kind == GraphNodeKind::empty);
  CHECK(nodes[2].dependencies == std::vector<uint32_t>{0, 1});
  CHECK(nodes[2].edges == std::vector<wire::GraphEdge>{{0, 1, 1, 0}});
  CHECK(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
  CHECK(program.worker.await_command(Command::destroy_graph).as<wire::DestroyGraph>().executable ==
        cuda::handle_bits(exec));
}

TEST_CASE("graph exec: surrounds a child graph with empty nodes") {
  Program program;
  const auto child = Program::make_graph();
  program.add_fill({}, child.get());
  program.add_fill({}, child.get());
  GraphNode& first = program.add_fill();
  GraphNode& middle = program.add(CU_GRAPH_NODE_TYPE_GRAPH, ChildWork{child}, {&first});
  program.add_fill({&middle});
  (void)program.executable();
  const auto nodes = nodes_of(program.worker.await_command(Command::graph_nodes));
  REQUIRE(nodes.size() == 6);
  CHECK(nodes[1].head.kind == GraphNodeKind::empty);
  CHECK(nodes[1].dependencies == std::vector<uint32_t>{0});
  CHECK(nodes[2].dependencies == std::vector<uint32_t>{1});
  CHECK(nodes[3].dependencies == std::vector<uint32_t>{1});
  CHECK(nodes[4].head.kind == GraphNodeKind::empty);
  CHECK(nodes[4].dependencies == std::vector<uint32_t>{1, 2, 3});
  CHECK(nodes[5].dependencies == std::vector<uint32_t>{4});
}

TEST_CASE("graph exec: work without an effect becomes an empty node") {
  Program program;
  GraphNode& fill = program.add_fill();
  std::get<FillWork>(fill.work).params.height = 0;
  program.add(CU_GRAPH_NODE_TYPE_MEMCPY, CopyWork{});
  (void)program.executable();
  for (const auto& node : nodes_of(program.worker.await_command(Command::graph_nodes)))
    CHECK(node.head.kind == GraphNodeKind::empty);
}

TEST_CASE("graph exec: a large graph is described in several messages") {
  Program program;
  constexpr size_t kNodes = 20'000;
  for (size_t i = 0; i < kNodes; ++i) program.add_fill();
  (void)program.executable();
  size_t count = 0;
  const auto messages = program.worker.received(Command::graph_nodes);
  for (const auto& message : messages) {
    CHECK(message.body.size() < wire::kMaxBodyBytes);
    count += message.as<wire::GraphNodes>().count;
  }
  CHECK(messages.size() >= 2);
  CHECK(count == kNodes);
}

TEST_CASE("graph exec: an empty graph is described, too") {
  Program program;
  (void)program.executable();
  CHECK(nodes_of(program.worker.await_command(Command::graph_nodes)).empty());
}

TEST_CASE("graph exec: refuses a graph with a cycle without asking the server") {
  Program program;
  GraphNode& a = program.add_fill();
  GraphNode& b = program.add_fill({&a});
  {
    const std::lock_guard lock(graph_mutex());
    REQUIRE(Graph::connect(b, a));
  }
  CUgraphExec exec = nullptr;
  CHECK(program.instantiate(&exec) == CUDA_ERROR_INVALID_VALUE);
  CHECK(program.worker.received(Command::instantiate_graph).empty());
}

TEST_CASE("graph exec: blames the node that the server names") {
  Program program;
  const GraphNode& first = program.add_fill();
  program.add_fill();
  CUgraphExec exec = nullptr;
  CUDA_GRAPH_INSTANTIATE_PARAMS params{};
  SECTION("a node of the graph") {
    program.answer(CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED, 0, CUDA_ERROR_NOT_SUPPORTED);
    CHECK(program.instantiate(&exec, &params) == CUDA_ERROR_NOT_SUPPORTED);
    CHECK(params.result_out == CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED);
    CHECK(params.hErrNode_out == node_handle(first));
  }
  SECTION("a node that does not exist") {
    program.answer(wire::kGraphInstantiateError, 2, CUDA_ERROR_INVALID_VALUE);
    CHECK(program.instantiate(&exec, &params) == CUDA_ERROR_INVALID_VALUE);
    CHECK(params.hErrNode_out == nullptr);
  }
  SECTION("an answer of the wrong size") {
    program.worker.answer(Command::instantiate_graph, "short");
    CHECK(program.instantiate(&exec, &params) != CUDA_SUCCESS);
    CHECK(params.result_out == CUDA_GRAPH_INSTANTIATE_ERROR);
    CHECK(params.hErrNode_out == nullptr);
  }
  CHECK(exec == nullptr);
}

TEST_CASE("graph exec: destroys a graph that was made although an earlier command had failed") {
  Program program;
  program.answer(wire::kGraphInstantiated, wire::kNoGraphNode, CUDA_ERROR_INVALID_VALUE);
  CUgraphExec exec = nullptr;
  CHECK(program.instantiate(&exec) == CUDA_ERROR_INVALID_VALUE);
  CHECK(exec == nullptr);
  const auto made = program.worker.await_command(Command::instantiate_graph).as<wire::InstantiateGraph>();
  CHECK(program.worker.await_command(Command::destroy_graph).as<wire::DestroyGraph>().executable ==
        made.executable);
}

TEST_CASE("graph exec: a launch is one command, and runs host functions that the server announces") {
  Program program;
  std::atomic<int> calls{0};
  program.add_host([](void* data) { ++*static_cast<std::atomic<int>*>(data); }, &calls);
  const CUgraphExec exec = program.executable();
  const auto nodes = nodes_of(program.worker.await_command(Command::graph_nodes));
  REQUIRE(nodes.size() == 1);
  REQUIRE(nodes[0].head.kind == GraphNodeKind::host);
  const std::string callback = nodes[0].body;
  for (size_t launch = 0; launch < 2; ++launch) {
    CHECK(cuGraphLaunch(exec, nullptr) == CUDA_SUCCESS);
    const ReceivedCommand command = program.worker.await_command(Command::launch_graph, launch);
    CHECK(command.as<wire::LaunchGraph>().executable == cuda::handle_bits(exec));
    program.worker.send(wire::MessageKind::host_callback, command.header.sequence, callback);
    const auto done = program.worker.await_command(Command::host_function_done, launch);
    CHECK(bytes_of(done.as<wire::HostFunctionDone>().callback) == callback);
    CHECK(calls == static_cast<int>(launch) + 1);
  }
}

TEST_CASE("graph exec: host functions of a failed launch are not run") {
  Program program;
  std::atomic<int> calls{0};
  program.add_host([](void* data) { ++*static_cast<std::atomic<int>*>(data); }, &calls);
  const CUgraphExec exec = program.executable();
  CHECK(cuGraphLaunch(exec, nullptr) == CUDA_SUCCESS);
  const uint64_t failed = program.worker.await_command(Command::launch_graph).header.sequence;
  program.worker.send(wire::MessageKind::host_callback, failed, bytes_of(uint64_t{0}),
                      CUDA_ERROR_INVALID_VALUE);
  // A later host function shows that the message has been handled.
  std::atomic<bool> later{false};
  CHECK(cuLaunchHostFunc(
            nullptr, [](void* data) { *static_cast<std::atomic<bool>*>(data) = true; }, &later) ==
        CUDA_SUCCESS);
  const ReceivedCommand command = program.worker.await_command(Command::host_function);
  program.worker.send(wire::MessageKind::host_callback, command.header.sequence,
                      bytes_of(command.as<wire::HostFunction>().callback));
  (void)program.worker.await_command(Command::host_function_done);
  CHECK(later);
  CHECK(calls == 0);
}
