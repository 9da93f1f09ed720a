// A session with two streams, and launches of graphs with nodes that need the client, which answers as the
// test says. Used from the test's thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "protocol/wire/commands.h"
#include "protocol/wire/graphs.h"
#include "tests/server/worker/graph_fixture.h"
#include "tests/server/worker/test_client.h"
#include "tests/support/catch.h"

namespace gpupool::worker::test {

constexpr uint64_t kFirst = stream_handle(0), kSecond = stream_handle(1);

inline wire::Buffer host(uint64_t callback) {
  return bytes_of(wire::GraphHost{callback});
}
inline wire::Buffer event(uint32_t index) {
  return bytes_of(wire::GraphEvent{event_handle(index)});
}

struct Parts : GraphFixture {
  Parts() { client.create_stream(1); }
  void instantiate_nodes(const Nodes& nodes) {
    describe(kGraph, nodes);
    REQUIRE(instantiate() == CUDA_SUCCESS);
  }
  uint64_t launch_in(uint64_t stream = kFirst, uint64_t executable = kExecutable) {
    return client.send(Command::launch_graph, bytes_of(wire::LaunchGraph{executable, stream}));
  }
  void answer(uint64_t callback, uint64_t copies = 0) {
    client.send(Command::host_function_done, bytes_of(wire::HostFunctionDone{callback, copies}));
  }
  // Checks that the next message announces this node to the client.
  void is_told(uint64_t callback) {
    const Message told = client.receive();
    CHECK(told.header.kind == wire::MessageKind::host_callback);
    CHECK(told.as<uint64_t>() == callback);
  }
  // Checks that the next message says that no further function of this command will be called.
  void is_told_not_called(uint64_t command, CUresult why) {
    const Message told = client.receive();
    CHECK(told.header.kind == wire::MessageKind::host_callback);
    CHECK(told.header.sequence == command);
    CHECK(told.header.result == static_cast<int32_t>(why));
    CHECK(told.as<uint64_t>() == 0);
  }
  CUresult synchronize(uint64_t stream = kFirst) {
    return client.ask(Command::synchronize_stream, bytes_of(stream));
  }
  // Reads through the second stream, which is not blocked.
  std::byte beside(uint64_t offset) { return client.data(client.copy_out(kSecond, offset, 1)).at(0); }
  std::vector<size_t> launches() {
    return client.fake.locked([&] { return client.fake.graph_launches; });
  }
};

// A fill, a client node, a fill.
inline Nodes sandwich(const Parts& parts) {
  return Nodes()
      .add(NodeKind::fill, parts.fill(0, 1, 1))
      .add(NodeKind::host, host(7), {0})
      .add(NodeKind::fill, parts.fill(1, 1, 2), {1});
}

}  // namespace gpupool::worker::test
