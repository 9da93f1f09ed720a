// Tests graphs with nodes that need the client: the parts are launched one after the other, and no node runs
// before the client node on which it depends.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "protocol/wire/commands.h"
#include "protocol/wire/graphs.h"
#include "tests/server/worker/graph_fixture.h"
#include "tests/server/worker/graphs/graph_parts.h"
#include "tests/server/worker/test_client.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::worker::test;

TEST_CASE_METHOD(Parts, "the parts of a graph are launched one after the other") {
  instantiate_nodes(sandwich(*this)
                        .add(NodeKind::empty, {}, {2}, 0)
                        .add(NodeKind::host, host(8), {3})
                        .add(NodeKind::fill, fill(2, 1, 3), {0, 4}));
  launch_in();
  client.call("cuMemsetD8Async", bytes_of(client.address(3), uint8_t{4}, uint64_t{1}, kFirst));
  is_told(7);
  CHECK(launches() == std::vector<size_t>{1});
  CHECK(beside(0) == std::byte{1});
  CHECK(beside(1) != std::byte{2});
  CHECK(client.ask("cuStreamQuery", bytes_of(kFirst)) == CUDA_ERROR_NOT_READY);
  answer(7);
  is_told(8);
  CHECK(launches() == std::vector<size_t>{1, 2});
  CHECK(beside(1) == std::byte{2});
  CHECK(beside(3) != std::byte{4});
  answer(8);
  CHECK(synchronize() == CUDA_SUCCESS);
  CHECK(launches() == std::vector<size_t>{1, 2, 1});
  CHECK(at(2) == std::byte{3});
  CHECK(at(3) == std::byte{4});
}

TEST_CASE_METHOD(Parts,
                 "announces both client nodes of a diamond together and launches the next part after both") {
  Nodes nodes;
  nodes.add(NodeKind::fill, fill(0, 1, 1))
      .add(NodeKind::host, host(7), {0})
      .add(NodeKind::host, host(8), {0});
  nodes.add(NodeKind::fill, fill(1, 1, 2), {1})
      .add(NodeKind::fill, fill(2, 1, 3), {2})
      .add(NodeKind::fill, fill(3, 1, 4), {0, 3, 4});
  instantiate_nodes(nodes.add(NodeKind::host, host(9), {5}));
  launch_in();
  is_told(7);
  is_told(8);
  answer(8);
  CHECK(client.silent());
  CHECK(launches() == std::vector<size_t>{1});
  answer(7);
  is_told(9);
  CHECK(launches() == std::vector<size_t>{1, 3});
  CHECK(beside(3) == std::byte{4});
  answer(9);
  CHECK(synchronize() == CUDA_SUCCESS);
}

TEST_CASE_METHOD(Parts, "a client node does not wait for independent work of its part") {
  instantiate_nodes(Nodes()
                        .add(NodeKind::fill, fill(0, 1, 1))
                        .add(NodeKind::host, host(7))
                        .add(NodeKind::host, host(8), {0}));
  client.fake.hold(0);
  launch_in();
  CHECK(synchronize(kSecond) == CUDA_SUCCESS);
  CHECK(client.silent());
  client.fake.step(0, 2);  // the events before the fill
  is_told(7);
  CHECK(beside(0) != std::byte{1});
  CHECK(client.silent());
  client.fake.let_go(0);
  is_told(8);
  answer(8);
  answer(7);
  CHECK(synchronize() == CUDA_SUCCESS);
}

TEST_CASE_METHOD(Parts, "the next part runs after the copies of a client node") {
  instantiate_nodes(sandwich(*this));
  launch_in();
  is_told(7);
  client.fake.hold(1);
  client.call("cuMemsetD8Async", bytes_of(client.address(1), uint8_t{9}, uint64_t{1}, kSecond));
  answer(7, kSecond);
  const uint64_t wait = client.send(Command::synchronize_stream, bytes_of(kFirst), true);
  CHECK(client.silent());
  CHECK(launches() == std::vector<size_t>{1, 1});
  client.fake.let_go(1);
  CHECK(client.result(wait) == CUDA_SUCCESS);
  CHECK(at(1) == std::byte{2});
}

