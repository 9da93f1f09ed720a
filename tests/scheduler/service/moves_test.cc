// Tests of moves of leases with a real pool-scheduler, simulated poolds and lease clients.
#include <fstream>

#include "protocol/control/pool_admin.grpc.pb.h"
#include "protocol/lease/token.h"
#include "tests/scheduler/service/clients.h"
#include "tests/scheduler/service/scheduler_process.h"
#include "tests/support/catch.h"
#include "tests/support/http_get.h"
#include "tests/support/poold_process.h"

using namespace gpupool;
using namespace gpupool::testing;
using grpc::StatusCode;

namespace {

template <class Request, class Reply>
grpc::Status call(const SchedulerProcess& scheduler,
                  grpc::Status (pool::PoolAdmin::Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                  const Request& request, Reply& reply) {
  const auto stub = pool::PoolAdmin::NewStub(connect(scheduler.address()));
  grpc::ClientContext context;
  return (stub.get()->*method)(&context, request, &reply);
}

pool::LeaseState only_lease(const SchedulerProcess& scheduler) {
  pool::ListLeasesReply reply;
  REQUIRE(call(scheduler, &pool::PoolAdmin::Stub::ListLeases, pool::ListLeasesRequest(), reply).ok());
  REQUIRE(reply.leases_size() == 1);
  return reply.leases(0);
}

grpc::Status move(const SchedulerProcess& scheduler, const std::string& lease, const std::string& to,
                  pool::LeaseState& state) {
  pool::MoveRequest request;
  request.set_lease(lease);
  request.set_to(to);
  return call(scheduler, &pool::PoolAdmin::Stub::Move, request, state);
}

}  // namespace

TEST_CASE("an operator moves a lease, and a killed scheduler continues the move") {
  SchedulerProcess scheduler({"--metrics", "127.0.0.1:0"});
  Usage usage;
  SimulatedPoolds poolds(scheduler.address(), 2, 1, &usage);
  REQUIRE(poolds.await());
  poolds[0].allow_moves(false), poolds[1].allow_moves(false);
  const auto channel = connect(scheduler.address());
  const auto heard = [&](const pool::AcquireEvent& event) {
    if (event.has_granted()) usage.granted(event.granted());
  };
  LeaseClient holder(channel, request_call(1, 1000), "", heard);
  const auto granted = holder.granted();
  REQUIRE(granted);
  const std::string from = granted->servers(0).node(), to = from == "n0" ? "n1" : "n0";
  pool::LeaseState state;
  const std::string id = only_lease(scheduler).id();
  CHECK(move(scheduler, "ffffff", "", state).error_code() == StatusCode::NOT_FOUND);
  CHECK(move(scheduler, id, "nowhere", state).error_code() == StatusCode::NOT_FOUND);
  CHECK(move(scheduler, id, from, state).error_code() == StatusCode::INVALID_ARGUMENT);
  REQUIRE(move(scheduler, id.substr(0, 8), "", state).ok());
  REQUIRE(state.moves_size() == 1);
  CHECK(state.moves(0).state() == pool::LeaseMove::MOVING);
  CHECK(state.moves(0).to() == to);
  const auto moving = holder.granted(2);
  REQUIRE(moving);
  REQUIRE(moving->moves_size() == 1);
  CHECK(moving->moves(0).server() == 0);
  CHECK(moving->moves(0).to().address() == "tcp://" + to + ":9700");
  const std::vector<lease::PublicKey> keys{*lease::PublicKey::read(scheduler.public_key_file())};
  CHECK(lease::check_lease(moving->moves(0).to().token(), keys, to,
                           std::chrono::milliseconds(moving->expires_ms() - 60'000)));
  CHECK(eventually([&] { return only_lease(scheduler).moves(0).reason() == "it is stuck?[2J"; }));

  scheduler.kill();
  scheduler.start();
  REQUIRE(poolds.await());
  REQUIRE(channel->WaitForConnected(std::chrono::system_clock::now() + kPatience));
  LeaseClient again(channel, resume_call(*moving), "", heard);
  REQUIRE(again.granted());
  CHECK(again.granted()->moves_size() == 1);
  poolds[from == "n0" ? 0 : 1].allow_moves(true);
  const auto moved = again.granted(2);
  REQUIRE(moved);
  CHECK(moved->moves_size() == 0);
  CHECK(moved->servers(0).node() == to);
  CHECK(only_lease(scheduler).parts(0).node() == to);
  CHECK(usage.double_grants().empty());
  const std::string page = http_get(metrics_port(scheduler.log()), "/metrics");
  CHECK(page.find("gpupool_pool_moves_ended_total{result=\"moved\"} 1\n") != std::string::npos);
  std::ifstream audit(scheduler.audit_file());
  const std::string lines{std::istreambuf_iterator<char>(audit), {}};
  CHECK(lines.find("\"does\":\"move\"") != std::string::npos);
  for (const char* const event : {"lease_moving", "lease_moved"})
    CHECK(lines.find(std::string("\"event\":\"") + event) != std::string::npos);
}

TEST_CASE("a lease moves to make room for a request for two GPUs on one host") {
  SchedulerProcess scheduler({"--metrics", "127.0.0.1:0"});
  SimulatedPoolds poolds(scheduler.address(), 2, 2);
  REQUIRE(poolds.await());
  pool::Policy policy, now;
  policy.set_placement("spread");
  policy.set_heartbeat_ms(200);  // also shortens the time after the start in which nothing moves
  policy.set_defragment(true), policy.set_move_silence_ms(0);
  policy.set_move_bytes_per_second(1'000'000'000'000);
  REQUIRE(call(scheduler, &pool::PoolAdmin::Stub::SetPolicy, policy, now).ok());
  CHECK(now.defragment_at_once() == 4);
  const auto channel = connect(scheduler.address());
  LeaseClient first(channel, request_call(1, 1000)), second(channel, request_call(1, 1000));
  REQUIRE(first.granted());
  REQUIRE(second.granted());
  REQUIRE(first.granted()->servers(0).node() != second.granted()->servers(0).node());
  pool::AcquireCall wish = request_call(2, 1000);
  wish.mutable_request()->set_one_host(true);
  LeaseClient gang(channel, wish);
  const auto granted = gang.granted();
  REQUIRE(granted);
  CHECK(granted->servers_size() == 1);
  const std::string page = http_get(metrics_port(scheduler.log()), "/metrics");
  CHECK(page.find("gpupool_pool_defragmentations_ended_total{result=\"granted\"} 1\n") != std::string::npos);
  CHECK(page.find("gpupool_pool_defragmentation_moves_total 1\n") != std::string::npos);
  std::ifstream audit(scheduler.audit_file());
  const std::string lines{std::istreambuf_iterator<char>(audit), {}};
  for (const char* const event : {"defragmentation_begun", "lease_moved", "defragmentation_done"})
    CHECK(lines.find(std::string("\"event\":\"") + event) != std::string::npos);
}

TEST_CASE("a node that is drained with moves is empty as soon as the other node has room") {
  SchedulerProcess scheduler;
  SimulatedPoolds poolds(scheduler.address(), 2, 1);
  REQUIRE(poolds.await());
  const auto channel = connect(scheduler.address());
  LeaseClient first(channel, request_call(1, 1000)), second(channel, request_call(1, 1000));
  REQUIRE(first.granted());
  REQUIRE(second.granted());
  const std::string node = first.granted()->servers(0).node();
  pool::DrainRequest drain;
  drain.set_node(node);
  drain.set_move(true);
  pool::NodeState state;
  REQUIRE(call(scheduler, &pool::PoolAdmin::Stub::Drain, drain, state).ok());
  CHECK(state.moves_away());
  CHECK(state.leases() == 1);
  second.release();
  const auto moved = first.granted(3);  // the first one, with the move, after it
  REQUIRE(moved);
  CHECK(moved->servers(0).node() != node);
  const auto leases = [&] {
    pool::ListNodesReply nodes;
    REQUIRE(call(scheduler, &pool::PoolAdmin::Stub::ListNodes, pool::ListNodesRequest(), nodes).ok());
    uint32_t there = 9;
    for (const auto& one : nodes.nodes()) there = one.name() == node ? one.leases() : there;
    return there;
  };
  CHECK(leases() == 0);
}
