// Tests clients that lie about modules, attributes, resources and graph bodies: the driver never gets an
// object or memory that does not exist.
#include <cstdint>
#include <cstring>
#include <string>

#include "protocol/wire/commands.h"
#include "protocol/wire/graphs.h"
#include "protocol/wire/images.h"
#include "tests/server/worker/handlers/hostile_session.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::worker::test;

TEST_CASE("ends the session when a part takes its owner's handle index") {
  HostileSession client;
  client.load();
  SECTION("a level") {
    REQUIRE(client.create_levels(kMipmapped, 3) == CUDA_SUCCESS);
    client.send(Command::array_part,
                bytes_of(wire::ArrayPart{make_handle(Kind::array, 1, 303), kMipmapped, 1, 0}));
  }
  SECTION("a function") {
    client.send(Command::get_function,
                named(wire::GetFunction{make_handle(Kind::function, 1, 304), kModule}, "kernel"));
  }
  SECTION("a reference") {
    client.send(Command::get_reference,
                named(wire::GetReference{make_handle(Kind::texture_reference, 1, 304), kModule}, "texture"));
  }
  CHECK(client.ends());
  CHECK(client.end_reason.find("invalid new handle") != std::string::npos);
}

TEST_CASE("rejects stream attributes that contain foreign handles or addresses") {
  HostileSession client;
  CUstreamAttrValue value{};
  const auto set = [&](unsigned id) {
    return client.ask("cuStreamSetAttribute", bytes_of(stream_handle(0), id, kThere, value));
  };
  std::memset(&value, 0xee, sizeof value);
  for (const unsigned id : {0u, 2u, 4u, 7u, 12u, 13u, 31u, 32u, 33u, 1u << 31, ~0u})
    CHECK(set(id) == CUDA_ERROR_INVALID_VALUE);
  CHECK(set(1) == CUDA_ERROR_INVALID_VALUE);
  value = {};
  value.accessPolicyWindow.base_ptr = object<void*>(client.end() - kPage);
  value.accessPolicyWindow.num_bytes = kPage;
  CHECK(set(1) == CUDA_SUCCESS);
  value.accessPolicyWindow.num_bytes = kPage + 1;
  CHECK(set(1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(client.ask("cuStreamSetAttribute", bytes_of(stream_handle(0), 3u, uint8_t{0})) ==
        CUDA_ERROR_INVALID_VALUE);
}

#if CUDA_VERSION >= 12000
TEST_CASE("rejects tensor maps whose arrays do not match their rank") {
  HostileSession client;
  const auto encode = [&](uint32_t rank, auto... arrays) {
    return client.ask("cuTensorMapEncodeTiled",
                      bytes_of(kThere, 7u, rank, uint64_t{0xdead0000}, arrays..., 0u, 0u, 0u, 0u));
  };
  const uint64_t one = 1, two = 2, none = 0;
  CHECK(encode(2, kThere, two, one, one, kThere, one, one, kThere, two, 1u, 1u, kThere, two, 1u, 1u) ==
        CUDA_SUCCESS);
  CHECK(encode(3, kThere, two, one, one, kThere, one, one, kThere, two, 1u, 1u, kThere, two, 1u, 1u) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(encode(~0u, kThere, two, one, one, kThere, one, one, kThere, two, 1u, 1u, kThere, two, 1u, 1u) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(encode(0, kThere, none, kThere, none, kThere, none, kThere, none) == CUDA_ERROR_INVALID_VALUE);
  const uint8_t no = 0;
  CHECK(encode(5, no, none, no, none, no, none, no, none) == CUDA_ERROR_INVALID_VALUE);
  CHECK(encode(2, kThere, two, one, one, no, none, kThere, two, 1u, 1u, kThere, two, 1u, 1u) ==
        CUDA_ERROR_INVALID_VALUE);
}
#endif

#if CUDA_VERSION >= 12040
TEST_CASE("accepts only device resources that the session has queried") {
  HostileSession client;
  const auto device = [&](int ordinal, uint32_t type) {
    return client.ask(Command::device_resource, bytes_of(wire::DeviceResource{0, ordinal, type}));
  };
  REQUIRE(device(0, 1) == CUDA_SUCCESS);
  for (const int ordinal : {-1, 1, 1 << 30}) CHECK(device(ordinal, 1) == CUDA_ERROR_INVALID_DEVICE);
  for (const uint32_t type : {0u, 2u, ~0u}) CHECK(device(0, type) == CUDA_ERROR_INVALID_RESOURCE_TYPE);
  const uint64_t description = make_handle(Kind::resource_description, 1, 500);
  for (const uint64_t number : {uint64_t{0}, uint64_t{2}, uint64_t{1} << 40, ~uint64_t{0}}) {
    CHECK(client.ask(Command::split_resource, bytes_of(wire::SplitResource{number, 2, 0, 1, 0})) ==
          CUDA_ERROR_INVALID_VALUE);
    CHECK(client.ask(Command::describe_resources, bytes_of(wire::DescribeResources{description, 1, 0},
                                                           number)) == CUDA_ERROR_INVALID_VALUE);
  }
  CHECK(client.ask(Command::split_resource, bytes_of(wire::SplitResource{1, 2, 0, ~0u, 0})) == CUDA_SUCCESS);
  CHECK(client.ask(Command::create_context,
                   bytes_of(wire::CreateContext{make_handle(Kind::context, 1, 9), 0, wire::kGreenContext},
                            description)) != CUDA_SUCCESS);
  CHECK(client.ask(Command::create_context,
                   bytes_of(wire::CreateContext{make_handle(Kind::context, 1, 9), 0, wire::kGreenContext},
                            stream_handle(0))) != CUDA_SUCCESS);
  wire::Buffer body;
  SECTION("too many parts") {
    body = bytes_of(wire::SplitResource{1, wire::kMaxResourceGroups + 1, 0, 1, 0});
  }
  if (!body.empty()) client.send(Command::split_resource, body);
  SECTION("none to describe") {
    client.send(Command::describe_resources, bytes_of(wire::DescribeResources{description, 0, 0}));
  }
  SECTION("more than come") {
    client.send(Command::describe_resources,
                bytes_of(wire::DescribeResources{description, 3, 0}, uint64_t{1}));
  }
  SECTION("countless") {
    client.send(Command::describe_resources,
                bytes_of(wire::DescribeResources{description, ~0u, 0}, uint64_t{1}));
  }
  SECTION("a handle of another kind") {
    client.send(Command::describe_resources, bytes_of(wire::DescribeResources{kArray, 1, 0}, uint64_t{1}));
  }
  CHECK(client.ends());
}
#endif

#if CUDA_VERSION >= 12030
TEST_CASE("accepts bodies of conditional nodes only within their graph") {
  constexpr uint64_t kGraph = make_handle(Kind::graph, 1, 400),
                     kExecutable = make_handle(Kind::graph_exec, 1, 401);
  constexpr uint64_t kBody = make_handle(Kind::graph, 1, 402), kOther = make_handle(Kind::graph, 1, 403);
  HostileSession client;
  using wire::GraphNodeKind;
  const auto condition = [&](uint64_t handle) {
    client.send(Command::graph_nodes, bytes_of(wire::GraphNodes{kGraph, 1, 0},
                                               wire::GraphNode{GraphNodeKind::condition, 0,
                                                               sizeof(wire::GraphCondition), 0, kContext},
                                               wire::GraphCondition{handle, 0, 0}));
  };
  const auto conditional = [&](uint64_t graph, uint64_t handle, uint32_t type, uint32_t count,
                               auto... bodies) {
    client.send(Command::graph_nodes,
                bytes_of(wire::GraphNodes{graph, 1, 0},
                         wire::GraphNode{
                             GraphNodeKind::conditional, 0,
                             static_cast<uint32_t>(sizeof(wire::GraphConditional) + 8 * sizeof...(bodies)), 0,
                             kContext},
                         wire::GraphConditional{handle, type, count}, bodies...));
  };
  const auto empty = [&](uint64_t graph, GraphNodeKind kind = GraphNodeKind::empty) {
    if (kind == GraphNodeKind::host) {
      client.send(Command::graph_nodes,
                  bytes_of(wire::GraphNodes{graph, 1, 0}, wire::GraphNode{kind, 0, 8, 0, kContext},
                           wire::GraphHost{5}));
    } else {
      client.send(Command::graph_nodes,
                  bytes_of(wire::GraphNodes{graph, 1, 0}, wire::GraphNode{kind, 0, 0, 0, 0}));
    }
  };
  const auto instantiate = [&](uint64_t graph) {
    return client.ask(Command::instantiate_graph, bytes_of(wire::InstantiateGraph{graph, kExecutable, 0}));
  };
  const auto launch = [&] {
    return client.ask(Command::launch_graph, bytes_of(wire::LaunchGraph{kExecutable, stream_handle(0)}));
  };
  condition(77);
  bool ends = true;
  SECTION("as it should be; a body is nothing by itself") {
    conditional(kGraph, 77, 0, 1, kBody);
    empty(kBody);
    CHECK(instantiate(kBody) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(client.ask(Command::destroy_graph, bytes_of(wire::DestroyGraph{kBody})) ==
          CUDA_ERROR_INVALID_HANDLE);
    CHECK(client.ask(Command::update_graph, bytes_of(wire::UpdateGraph{kExecutable, kBody})) ==
          CUDA_ERROR_INVALID_HANDLE);
    CHECK(instantiate(kGraph) == CUDA_SUCCESS);
    CHECK(launch() == CUDA_SUCCESS);
    CHECK(client.ask(Command::destroy_graph, bytes_of(wire::DestroyGraph{kBody})) ==
          CUDA_ERROR_INVALID_HANDLE);
    empty(kBody);  // now an independent graph
    CHECK(client.ask(Command::destroy_graph, bytes_of(wire::DestroyGraph{kExecutable})) == CUDA_SUCCESS);
    CHECK(client.ask(Command::destroy_graph, bytes_of(wire::DestroyGraph{kExecutable})) ==
          CUDA_ERROR_INVALID_HANDLE);
    CHECK(launch() == CUDA_ERROR_INVALID_HANDLE);
    ends = false;
  }
  SECTION("no such condition") {
    conditional(kGraph, 78, 0, 1, kBody);
    empty(kBody);
    CHECK(instantiate(kGraph) == CUDA_ERROR_INVALID_VALUE);
    ends = false;
  }
  SECTION("a condition twice") {
    condition(77);
    CHECK(instantiate(kGraph) == CUDA_ERROR_INVALID_HANDLE);
    ends = false;
  }
  SECTION("a body that is a graph already") {
    empty(kOther);
    conditional(kGraph, 77, 0, 1, kOther);
  }
  SECTION("its own graph as its body") {
    conditional(kGraph, 77, 0, 1, kGraph);
  }
  SECTION("the same body twice") {
    conditional(kGraph, 77, 2, 2, kBody, kBody);
  }
  SECTION("the body of another node") {
    conditional(kGraph, 77, 0, 1, kBody);
    conditional(kGraph, 77, 0, 1, kBody);
  }
  SECTION("no bodies") {
    conditional(kGraph, 77, 0, 0);
  }
  SECTION("fewer bodies than it says") {
    conditional(kGraph, 77, 2, 3, kBody);
  }
  SECTION("countless bodies") {
    conditional(kGraph, 77, 2, ~0u, kBody);
  }
  SECTION("an unknown type") {
    conditional(kGraph, 77, 3, 1, kBody);
  }
  SECTION("a node of the program's in a body") {
    conditional(kGraph, 77, 0, 1, kBody);
    empty(kBody, GraphNodeKind::host);
  }
  if (ends) CHECK(client.ends());
}
#endif
