// Tests that waits are answered when the device completes, in any order, while the session continues.
#include <signal.h>
#include <sys/time.h>

#include "protocol/wire/commands.h"
#include "protocol/wire/graphs.h"
#include "tests/server/worker/test_client.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::worker::test;
using wire::Command;

TEST_CASE("a pending wait delays no other command") {
  TestClient client;
  client.retain();
  client.create_stream(0);
  client.create_stream(1);
  client.fake.hold(0);
  client.call("cuEventCreate", bytes_of(event_handle(0), uint32_t{2}));
  client.record(0, stream_handle(0));
  const uint64_t slow = client.send(Command::synchronize_stream, bytes_of(stream_handle(0)), true);
  const uint64_t event = client.send(Command::synchronize_event, bytes_of(event_handle(0)), true);
  client.fake.await_blocked(2);
  CHECK(client.ask(Command::synchronize_stream, bytes_of(stream_handle(1))) == CUDA_SUCCESS);
  CHECK(client.ask("cuEventQuery", bytes_of(event_handle(0))) == CUDA_ERROR_NOT_READY);
  CHECK(client.silent());
  client.fake.let_go(0);
  const Message one = client.receive();
  const Message two = client.receive();
  CHECK(one.header.result == CUDA_SUCCESS);
  CHECK(two.header.result == CUDA_SUCCESS);
  CHECK(one.header.sequence + two.header.sequence == slow + event);
}

TEST_CASE("a wait does not cover work that other threads queue later") {
  TestClient client;
  client.retain();
  client.create_stream(0);
  client.call("cuEventCreate", bytes_of(event_handle(0), uint32_t{2}));
  client.map(0, FakeDriver::kGranularity);
  client.fake.hold(0);
  client.record(0, stream_handle(0));
  const uint64_t wait = client.send(Command::synchronize_stream, bytes_of(stream_handle(0)), true);
  client.fake.await_blocked(1);
  // Blocked by a host function that only the client can end.
  client.send(Command::host_function, bytes_of(wire::HostFunction{stream_handle(0), 9}));
  CHECK(client.silent());
  client.fake.let_go(0);
  Message first = client.receive();
  Message second = client.receive();
  if (first.header.kind == wire::MessageKind::host_callback) std::swap(first, second);
  CHECK(first.header.sequence == wait);
  CHECK(first.header.result == CUDA_SUCCESS);
  CHECK(second.header.kind == wire::MessageKind::host_callback);
  client.send(Command::host_function_done, bytes_of(wire::HostFunctionDone{9, 0}));
  CHECK(client.ask(Command::synchronize_context, {}) == CUDA_SUCCESS);
}

TEST_CASE("a context's wait covers all of its streams") {
  TestClient client;
  client.retain();
  client.create_stream(0);
  client.create_stream(1);
  client.map(0, FakeDriver::kGranularity);
  client.fake.hold(1);
  client.call("cuMemsetD8Async", bytes_of(client.address(0), uint8_t{1}, uint64_t{16}, stream_handle(0)));
  client.call("cuMemsetD8Async", bytes_of(client.address(0), uint8_t{1}, uint64_t{16}, stream_handle(1)));
  const uint64_t wait = client.send(Command::synchronize_context, {}, true);
  CHECK(client.silent());
  client.fake.let_go(1);
  CHECK(client.result(wait) == CUDA_SUCCESS);
}

TEST_CASE("an event may be destroyed while another thread waits for it") {
  TestClient client;
  client.retain();
  client.create_stream(0);
  client.fake.hold(0);
  client.call("cuEventCreate", bytes_of(event_handle(0), uint32_t{2}));
  client.record(0, stream_handle(0));
  const uint64_t wait = client.send(Command::synchronize_event, bytes_of(event_handle(0)), true);
  client.fake.await_blocked(1);
  CHECK(client.ask("cuEventDestroy_v2", bytes_of(event_handle(0))) == CUDA_SUCCESS);
  CHECK(client.ask("cuEventQuery", bytes_of(event_handle(0))) == CUDA_ERROR_INVALID_HANDLE);
  client.fake.let_go(0);
  CHECK(client.result(wait) == CUDA_SUCCESS);
  client.finish();
  CHECK(client.fake.events.empty());
}