TEST_CASE_METHOD(Parts, "serializes launches of one executable across streams") {
  instantiate_nodes(sandwich(*this));
  launch_in(kFirst);
  launch_in(kSecond);
  client.create_stream(2);
  is_told(7);
  CHECK(client.silent());
  CHECK(launches() == std::vector<size_t>{1});
  CHECK(client.ask("cuStreamQuery", bytes_of(kSecond)) == CUDA_ERROR_NOT_READY);
  CHECK(synchronize(stream_handle(2)) == CUDA_SUCCESS);
  answer(7);
  is_told(7);
  CHECK(synchronize(kFirst) == CUDA_SUCCESS);
  CHECK(launches() == std::vector<size_t>{1, 1, 1});
  answer(7);
  CHECK(synchronize(kSecond) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(Parts, "destroys an executable after its running launch") {
  instantiate_nodes(sandwich(*this));
  launch_in();
  is_told(7);
  client.send(Command::destroy_graph, bytes_of(wire::DestroyGraph{kExecutable}));
  CHECK(synchronize(kSecond) == CUDA_SUCCESS);
  CHECK(client.fake.locked([&] { return client.fake.executables.size(); }) == 2);
  answer(7);
  CHECK(synchronize() == CUDA_SUCCESS);
  CHECK(at(1) == std::byte{2});
  CHECK(client.fake.locked([&] { return client.fake.executables.size(); }) == 0);
}

TEST_CASE_METHOD(Parts, "destroys a stream after the launch that runs in it") {
  instantiate_nodes(sandwich(*this));
  launch_in();
  is_told(7);
  client.call("cuStreamDestroy_v2", bytes_of(kFirst));
  CHECK(synchronize(kSecond) == CUDA_SUCCESS);
  CHECK(launches() == std::vector<size_t>{1});
  answer(7);
  CHECK(client.ask(Command::synchronize_context, {}) == CUDA_SUCCESS);
  CHECK(beside(1) == std::byte{2});
}

TEST_CASE_METHOD(Parts, "a context that is destroyed in a launch does not wait for the client") {
  instantiate_nodes(sandwich(*this));
  const uint64_t first = launch_in();
  launch_in();
  const uint64_t third = launch_in();
  is_told(7);
  const uint64_t reset =
      client.send(Command::reset_primary_context, bytes_of(wire::PrimaryContext{kContext, 0, 0}), true);
  std::vector<uint64_t> not_called;
  Message message = client.receive();
  for (; message.header.kind == wire::MessageKind::host_callback; message = client.receive()) {
    if (message.header.result != CUDA_SUCCESS) not_called.push_back(message.header.sequence);
  }
  CHECK(message.header.sequence == reset);
  REQUIRE(not_called.size() >= 2);
  CHECK(not_called.front() == first);
  CHECK(not_called.back() == third);
  answer(7);
}

TEST_CASE_METHOD(Parts, "a failed part ends its launch and the next launch is complete") {
  instantiate_nodes(sandwich(*this).add(NodeKind::host, host(8), {2}));
  const uint64_t failing = launch_in();
  is_told(7);
  client.fake.locked([&] { return client.fake.next_graph_launch = CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES; });
  answer(7);
  is_told_not_called(failing, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  CHECK(synchronize() == CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  CHECK(at(1) != std::byte{2});
  launch_in();
  is_told(7);
  answer(7);
  is_told(8);
  answer(8);
  CHECK(synchronize() == CUDA_SUCCESS);
  CHECK(at(1) == std::byte{2});
}

TEST_CASE_METHOD(Parts, "the client is told that functions of a refused launch are not called") {
  instantiate_nodes(sandwich(*this));
  client.fake.locked([&] { return client.fake.next_graph_launch = CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES; });
  is_told_not_called(launch_in(), CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  CHECK(synchronize() == CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  is_told_not_called(launch_in(stream_handle(9)), CUDA_ERROR_INVALID_HANDLE);
  is_told_not_called(launch_in(kFirst, kOther), CUDA_ERROR_INVALID_HANDLE);
  is_told_not_called(client.send(Command::host_function, bytes_of(wire::HostFunction{stream_handle(9), 8})),
                     CUDA_ERROR_INVALID_HANDLE);
  CHECK(synchronize() == CUDA_ERROR_INVALID_HANDLE);
  launch_in();
  is_told(7);
  answer(7);
  CHECK(synchronize() == CUDA_SUCCESS);
}

TEST_CASE("the client is told that a node behind work that has failed is not called") {
  TestClient client;
  client.retain();
  client.create_stream(0);
  client.map(0, kPage);
  Nodes nodes;
  nodes.add(NodeKind::fill, bytes_of(wire::GraphFill{client.address(0), 1, 1, 1, 1, 1}))
      .add(NodeKind::host, host(7), {0});
  client.send(Command::graph_nodes, nodes.of(kGraph));
  CHECK(client.ask(Command::instantiate_graph, bytes_of(wire::InstantiateGraph{kGraph, kExecutable, 0})) ==
        CUDA_SUCCESS);
  client.fake.hold(0);
  const uint64_t launch =
      client.send(Command::launch_graph, bytes_of(wire::LaunchGraph{kExecutable, kFirst}));
  client.fake.await_blocked(1);
  client.fake.locked([&] { return client.fake.sticky = CUDA_ERROR_LAUNCH_FAILED; });
  client.fake.let_go(0);
  const Message told = client.receive();
  CHECK(told.header.kind == wire::MessageKind::host_callback);
  CHECK(told.header.result != CUDA_SUCCESS);
  CHECK(told.header.sequence == launch);
  // The stream and the executable are not blocked.
  CHECK(client.ask(Command::synchronize_stream, bytes_of(kFirst)) == CUDA_ERROR_LAUNCH_FAILED);
  CHECK(client.ask(Command::destroy_graph, bytes_of(wire::DestroyGraph{kExecutable})) == CUDA_SUCCESS);
  CHECK(client.silent());
}

TEST_CASE_METHOD(Parts, "an event wait ends with the graph part that records the event") {
  for (const uint32_t one : {0u, 1u}) client.call("cuEventCreate", bytes_of(event_handle(one), uint32_t{2}));
  Nodes nodes;
  nodes.add(NodeKind::event_record, event(0))
      .add(NodeKind::host, host(7), {0})
      .add(NodeKind::fill, fill(0, 1, 1), {1});
  instantiate_nodes(nodes.add(NodeKind::event_record, event(1), {2})
                        .add(NodeKind::host, host(8), {3})
                        .add(NodeKind::empty, {}, {4}, 0));
  launch_in();
  is_told(7);
  client.create_stream(2);
  for (const uint32_t one : {0u, 1u}) {
    client.call("cuStreamWaitEvent", bytes_of(stream_handle(1 + one), event_handle(one), uint32_t{0}));
    client.call("cuMemsetD8Async",
                bytes_of(client.address(one + 1), uint8_t{2}, uint64_t{1}, stream_handle(1 + one)));
  }
  CHECK(client.ask("cuEventQuery", bytes_of(event_handle(0))) == CUDA_SUCCESS);
  CHECK(client.ask("cuEventQuery", bytes_of(event_handle(1))) == CUDA_ERROR_NOT_READY);
  CHECK(beside(1) == std::byte{2});
  CHECK(beside(2) != std::byte{2});
  answer(7);
  is_told(8);
  CHECK(synchronize(stream_handle(2)) == CUDA_SUCCESS);
  CHECK(beside(2) == std::byte{2});
  CHECK(client.ask("cuEventQuery", bytes_of(event_handle(1))) == CUDA_SUCCESS);
  answer(8);
  CHECK(synchronize() == CUDA_SUCCESS);
}

TEST_CASE_METHOD(Parts, "does not record an event again before a later part has waited for it") {
  client.call("cuEventCreate", bytes_of(event_handle(0), uint32_t{2}));
  Nodes nodes;
  instantiate_nodes(nodes.add(NodeKind::host, host(7))
                        .add(NodeKind::event_wait, event(0), {0})
                        .add(NodeKind::fill, fill(0, 1, 1), {1}));
  launch_in();
  is_told(7);
  client.record(0, stream_handle(1));
  const uint64_t recorded = client.send(Command::await_record, bytes_of(event_handle(0)), true);
  CHECK(client.silent());
  answer(7);
  CHECK(client.result(recorded) == CUDA_SUCCESS);
  CHECK(synchronize() == CUDA_SUCCESS);
}

TEST_CASE_METHOD(
    Parts,
    "a launch waits for kept records of its events and for earlier waiters of the events that it records") {
  for (const uint32_t one : {0u, 1u}) client.call("cuEventCreate", bytes_of(event_handle(one), uint32_t{2}));
  instantiate_nodes(Nodes()
                        .add(NodeKind::event_wait, event(0))
                        .add(NodeKind::fill, fill(0, 1, 1), {0})
                        .add(NodeKind::event_record, event(1), {1}));
  client.send(Command::hold_stream, bytes_of(wire::HoldStream{kSecond, 77}));
  client.record(0, kSecond);
  launch_in();
  client.create_stream(2);
  CHECK(synchronize(stream_handle(2)) == CUDA_SUCCESS);
  CHECK(launches().empty());
  client.send(Command::resume_stream, bytes_of(wire::ResumeStream{77}));
  CHECK(synchronize() == CUDA_SUCCESS);
  CHECK(launches() == std::vector<size_t>{3});
}

TEST_CASE_METHOD(Parts, "rejects client nodes between the setter of a condition and its conditional node") {
  constexpr uint64_t kCondition = make_handle(Kind::graph_condition, 1, 510),
                     kBody = make_handle(Kind::graph, 1, 511);
  const auto conditional = [&](uint64_t body) {
    return bytes_of(wire::GraphConditional{kCondition, 1, 1}, body);
  };
  Nodes nodes;
  nodes.add(NodeKind::condition, bytes_of(wire::GraphCondition{kCondition, 1, 1}))
      .add(NodeKind::host, host(7))
      .add(NodeKind::conditional, conditional(kBody), {1});
  SECTION("alone behind one it works") {
    describe(kGraph, nodes);
    describe(kBody, Nodes().add(NodeKind::fill, fill(0, 1, 1)));
    REQUIRE(instantiate() == CUDA_SUCCESS);
    launch_in();
    is_told(7);
    CHECK(launches().empty());
    answer(7);
    CHECK(synchronize() == CUDA_SUCCESS);
    CHECK(launches() == std::vector<size_t>{1});
  }
  SECTION("on both sides it is refused") {
    nodes.add(NodeKind::host, host(8), {2}).add(NodeKind::conditional, conditional(kBody + 16), {3});
    describe(kGraph, nodes);
    wire::GraphResult result{};
    CHECK(instantiate(kGraph, &result) == CUDA_ERROR_NOT_SUPPORTED);
    CHECK(result.node == 4);
  }
}

TEST_CASE_METHOD(Parts, "ignores unexpected answers") {
  instantiate_nodes(sandwich(*this));
  answer(7);
  client.fake.hold(0);
  launch_in();
  answer(7);  // before the node is announced
  answer(7);
  client.fake.let_go(0);
  CHECK(client.receive().header.kind == wire::MessageKind::host_callback);
  CHECK(synchronize() == CUDA_SUCCESS);
  CHECK(at(1) == std::byte{2});
  // A host function of a stream with the same number as a node.
  client.send(Command::host_function, bytes_of(wire::HostFunction{kSecond, 7}));
  is_told(7);
  CHECK(launch() == CUDA_ERROR_INVALID_VALUE);
  answer(7);
  CHECK(synchronize(kSecond) == CUDA_SUCCESS);
  CHECK(synchronize() == CUDA_SUCCESS);
}
