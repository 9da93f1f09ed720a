// A session with one stream, and graphs encoded as a client sends them. For the tests of graphs, on the
// test's thread.
#pragma once
#include <cstring>

#include "protocol/wire/commands.h"
#include "protocol/wire/graphs.h"
#include "tests/server/worker/test_client.h"
#include "tests/support/catch.h"

namespace gpupool::worker::test {

using cuda::Kind;
using cuda::make_handle;
using wire::Command;
using NodeKind = wire::GraphNodeKind;

constexpr uint64_t kGraph = make_handle(Kind::graph, 1, 500), kOther = make_handle(Kind::graph, 1, 501);
constexpr uint64_t kExecutable = make_handle(Kind::graph_exec, 1, 502);
constexpr uint64_t kPage = FakeDriver::kGranularity;

// Encodes nodes as the client sends them.
struct Nodes {
  uint32_t count = 0;
  wire::Buffer bytes;
  Nodes& add(NodeKind kind, const wire::Buffer& body, const std::vector<uint32_t>& dependencies = {},
             uint64_t context = kContext, const std::vector<wire::GraphEdge>& edges = {}) {
    wire::Writer writer(bytes);
    writer.put(wire::GraphNode{kind, static_cast<uint32_t>(dependencies.size()),
                               static_cast<uint32_t>(body.size()), static_cast<uint32_t>(edges.size()),
                               context});
    writer.put_bytes(dependencies.data(), dependencies.size() * sizeof(uint32_t));
    writer.put_bytes(edges.data(), edges.size() * sizeof(wire::GraphEdge));
    writer.put_bytes(body.data(), body.size());
    ++count;
    return *this;
  }
  wire::Buffer of(uint64_t graph) const {
    auto body = bytes_of(wire::GraphNodes{graph, count, 0});
    body.insert(body.end(), bytes.begin(), bytes.end());
    return body;
  }
};

struct GraphFixture {
  GraphFixture() {
    client.retain();
    client.create_stream(0);
    client.map(0, kPage);
  }
  ~GraphFixture() {
    CHECK(client.finish() == (ends_well ? 0 : 1));
    CHECK(client.fake.graphs.empty());
    CHECK(client.fake.executables.empty());
    CHECK(client.fake.events.empty());
    CHECK(client.fake.physical.empty());
    CHECK(client.fake.host_nodes == 0);
    CHECK(client.fake.misused == 0);
  }
  wire::Buffer fill(uint64_t offset, uint64_t bytes, uint32_t value) const {
    return bytes_of(wire::GraphFill{client.address(offset), bytes, value, 1, bytes, 1});
  }
  void describe(uint64_t graph, const Nodes& nodes) { client.send(Command::graph_nodes, nodes.of(graph)); }
  CUresult instantiate(uint64_t graph = kGraph, wire::GraphResult* result = nullptr) {
    const Message reply = client.reply(client.send(
        Command::instantiate_graph, bytes_of(wire::InstantiateGraph{graph, kExecutable, 0}), true));
    if (result) *result = reply.as<wire::GraphResult>();
    return static_cast<CUresult>(reply.header.result);
  }
  CUresult launch() {
    return client.ask(Command::launch_graph, bytes_of(wire::LaunchGraph{kExecutable, stream_handle(0)}));
  }
  std::byte at(uint64_t offset) {
    const auto data = client.data(client.copy_out(stream_handle(0), offset, 1));
    return data.at(0);
  }
  TestClient client;
  bool ends_well = true;
};

inline wire::Buffer set_node(uint32_t number, NodeKind kind, const wire::Buffer& body) {
  auto made = bytes_of(wire::SetGraphNode{kExecutable, number, 0},
                       wire::GraphNode{kind, 0, static_cast<uint32_t>(body.size()), 0, kContext});
  made.insert(made.end(), body.begin(), body.end());
  return made;
}

}  // namespace gpupool::worker::test