TEST_CASE("reports a device error with every wait that observes it") {
  TestClient client;
  client.retain();
  client.create_stream(0);
  client.fake.hold(0);
  client.call("cuEventCreate", bytes_of(event_handle(0), uint32_t{2}));
  client.record(0, stream_handle(0));
  const uint64_t wait = client.send(Command::synchronize_stream, bytes_of(stream_handle(0)), true);
  client.fake.await_blocked(1);
  {
    const std::lock_guard lock(client.fake.mutex);
    client.fake.sticky = CUDA_ERROR_ILLEGAL_ADDRESS;
    client.fake.changed.notify_all();
  }
  CHECK(client.result(wait) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(client.ask(Command::synchronize_stream, bytes_of(stream_handle(0))) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(client.ask(Command::synchronize_context, {}) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(client.ask(Command::synchronize_event, bytes_of(event_handle(0))) == CUDA_ERROR_ILLEGAL_ADDRESS);
  client.fake.let_go(0);
}

TEST_CASE("reports a device error that occurs while a wait begins") {
  TestClient client;
  client.retain();
  client.create_stream(0);
  client.fake.hold(0);
  client.call("cuEventCreate", bytes_of(event_handle(0), uint32_t{2}));
  client.record(0, stream_handle(0));
  CHECK(client.ask("cuStreamQuery", bytes_of(stream_handle(0))) == CUDA_ERROR_NOT_READY);
  {
    const std::lock_guard lock(client.fake.mutex);
    client.fake.strikes_at_next_event = CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  CHECK(client.ask(Command::synchronize_stream, bytes_of(stream_handle(0))) == CUDA_ERROR_ILLEGAL_ADDRESS);
  client.fake.let_go(0);
}

TEST_CASE("many threads of a client wait at once") {
  TestClient client;
  client.retain();
  for (uint32_t i = 0; i < 40; ++i) {
    client.create_stream(i);
    client.call("cuEventCreate", bytes_of(event_handle(i), uint32_t{2}));
  }
  CHECK(client.ask(Command::synchronize_context, {}) == CUDA_SUCCESS);
  std::vector<uint64_t> waits;
  for (uint32_t i = 0; i < 40; ++i) {
    client.fake.hold(static_cast<int>(i));
    client.record(i, stream_handle(i));
    waits.push_back(client.send(Command::synchronize_stream, bytes_of(stream_handle(i)), true));
  }
  client.fake.await_blocked(40);
  for (int i = 39; i >= 0; --i) {
    client.fake.let_go(i);
    CHECK(client.receive().header.sequence == waits[static_cast<size_t>(i)]);
  }
}

namespace {

void fill(TestClient& client, uint64_t stream) {
  client.call("cuMemsetD8Async", bytes_of(client.address(0), uint8_t{1}, uint64_t{16}, stream));
}
// Frees memory, so that the worker queues an event behind the work of every stream that had some.
void free_something(TestClient& client) {
  client.map(FakeDriver::kGranularity, FakeDriver::kGranularity);
  client.send(Command::free_memory, bytes_of(wire::FreeMemory{client.address(FakeDriver::kGranularity),
                                                              FakeDriver::kGranularity, wire::kAllStreams}));
}
CUresult query(TestClient& client, uint64_t stream) {
  return client.ask("cuStreamQuery", bytes_of(stream));
}

// Creates stream 0 and holds it with the client's work in it.
void begin_work(TestClient& client, uint32_t flags = CU_STREAM_NON_BLOCKING) {
  client.retain();
  client.create_stream(0, flags);
  client.map(0, FakeDriver::kGranularity);
  client.call("cuEventCreate", bytes_of(event_handle(0), uint32_t{2}));
  client.fake.hold(0);
  fill(client, stream_handle(0));
}

}  // namespace

TEST_CASE("a finished wait makes a stream idle despite internal work behind it") {
  TestClient client;
  begin_work(client);
  uint64_t wait = 0;
  int steps = 2;  // the work and the wait's event
  SECTION("a stream") {
    wait = client.send(Command::synchronize_stream, bytes_of(stream_handle(0)), true);
  }
  SECTION("a context") {
    wait = client.send(Command::synchronize_context, {}, true);
  }
  SECTION("an event") {
    client.record(0, stream_handle(0));
    wait = client.send(Command::synchronize_event, bytes_of(event_handle(0)), true);
  }
  client.fake.await_blocked(1);
  free_something(client);
  CHECK(query(client, stream_handle(0)) == CUDA_ERROR_NOT_READY);
  client.fake.step(0, steps);
  CHECK(client.result(wait) == CUDA_SUCCESS);
  CHECK(client.fake.locked([&] { return client.fake.streams[0]->work.size(); }) != 0);
  CHECK(query(client, stream_handle(0)) == CUDA_SUCCESS);
  CHECK(query(client, stream_handle(0)) == CUDA_SUCCESS);
  fill(client, stream_handle(0));
  CHECK(query(client, stream_handle(0)) == CUDA_ERROR_NOT_READY);
  client.fake.let_go(0);
  CHECK(client.ask(Command::synchronize_context, {}) == CUDA_SUCCESS);
}

TEST_CASE("an idle stream stays idle despite internal work behind it") {
  TestClient client;
  begin_work(client);
  client.fake.step(0, 1);
  CHECK(query(client, stream_handle(0)) == CUDA_SUCCESS);
  free_something(client);
  CHECK(query(client, stream_handle(0)) == CUDA_SUCCESS);
  client.record(0, stream_handle(0));
  CHECK(query(client, stream_handle(0)) == CUDA_ERROR_NOT_READY);
  client.fake.step(0, 2);
  CHECK(client.ask("cuEventQuery", bytes_of(event_handle(0))) == CUDA_SUCCESS);
  CHECK(query(client, stream_handle(0)) == CUDA_SUCCESS);
  client.fake.let_go(0);
}

TEST_CASE("a wait for the legacy stream covers the work of every blocking stream") {
  TestClient client;
  const uint32_t flags = GENERATE(0u, uint32_t{CU_STREAM_NON_BLOCKING});
  begin_work(client, flags);
  client.fake.hold(-1);
  fill(client, 0);
  uint64_t wait = 0;
  SECTION("the stream") {
    wait = client.send(Command::synchronize_stream, bytes_of(uint64_t{0}), true);
  }
  SECTION("an event") {
    client.record(0, 0);
    wait = client.send(Command::synchronize_event, bytes_of(event_handle(0)), true);
  }
  client.fake.await_blocked(1);
  free_something(client);
  CHECK(query(client, stream_handle(0)) == CUDA_ERROR_NOT_READY);
  client.fake.step(0, 1);
  client.fake.step(-1, 2);
  CHECK(client.result(wait) == CUDA_SUCCESS);
  CHECK(client.fake.locked([&] { return client.fake.streams[0]->work.size(); }) !=
        0);  // the event of the free
  CHECK(query(client, stream_handle(0)) == (flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY));
  CHECK(query(client, 0) == CUDA_SUCCESS);
  fill(client, stream_handle(0));
  CHECK(query(client, stream_handle(0)) == CUDA_ERROR_NOT_READY);
  CHECK(query(client, 0) == (flags == 0 ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS));
  client.fake.let_go(0);
  client.fake.let_go(-1);
}

TEST_CASE("an idle legacy stream implies idle blocking streams") {
  TestClient client;
  begin_work(client, 0);
  CUresult seen = CUDA_SUCCESS;
  client.fake.step(0, 1);
  SECTION("when it was waited for") {
    seen = client.ask(Command::synchronize_stream, bytes_of(uint64_t{0}));
  }
  SECTION("when it was asked") {
    seen = query(client, 0);
  }
  CHECK(seen == CUDA_SUCCESS);
  free_something(client);
  CHECK(query(client, stream_handle(0)) == CUDA_SUCCESS);
  client.fake.let_go(0);
}

TEST_CASE("the legacy stream is idle once the work that it waits for is done") {
  TestClient client;
  begin_work(client, 0);
  client.fake.hold(-1);
  fill(client, 0);
  const uint64_t wait = client.send(Command::synchronize_context, {}, true);
  client.fake.await_blocked(1);
  free_something(client);
  client.fake.step(0, 2);
  client.fake.step(-1, 2);
  CHECK(client.result(wait) == CUDA_SUCCESS);
  CHECK(query(client, 0) == CUDA_SUCCESS);
  fill(client, stream_handle(0));
  CHECK(query(client, 0) == CUDA_ERROR_NOT_READY);
  client.fake.let_go(-1);
  client.fake.let_go(0);
}

TEST_CASE("a re-recorded event implies nothing about the stream of its earlier record") {
  TestClient client;
  begin_work(client);
  client.create_stream(1);
  client.record(0, stream_handle(0));
  SECTION("and waited for then") {
    client.record(0, stream_handle(1));
    CHECK(client.ask(Command::synchronize_event, bytes_of(event_handle(0))) == CUDA_SUCCESS);
  }
  SECTION("during a wait for it") {
    const uint64_t wait = client.send(Command::synchronize_event, bytes_of(event_handle(0)), true);
    client.fake.await_blocked(1);
    client.record(0, stream_handle(1));
    CHECK(client.result(wait) == CUDA_SUCCESS);
  }
  SECTION("by a graph") {
    const uint64_t graph = cuda::make_handle(cuda::Kind::graph, 1, 400),
                   executable = cuda::make_handle(cuda::Kind::graph_exec, 1, 401);
    client.send(Command::graph_nodes, bytes_of(wire::GraphNodes{graph, 1, 0},
                                               wire::GraphNode{wire::GraphNodeKind::event_record, 0,
                                                               sizeof(wire::GraphEvent), 0, kContext},
                                               wire::GraphEvent{event_handle(0)}));
    CHECK(client.ask(Command::instantiate_graph, bytes_of(wire::InstantiateGraph{graph, executable, 0})) ==
          CUDA_SUCCESS);
    client.fake.step(0, 2);
    CHECK(client.ask(Command::synchronize_event, bytes_of(event_handle(0))) == CUDA_SUCCESS);
    fill(client, stream_handle(0));
  }
  CHECK(query(client, stream_handle(0)) == CUDA_ERROR_NOT_READY);
  client.fake.let_go(0);
}

// libFuzzer's alarm sends such signals.
TEST_CASE("a signal does not end a test client's wait for the session") {
  struct sigaction action {
  }, before{};
  action.sa_handler = [](int) {};
  REQUIRE(::sigaction(SIGALRM, &action, &before) == 0);
  TestClient client;
  const itimerval often{{0, 2000}, {0, 2000}}, never{};
  ::setitimer(ITIMER_REAL, &often, nullptr);
  CHECK(client.silent(50));
  ::setitimer(ITIMER_REAL, &never, nullptr);
  CHECK(client.finish() == 0);
  ::sigaction(SIGALRM, &before, nullptr);
}
