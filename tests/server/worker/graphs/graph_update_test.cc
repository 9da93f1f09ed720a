// Tests changes of nodes and updates of graphs that are launched in parts: each part changes with its nodes,
// and no launch mixes old and new nodes.
#include <cstddef>
#include <cstdint>
#include <set>

#include "protocol/wire/commands.h"
#include "protocol/wire/graphs.h"
#include "tests/server/worker/graph_fixture.h"
#include "tests/server/worker/graphs/graph_parts.h"
#include "tests/server/worker/test_client.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::worker::test;

TEST_CASE_METHOD(Parts, "nodes are changed in their parts") {
  instantiate_nodes(sandwich(*this));
  CHECK(client.ask(Command::set_graph_node, set_node(2, NodeKind::fill, fill(1, 1, 5))) == CUDA_SUCCESS);
  CHECK(client.ask(Command::set_graph_node, set_node(1, NodeKind::host, host(8))) == CUDA_SUCCESS);
  const auto run = [&](uint64_t callback) {
    launch_in();
    is_told(callback);
    answer(callback);
    CHECK(synchronize() == CUDA_SUCCESS);
  };
  run(8);
  CHECK(at(1) == std::byte{5});
  describe(kOther, Nodes()
                       .add(NodeKind::fill, fill(0, 1, 6))
                       .add(NodeKind::host, host(7), {0})
                       .add(NodeKind::fill, fill(1, 1, 7), {1}));
  CHECK(client.ask(Command::update_graph, bytes_of(wire::UpdateGraph{kExecutable, kOther})) == CUDA_SUCCESS);
  run(7);
  CHECK(at(0) == std::byte{6});
  CHECK(at(1) == std::byte{7});
  CHECK(client.ask(Command::enable_graph_node, bytes_of(wire::SetGraphNode{kExecutable, 2, 0})) ==
        CUDA_SUCCESS);
  client.call("cuMemsetD8Async", bytes_of(client.address(1), uint8_t{8}, uint64_t{1}, kFirst));
  run(7);
  CHECK(at(1) == std::byte{8});
  // The new graph has its client node elsewhere.
  describe(kOther, Nodes()
                       .add(NodeKind::host, host(9))
                       .add(NodeKind::fill, fill(0, 1, 6), {0})
                       .add(NodeKind::fill, fill(1, 1, 7), {1}));
  CHECK(client.ask(Command::update_graph, bytes_of(wire::UpdateGraph{kExecutable, kOther})) ==
        CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  run(7);
}

TEST_CASE_METHOD(Parts,
                 "an update that is refused for a later part leaves the parts before it as they were") {
  const auto three = [&](uint64_t callback, uint32_t value) {
    Nodes nodes;
    nodes.add(NodeKind::fill, fill(0, 1, value)).add(NodeKind::host, host(callback), {0});
    return nodes.add(NodeKind::fill, fill(1, 1, value), {1}).add(NodeKind::fill, fill(2, 1, value), {2});
  };
  const auto update = [&](uint64_t callback, uint32_t value) {
    describe(kOther, three(callback, value));
    return client.ask(Command::update_graph, bytes_of(wire::UpdateGraph{kExecutable, kOther}));
  };
  const auto run = [&](uint64_t callback, uint32_t value) {
    launch_in();
    is_told(callback);
    answer(callback);
    CHECK(synchronize() == CUDA_SUCCESS);
    for (const uint64_t offset : {0, 1, 2}) CHECK(at(offset) == std::byte(value));
  };
  const auto refuse = [&](const std::set<size_t>& sizes) {
    client.fake.locked([&] { return client.fake.refused_updates = sizes, 0; });
  };
  instantiate_nodes(three(7, 1));
  refuse({2});
  CHECK(update(8, 2) == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  run(7, 1);
  refuse({});
  CHECK(update(8, 3) == CUDA_SUCCESS);
  refuse({2});
  CHECK(update(9, 4) == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  run(8, 3);
  // Nodes that were set one by one cannot be restored; a launch must not mix old and new nodes.
  CHECK(client.ask(Command::set_graph_node, set_node(0, NodeKind::fill, fill(0, 1, 5))) == CUDA_SUCCESS);
  CHECK(update(9, 6) == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  is_told_not_called(launch_in(), CUDA_ERROR_ILLEGAL_STATE);
  CHECK(synchronize() == CUDA_ERROR_ILLEGAL_STATE);
  refuse({});
  CHECK(update(9, 7) == CUDA_SUCCESS);
  run(9, 7);
}

TEST_CASE_METHOD(Parts, "replies to a node change during a launch and applies it to the next launch") {
  instantiate_nodes(sandwich(*this));
  launch_in();
  is_told(7);
  CHECK(client.ask(Command::set_graph_node, set_node(2, NodeKind::fill, fill(1, 1, 5))) ==
        CUDA_SUCCESS);  // CUDA too answers at once
  answer(7);
  CHECK(synchronize() == CUDA_SUCCESS);
  CHECK(at(1) == std::byte{2});
}

TEST_CASE_METHOD(Parts, "replies to an update during a launch and applies it to the next launch") {
  const auto update = [&](uint64_t callback) {
    describe(kOther, Nodes()
                         .add(NodeKind::fill, fill(0, 1, 6))
                         .add(NodeKind::host, host(callback), {0})
                         .add(NodeKind::fill, fill(1, 1, 7), {1}));
    return client.reply(
        client.send(Command::update_graph, bytes_of(wire::UpdateGraph{kExecutable, kOther}), true));
  };
  instantiate_nodes(sandwich(*this));
  launch_in();
  is_told(7);
  const Message accepted = update(8);
  CHECK(accepted.header.result == CUDA_SUCCESS);
  CHECK(accepted.as<wire::GraphResult>().result == CU_GRAPH_EXEC_UPDATE_SUCCESS);
  launch_in();
  answer(7);
  is_told(8);
  CHECK(beside(0) == std::byte{6});
  CHECK(beside(1) == std::byte{2});
  // The update is accepted and then fails: the client would not know the node that a further launch
  // announces.
  client.fake.locked([&] { return client.fake.refused_updates = {1}, 0; });
  CHECK(update(9).header.result == CUDA_SUCCESS);
  answer(8);
  CHECK(synchronize() == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  CHECK(at(1) == std::byte{7});
  is_told_not_called(launch_in(), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  CHECK(synchronize() == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
}
