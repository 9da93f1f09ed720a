// Tests graphs in the worker: valid descriptions are built and executed, invalid ones rejected, and nothing
// is left behind.
#include "server/worker/graphs/graphs.h"

#include "protocol/images/fatbin.h"
#include "protocol/wire/images.h"
#include "tests/server/worker/graph_fixture.h"
#include "tests/server/worker/limited_session.h"

using namespace gpupool;
using namespace gpupool::worker::test;
using Fixture = GraphFixture;

TEST_CASE_METHOD(Fixture, "uploads a graph in several commands then launches and updates and destroys it") {
  describe(kGraph, Nodes().add(NodeKind::empty, {}, {}, 0).add(NodeKind::fill, fill(0, 16, 1), {0}));
  describe(kGraph, Nodes().add(NodeKind::fill, fill(8, 16, 2), {0, 1}));
  REQUIRE(instantiate() == CUDA_SUCCESS);
  CHECK(client.fake.locked([&] { return client.fake.executables.size(); }) == 1);
  CHECK(launch() == CUDA_SUCCESS);
  CHECK(at(7) == std::byte{1});
  CHECK(at(8) == std::byte{2});
  CHECK(client.ask(Command::set_graph_node, set_node(2, NodeKind::fill, fill(0, 16, 3))) == CUDA_SUCCESS);
  CHECK(launch() == CUDA_SUCCESS);
  CHECK(at(0) == std::byte{3});
  CHECK(client.ask(Command::enable_graph_node, bytes_of(wire::SetGraphNode{kExecutable, 2, 0})) ==
        CUDA_SUCCESS);
  CHECK(launch() == CUDA_SUCCESS);
  CHECK(at(0) == std::byte{1});
  describe(kOther, Nodes()
                       .add(NodeKind::empty, {}, {}, 0)
                       .add(NodeKind::fill, fill(0, 16, 9), {0})
                       .add(NodeKind::fill, fill(8, 16, 2), {0, 1}));
  CHECK(client.ask(Command::update_graph, bytes_of(wire::UpdateGraph{kExecutable, kOther})) == CUDA_SUCCESS);
  CHECK(client.fake.locked([&] { return client.fake.graphs.size(); }) == 1);
  CHECK(launch() == CUDA_SUCCESS);
  CHECK(at(0) == std::byte{9});
  CHECK(client.ask(Command::destroy_graph, bytes_of(wire::DestroyGraph{kExecutable})) == CUDA_SUCCESS);
  CHECK(launch() == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE_METHOD(Fixture, "runs a client node once per launch and in order") {
  describe(kGraph, Nodes()
                       .add(NodeKind::host, bytes_of(wire::GraphHost{7}))
                       .add(NodeKind::fill, fill(0, 1, 5), {0})
                       .add(NodeKind::host, bytes_of(wire::GraphHost{8}), {1}));
  REQUIRE(instantiate() == CUDA_SUCCESS);
  for (int i = 0; i < 3; ++i)
    client.send(Command::launch_graph, bytes_of(wire::LaunchGraph{kExecutable, stream_handle(0)}));
  for (int i = 0; i < 3; ++i) {
    for (const uint64_t callback : {7, 8}) {
      const Message told = client.receive();
      CHECK(told.header.kind == wire::MessageKind::host_callback);
      CHECK(told.as<uint64_t>() == callback);
      CHECK(client.silent());
      // Destroys the executable while two launches are in progress.
      if (i == 1 && callback == 7)
        client.send(Command::destroy_graph, bytes_of(wire::DestroyGraph{kExecutable}));
      client.send(Command::host_function_done, bytes_of(wire::HostFunctionDone{callback, 0}));
    }
  }
  CHECK(client.ask(Command::synchronize_stream, bytes_of(stream_handle(0))) == CUDA_SUCCESS);
  // The numbers can be reused.
  describe(kGraph, Nodes().add(NodeKind::host, bytes_of(wire::GraphHost{7})));
  CHECK(instantiate() == CUDA_SUCCESS);
}

TEST_CASE_METHOD(Fixture, "releases everything when a session ends during a graph launch") {
  describe(kGraph, Nodes().add(NodeKind::host, bytes_of(wire::GraphHost{7})));
  REQUIRE(instantiate() == CUDA_SUCCESS);
  client.send(Command::launch_graph, bytes_of(wire::LaunchGraph{kExecutable, stream_handle(0)}));
  CHECK(client.receive().header.kind == wire::MessageKind::host_callback);
  describe(kOther, Nodes().add(NodeKind::fill, fill(0, 1, 1)));
}

TEST_CASE_METHOD(Fixture, "reports a node's error in the command that uses the graph") {
  const auto is_refused = [&](const wire::Buffer& body, NodeKind kind, CUresult expected,
                              uint64_t context = kContext) {
    describe(kGraph, Nodes()
                         .add(NodeKind::empty, {}, {}, 0)
                         .add(kind, body, {0}, context)
                         .add(NodeKind::empty, {}, {0, 1}, 0));
    wire::GraphResult result{};
    CHECK(instantiate(kGraph, &result) == expected);
    CHECK(result.result == wire::kGraphInstantiateError);
    CHECK(result.node == 1);
  };
  is_refused(fill(client.fake.range_size - 4, 16, 1), NodeKind::fill, CUDA_ERROR_INVALID_VALUE);
  is_refused(bytes_of(wire::GraphFill{0x1000, 16, 0, 1, 16, 1}), NodeKind::fill, CUDA_ERROR_INVALID_VALUE);
  is_refused(bytes_of(wire::GraphFill{client.address(0), ~0ull, 0, 4, ~0ull / 2, ~0ull}), NodeKind::fill,
             CUDA_ERROR_INVALID_VALUE);
  is_refused(bytes_of(wire::GraphFill{client.address(0), 16, 0, 3, 4, 1}), NodeKind::fill,
             CUDA_ERROR_INVALID_VALUE);
  is_refused(fill(0, 4, 1), NodeKind::fill, CUDA_ERROR_INVALID_CONTEXT, kContext + 16);
  is_refused(bytes_of(wire::GraphCopy{client.address(0), 8, 1, client.address(client.fake.range_size - 8), 8,
                                      1, 16, 1, 1}),
             NodeKind::copy, CUDA_ERROR_INVALID_VALUE);
  is_refused(
      bytes_of(wire::GraphCopy{client.address(0), 8, ~0ull, client.address(16), 8, ~0ull, 8, 2, ~0ull}),
      NodeKind::copy, CUDA_ERROR_INVALID_VALUE);
  is_refused(bytes_of(wire::GraphEvent{event_handle(0)}), NodeKind::event_wait, CUDA_ERROR_INVALID_HANDLE);
  is_refused(client.launch_body(make_handle(Kind::function, 1, 9), 0, {}), NodeKind::kernel,
             CUDA_ERROR_INVALID_HANDLE);
  // An event named by a graph lives as long as the graph.
  client.call("cuEventCreate", bytes_of(event_handle(0), uint32_t{2}));
  describe(kGraph, Nodes().add(NodeKind::event_record, bytes_of(wire::GraphEvent{event_handle(0)})));
  REQUIRE(instantiate() == CUDA_SUCCESS);
  CHECK(client.ask("cuEventDestroy_v2", bytes_of(event_handle(0))) == CUDA_SUCCESS);
  CHECK(launch() == CUDA_SUCCESS);
  CHECK(client.fake.event_count() >= 1);
}

TEST_CASE_METHOD(Fixture, "rejects unknown handles and numbers") {
  CHECK(launch() == CUDA_ERROR_INVALID_HANDLE);
  CHECK(instantiate() == CUDA_ERROR_INVALID_HANDLE);
  describe(kGraph, Nodes().add(NodeKind::fill, fill(0, 1, 1)));
  CHECK(client.ask(Command::launch_graph, bytes_of(wire::LaunchGraph{kGraph, stream_handle(0)})) ==
        CUDA_ERROR_INVALID_HANDLE);
  CHECK(client.ask(Command::update_graph, bytes_of(wire::UpdateGraph{kGraph, kGraph})) ==
        CUDA_ERROR_INVALID_HANDLE);
  describe(kGraph, Nodes().add(NodeKind::fill, fill(0, 1, 1)));
  REQUIRE(instantiate() == CUDA_SUCCESS);
  CHECK(client.ask(Command::launch_graph, bytes_of(wire::LaunchGraph{kExecutable, stream_handle(9)})) ==
        CUDA_ERROR_INVALID_HANDLE);
  CHECK(client.ask(Command::set_graph_node, set_node(1, NodeKind::fill, fill(0, 1, 1))) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(client.ask(Command::set_graph_node, set_node(0, NodeKind::host, bytes_of(wire::GraphHost{3}))) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(client.ask(Command::enable_graph_node, bytes_of(wire::SetGraphNode{kExecutable, 1, 1})) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(instantiate(kOther) == CUDA_ERROR_INVALID_HANDLE);
  // The end of the context also ends the graphs that use it.
  CHECK(client.ask(Command::reset_primary_context, bytes_of(wire::PrimaryContext{kContext, 0, 0})) ==
        CUDA_SUCCESS);
}

namespace {

constexpr uint64_t kCondition = make_handle(Kind::graph_condition, 1, 510),
                   kBody = make_handle(Kind::graph, 1, 511);

wire::Buffer condition() {
  return bytes_of(wire::GraphCondition{kCondition, 1, 1});
}
wire::Buffer conditional(uint64_t which = kCondition, uint64_t body = kBody) {
  return bytes_of(wire::GraphConditional{which, 1, 1}, body);
}

}  // namespace

TEST_CASE_METHOD(Fixture, "bodies of conditional nodes are parts of their graph") {
  describe(kGraph,
           Nodes().add(NodeKind::condition, condition()).add(NodeKind::conditional, conditional(), {0}));
  describe(kBody, Nodes()
                      .add(NodeKind::fill, fill(0, 16, 1))
                      .add(NodeKind::conditional, conditional(kCondition, kBody + 16), {0}));
  describe(kBody + 16, Nodes().add(NodeKind::empty, {}, {}, 0));
  SECTION("and end with it") {
    CHECK(client.ask(Command::destroy_graph, bytes_of(wire::DestroyGraph{kGraph})) == CUDA_SUCCESS);
  }
  SECTION("also at the session's end") {}
  SECTION("and nothing by themselves") {
    CHECK(instantiate(kBody) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(client.ask(Command::destroy_graph, bytes_of(wire::DestroyGraph{kBody})) ==
          CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(instantiate() == CUDA_SUCCESS);
    CHECK(launch() == CUDA_SUCCESS);
    CHECK(client.ask(Command::set_graph_node, set_node(1, NodeKind::conditional, conditional())) !=
          CUDA_SUCCESS);
    // The numbers can be reused.
    describe(kBody, Nodes().add(NodeKind::fill, fill(0, 16, 1)));
    const Message reply = client.reply(client.send(
        Command::instantiate_graph, bytes_of(wire::InstantiateGraph{kBody, kExecutable + 16, 0}), true));
    CHECK(static_cast<CUresult>(reply.header.result) == CUDA_SUCCESS);
    CHECK(client.ask(Command::reset_primary_context, bytes_of(wire::PrimaryContext{kContext, 0, 0})) ==
          CUDA_SUCCESS);
  }
}

TEST_CASE_METHOD(Fixture, "reports an error in a body as an error of its graph") {
  wire::GraphResult result{};
  describe(kGraph,
           Nodes().add(NodeKind::condition, condition()).add(NodeKind::conditional, conditional(), {0}));
  describe(kBody, Nodes().add(NodeKind::fill, bytes_of(wire::GraphFill{0x1000, 16, 0, 1, 16, 1})));
  CHECK(instantiate(kGraph, &result) == CUDA_ERROR_INVALID_VALUE);
  // The condition does not exist, and the body belongs to no graph.
  describe(kGraph, Nodes().add(NodeKind::conditional, conditional()));
  describe(kBody, Nodes().add(NodeKind::fill, fill(0, 16, 1)));
  CHECK(instantiate(kGraph, &result) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result.node == 0);
  CHECK(instantiate(kBody) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE_METHOD(Fixture, "ends the session for invalid bodies") {
  ends_well = false;
  describe(kGraph,
           Nodes().add(NodeKind::condition, condition()).add(NodeKind::conditional, conditional(), {0}));
  switch (GENERATE(0, 1, 2, 3, 4)) {
    case 0: describe(kBody, Nodes().add(NodeKind::host, bytes_of(wire::GraphHost{7}))); break;
    case 1:
      describe(kBody,
               Nodes().add(NodeKind::condition, bytes_of(wire::GraphCondition{kCondition + 16, 1, 0})));
      break;
    case 2:
      describe(kBody, Nodes().add(NodeKind::conditional,
                                  bytes_of(wire::GraphConditional{kCondition, 1, 2}, uint64_t{1})));
      break;
    case 3:
      describe(kBody, Nodes().add(NodeKind::conditional,
                                  bytes_of(wire::GraphConditional{kCondition, 3, 1}, uint64_t{1})));
      break;
    case 4:
      describe(kBody, Nodes().add(NodeKind::conditional, bytes_of(wire::GraphConditional{kCondition, 1, 0})));
      break;
  }
}

TEST_CASE_METHOD(Fixture, "ends the session for invalid graphs") {
  ends_well = false;
  const auto dependencies =
      GENERATE(std::vector<uint32_t>{1}, std::vector<uint32_t>{0, 0}, std::vector<uint32_t>{~0u});
  describe(kGraph, Nodes().add(NodeKind::empty, {}, {}, 0).add(NodeKind::empty, {}, dependencies, 0));
}

TEST_CASE_METHOD(Fixture, "ends the session for bodies of the wrong length") {
  ends_well = false;
  switch (GENERATE(0, 1, 2, 3, 4)) {
    case 0: describe(kGraph, Nodes().add(NodeKind::fill, bytes_of(uint64_t{1}))); break;
    case 1: describe(kGraph, Nodes().add(static_cast<NodeKind>(99), {})); break;
    case 2: client.send(Command::graph_nodes, bytes_of(wire::GraphNodes{kGraph, 3, 0})); break;
    case 3:
      client.send(Command::graph_nodes,
                  bytes_of(wire::GraphNodes{kGraph, 1, 0}, wire::GraphNode{NodeKind::empty, ~0u, ~0u, 0, 0}));
      break;
    case 4: describe(kGraph, Nodes().add(NodeKind::memory_operations, bytes_of(uint64_t{1}))); break;
  }
}

namespace {

wire::GraphEdge programmatic(uint32_t from) {
  return {from, CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC, 0};
}

struct KernelFixture : GraphFixture {
  KernelFixture() {
    constexpr uint64_t kModule = make_handle(Kind::module, 1, 520),
                       kFunction = make_handle(Kind::function, 1, 521),
                       kUpload = make_handle(Kind::upload, 1, 522);
    static constexpr char kPtx[] =
        ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry kernel()\n{\nret;\n}\n";
    cuda::Bytes bundle;
    REQUIRE(cuda::bundle({.image = std::as_bytes(std::span(kPtx))}, bundle) == CUDA_SUCCESS);
    auto part = bytes_of(wire::UploadPart{kUpload, bundle.view().size()});
    part.insert(part.end(), bundle.view().begin(), bundle.view().end());
    client.send(Command::upload_part, part);
    client.send(Command::load_module, bytes_of(wire::LoadImage{kModule, kUpload}));
    auto get = bytes_of(wire::GetFunction{kFunction, kModule});
    wire::Writer(get).put_text("kernel");
    CHECK(client.ask(Command::get_function, get) == CUDA_SUCCESS);
    kernel = client.launch_body(kFunction, 0, {});
  }
  wire::Buffer kernel;
};

}  // namespace

TEST_CASE_METHOD(KernelFixture, "passes edges with data to the driver after their nodes") {
  describe(kGraph, Nodes().add(NodeKind::kernel, kernel).add(NodeKind::fill, fill(0, 16, 1)));
  describe(kGraph, Nodes().add(NodeKind::kernel, kernel, {1, 0}, kContext, {programmatic(0)}));
  SECTION("as they are") {
    REQUIRE(instantiate() == CUDA_SUCCESS);
    const auto edges = client.fake.locked([&] { return client.fake.graph_edges; });
    REQUIRE(edges.size() == 1);
    CHECK(edges[0].data.type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC);
    CHECK(edges[0].data.from_port == CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC);
    CHECK(edges[0].from != edges[0].to);
    CHECK(client.fake.locked([&] { return client.fake.node_dependencies; }) ==
          std::vector<size_t>{0, 0, 1});  // the fill
  }
  SECTION("as full dependencies, if the driver refuses the data") {
    client.fake.locked([&] { return client.fake.refuses_edge_data = true; });
    REQUIRE(instantiate() == CUDA_SUCCESS);
    const auto edges = client.fake.locked([&] { return client.fake.graph_edges; });
    REQUIRE(edges.size() == 1);
    CHECK(edges[0].data.type == CU_GRAPH_DEPENDENCY_TYPE_DEFAULT);
    CHECK(edges[0].data.from_port == CU_GRAPH_KERNEL_NODE_PORT_DEFAULT);
  }
  CHECK(launch() == CUDA_SUCCESS);
}

TEST_CASE_METHOD(KernelFixture, "turns an edge with data between two parts into the order of the parts") {
  describe(kGraph,
           Nodes().add(NodeKind::kernel, kernel).add(NodeKind::host, bytes_of(wire::GraphHost{7}), {0}));
  describe(kGraph, Nodes().add(NodeKind::kernel, kernel, {0, 1}, kContext, {programmatic(0)}));
  CHECK(instantiate() == CUDA_SUCCESS);
  CHECK(client.fake.locked([&] { return client.fake.graph_edges.empty(); }));
}

TEST_CASE_METHOD(KernelFixture, "ends the session for invalid edges") {
  ends_well = false;
  describe(kGraph, Nodes().add(NodeKind::kernel, kernel).add(NodeKind::fill, fill(0, 16, 1)));
  const auto add = [&](std::vector<wire::GraphEdge> edges, NodeKind kind = NodeKind::kernel) {
    describe(kGraph,
             Nodes().add(kind, kind == NodeKind::kernel ? kernel : fill(0, 16, 1), {0, 1}, kContext, edges));
  };
  switch (GENERATE(0, 1, 2, 3, 4, 5, 6)) {
    case 0: add({programmatic(2)}); break;                  // no such dependency
    case 1: add({programmatic(1)}); break;                  // from a fill
    case 2: add({programmatic(0)}, NodeKind::fill); break;  // to a fill
    case 3: add({programmatic(0), programmatic(0)}); break;
    case 4: add({{0, 3, 1, 0}}); break;
    case 5: add({{0, 1, 1, 1}}); break;
    case 6:
      client.send(Command::graph_nodes,
                  bytes_of(wire::GraphNodes{kGraph, 1, 0}, wire::GraphNode{NodeKind::empty, 0, 0, ~0u, 0}));
      break;
  }
}

TEST_CASE_METHOD(KernelFixture, "rejects launch-only attributes in kernel nodes") {
  wire::Launch launched{};
  std::memcpy(&launched, kernel.data(), sizeof launched);
  launched.attribute_count = 1;
  CUlaunchAttribute attribute{};
  attribute.id =
      GENERATE(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT);
  describe(kGraph, Nodes().add(NodeKind::kernel, bytes_of(launched, attribute)));
  CHECK(instantiate() == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("charges the nodes in bodies of conditional nodes until the graph ends") {
  constexpr uint64_t kNode = 64 * 1024;
  static_assert(Limited::kPage == kNode);
  Limited tenant(8 * kNode);
  TestClient& client = *tenant.client;
  client.create_stream(0);
  REQUIRE(tenant.map(0, 1) == CUDA_SUCCESS);
  // Returns the result for a graph with bodies of one and of this number of fills, in one another.
  const auto instantiate = [&](int fills) {
    const auto fill = bytes_of(wire::GraphFill{client.address(0), 16, 1, 1, 16, 1});
    Nodes graph, body, inner;
    graph.add(NodeKind::condition, condition()).add(NodeKind::conditional, conditional(), {0});
    body.add(NodeKind::fill, fill).add(NodeKind::conditional, conditional(kCondition, kBody + 16), {0});
    for (int count = 0; count < fills; ++count) inner.add(NodeKind::fill, fill);
    client.send(Command::graph_nodes, graph.of(kGraph));
    client.send(Command::graph_nodes, body.of(kBody));
    client.send(Command::graph_nodes, inner.of(kBody + 16));
    return client.ask(Command::instantiate_graph, bytes_of(wire::InstantiateGraph{kGraph, kExecutable, 0}));
  };
  const auto end = [&] {
    return client.ask(Command::destroy_graph, bytes_of(wire::DestroyGraph{kExecutable}));
  };
  REQUIRE(instantiate(1) == CUDA_SUCCESS);
  const uint64_t with_one = tenant.used();
  CHECK(with_one >= 3 * kNode);
  REQUIRE(end() == CUDA_SUCCESS);
  CHECK(tenant.used() == kNode);
  REQUIRE(instantiate(3) == CUDA_SUCCESS);
  CHECK(tenant.used() == with_one + 2 * kNode);
  REQUIRE(end() == CUDA_SUCCESS);
  CHECK(instantiate(8) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(tenant.used() == kNode);
}
