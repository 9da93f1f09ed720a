// Tests of a real pool-scheduler with simulated poolds and lease clients.
#include <fstream>

#include "common/sanitizers.h"
#include "protocol/lease/token.h"
#include "tests/scheduler/service/clients.h"
#include "tests/scheduler/service/scheduler_process.h"
#include "tests/support/catch.h"
#include "tests/support/contains.h"
#include "tests/support/poold_process.h"

using namespace gpupool;
using namespace gpupool::testing;
using namespace std::chrono_literals;

namespace {

lease::PublicKey public_key(const SchedulerProcess& scheduler) {
  return *lease::PublicKey::read(scheduler.public_key_file());
}

std::chrono::milliseconds time_of_day() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::system_clock::now().time_since_epoch());
}

}  // namespace

TEST_CASE("a lease is granted with valid node tokens and released") {
  SchedulerProcess scheduler;
  Usage usage;
  SimulatedPoolds poolds(scheduler.address(), 2, 2, &usage);
  REQUIRE(poolds.await());
  const auto channel = connect(scheduler.address());
  LeaseClient holder(channel, request_call(3, 1000));
  const auto granted = holder.granted();
  REQUIRE(granted);
  CHECK(granted->lease().size() == 16);
  CHECK(granted->secret().size() == 32);
  CHECK(granted->hold_ms() == 30'000);
  int gpus = 0;
  const std::vector<lease::PublicKey> keys{public_key(scheduler)};
  for (const auto& server : granted->servers()) {
    CHECK(server.address() == "tcp://" + server.node() + ":9700");
    const auto lease = lease::check_lease(server.token(), keys, server.node(), time_of_day());
    REQUIRE(lease);
    CHECK(lease->tenant() == "default");
    CHECK(lease->boot() == "pretended-boot-a");
    CHECK(lease->expires_ms() == granted->expires_ms());
    gpus += lease->shares_size();
  }
  CHECK(gpus == 3);
  LeaseClient waits(channel, request_call(2, 1000));
  const auto queued = waits.queued(1);
  REQUIRE(queued);
  CHECK(queued->waiting() == 1);
  CHECK(queued->why().starts_with("waits for 2 GPUs: 1 of 4 suitable GPUs is free"));
  holder.release();
  CHECK(holder.ended()->why() == pool::Ended::RELEASED);
  CHECK(holder.status().ok());
  CHECK(waits.granted());
  CHECK(usage.double_grants().empty());
}

TEST_CASE("a cancelled request leaves the queue and its ticket keeps the place") {
  SchedulerProcess scheduler;
  SimulatedPoolds poolds(scheduler.address(), 1, 1);
  REQUIRE(poolds.await());
  const auto channel = connect(scheduler.address());
  LeaseClient first(channel, request_call(1, 1000));
  REQUIRE(first.granted());
  auto second = std::make_unique<LeaseClient>(channel, request_call(1, 1000));
  const auto told = second->queued(1);
  REQUIRE(told);
  LeaseClient third(channel, request_call(1, 1000));
  REQUIRE(third.queued(2));
  second->cut();
  REQUIRE(third.queued(1));
  // The second client returns with its ticket; the third one became the head meanwhile and stays the head.
  pool::AcquireCall again = request_call(1, 1000);
  again.mutable_request()->set_ticket(told->ticket());
  LeaseClient back(channel, again);
  REQUIRE(back.queued(2));
  LeaseClient fourth(channel, request_call(1, 1000));
  REQUIRE(fourth.queued(3));
  third.release();
  CHECK(third.ended()->why() == pool::Ended::RELEASED);
  first.release();
  CHECK(back.granted());
}

TEST_CASE("a request with a predated or another request's ticket goes to the end of the queue") {
  SchedulerProcess scheduler;
  SimulatedPoolds poolds(scheduler.address(), 1, 1);
  REQUIRE(poolds.await());
  const auto channel = connect(scheduler.address());
  LeaseClient first(channel, request_call(1, 1000));
  REQUIRE(first.granted());
  LeaseClient head(channel, request_call(1, 1000));
  REQUIRE(head.queued(1));
  auto second = std::make_unique<LeaseClient>(channel, request_call(1, 1000));
  const auto told = second->queued(2);
  REQUIRE(told);
  LeaseClient third(channel, request_call(1, 1000));
  REQUIRE(third.queued(3));
  second.reset();
  REQUIRE(third.queued(2));
  pool::AcquireCall predated = request_call(1, 1000);
  predated.mutable_request()->set_ticket(std::string(8, '\0') + told->ticket().substr(8));
  LeaseClient forged(channel, predated);
  CHECK(forged.queued(3));
  pool::AcquireCall another = request_call(1, 500);
  another.mutable_request()->set_ticket(told->ticket());
  LeaseClient reused(channel, another);
  CHECK(reused.queued(4));
  pool::AcquireCall genuine = request_call(1, 1000);
  genuine.mutable_request()->set_ticket(told->ticket());
  LeaseClient back(channel, genuine);
  CHECK(back.queued(2));
}

TEST_CASE("a disconnected client resumes its lease only with the lease's secret") {
  SchedulerProcess scheduler;
  SimulatedPoolds poolds(scheduler.address(), 1, 1);
  REQUIRE(poolds.await());
  const auto channel = connect(scheduler.address());
  auto holder = std::make_unique<LeaseClient>(channel, request_call(1, 1000));
  const auto granted = holder->granted();
  REQUIRE(granted);
  holder.reset();
  pool::AcquireCall forged = resume_call(*granted);
  forged.mutable_resume()->mutable_secret()->back() ^= 1;
  CHECK(LeaseClient(channel, forged).status().error_code() == grpc::StatusCode::PERMISSION_DENIED);
  LeaseClient back(channel, resume_call(*granted));
  const auto again = back.granted();
  REQUIRE(again);
  CHECK(again->lease() == granted->lease());
  CHECK(again->servers(0).token() != granted->servers(0).token());
}

TEST_CASE("an invalid request is refused with a reason") {
  SchedulerProcess scheduler;
  SimulatedPoolds poolds(scheduler.address(), 1, 1);
  REQUIRE(poolds.await());
  const auto channel = connect(scheduler.address());
  CHECK(LeaseClient(channel, request_call(0, 1000)).status().error_code() ==
        grpc::StatusCode::INVALID_ARGUMENT);
  pool::AcquireCall release;
  release.mutable_release();
  CHECK(LeaseClient(channel, release).status().error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(LeaseClient(channel, pool::AcquireCall()).status().error_code() ==
        grpc::StatusCode::INVALID_ARGUMENT);
  pool::AcquireCall unknown = request_call(1, 1);
  unknown.mutable_request()->set_tenant("nobody");
  CHECK(LeaseClient(channel, unknown).status().error_code() == grpc::StatusCode::PERMISSION_DENIED);
  // Refused after the nodes have had ten seconds to register.
  const auto impossible = LeaseClient(channel, request_call(2, 1000)).status();
  CHECK(impossible.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(impossible.error_message() ==
        "cannot place 2 GPUs: at most 1 GPU fits; the pool has 1 GPU on 1 host: 1 x pretended 16.0 GiB");
}

TEST_CASE("a scheduler killed at random loses no lease and grants nothing twice") {
  SchedulerProcess scheduler;
  Usage usage;
  SimulatedPoolds poolds(scheduler.address(), kSanitized ? 20 : 100, 4, &usage, kSanitized ? 500ms : 100ms);
  REQUIRE(poolds.await());
  const auto channel = connect(scheduler.address());

  std::vector<std::shared_ptr<const pool::Granted>> held;
  for (int round = 0; round < (kSanitized ? 3 : 5); ++round) {
    // Some clients resume their leases, others are new; meanwhile the scheduler is killed.
    std::mutex mutex;
    std::map<std::string, std::shared_ptr<const pool::Granted>> granted;  // by lease
    const auto heard = [&](const pool::AcquireEvent& event) {
      if (!event.has_granted()) return;
      usage.granted(event.granted());
      const std::lock_guard lock(mutex);
      granted[event.granted().lease()] = std::make_shared<pool::Granted>(event.granted());
    };
    {
      // gRPC waits before it reconnects, and calls fail until then.
      REQUIRE(channel->WaitForConnected(std::chrono::system_clock::now() + kPatience));
      std::vector<std::unique_ptr<LeaseClient>> acquisitions;
      for (const auto& lease : held)
        acquisitions.push_back(std::make_unique<LeaseClient>(channel, resume_call(*lease), "", heard));
      for (const auto& one : acquisitions) {
        if (!one->granted()) FAIL("a lease was lost: " << one->status().error_message());
      }
      for (int i = 0; i < 60; ++i)
        acquisitions.push_back(std::make_unique<LeaseClient>(
            channel, request_call(i % 7 == 0 ? 3 : 1, i % 2 ? 1000 : 300), "", heard));
      for (size_t i = 0; i < held.size(); i += 3) acquisitions[i]->release();
      // A new leader first waits for returning clients.
      if (round % 2 == 0)
        CHECK(eventually([&] {
          const std::lock_guard lock(mutex);
          return granted.size() > held.size();
        }));
      std::this_thread::sleep_for(std::chrono::milliseconds(7 * round));
      scheduler.kill();
      for (size_t i = 0; i < held.size(); i += 3) {
        const std::lock_guard lock(mutex);
        granted.erase(held[i]->lease());  // may have ended
      }
    }
    for (const auto& lease : held) {
      const std::lock_guard lock(mutex);
      if (&lease - held.data() != 0 && (&lease - held.data()) % 3 != 0)
        CHECK(granted.contains(lease->lease()));
    }
    held.clear();
    for (auto& [id, lease] : granted) held.push_back(lease);
    scheduler.start();
    REQUIRE(poolds.await());
    CHECK(usage.double_grants().empty());
  }
  CHECK(held.size() > 20);
  REQUIRE(channel->WaitForConnected(std::chrono::system_clock::now() + kPatience));
  for (const auto& lease : held) {
    LeaseClient last(channel, resume_call(*lease));
    REQUIRE(last.granted());
    last.release();
    CHECK(last.ended()->why() == pool::Ended::RELEASED);
  }
  for (const auto& lease : held) {
    for (const auto& server : lease->servers()) {
      CHECK(
          eventually([&] { return poolds[std::stoul(server.node().substr(1))].has_ended(lease->lease()); }));
    }
  }
  CHECK(usage.double_grants().empty());
}

TEST_CASE("long names of programs and hosts are cut, also for the ticket") {
  SchedulerProcess scheduler;
  SimulatedPoolds poolds(scheduler.address(), 1, 1);
  REQUIRE(poolds.await());
  const auto channel = connect(scheduler.address());
  pool::AcquireCall call = request_call(1, 1000);
  call.mutable_request()->set_program(std::string(100'000, 'p'));
  call.mutable_request()->set_host(std::string(100'000, 'h'));
  LeaseClient holder(channel, call);
  REQUIRE(holder.granted());
  auto second = std::make_unique<LeaseClient>(channel, call);
  const auto told = second->queued(1);
  REQUIRE(told);
  LeaseClient third(channel, call);
  REQUIRE(third.queued(2));
  second->cut();
  REQUIRE(third.queued(1));
  call.mutable_request()->set_ticket(told->ticket());
  LeaseClient back(channel, call);
  REQUIRE(back.queued(2));
  LeaseClient fourth(channel, request_call(1, 1000));
  REQUIRE(fourth.queued(3));
  std::ifstream audit(scheduler.audit_file());
  const std::string lines{std::istreambuf_iterator<char>(audit), {}};
  for (const char c : {'p', 'h'}) {
    CHECK(lines.find(std::string(256, c)) != std::string::npos);
    CHECK(lines.find(std::string(257, c)) == std::string::npos);
  }
}

TEST_CASE("a node may report any time of day and receives the scheduler's") {
  SchedulerProcess scheduler;
  const auto stub = pool::Nodes::NewStub(connect(scheduler.address()));
  grpc::ClientContext context;
  const auto stream = stub->Attend(&context);
  pool::NodeReport report;
  pool::Inventory& inventory = *report.mutable_inventory();
  inventory.set_node("n0");
  inventory.set_boot(std::string(16, 'b'));
  inventory.add_addresses("tcp://n0:9700");
  for (const int64_t time : {INT64_MIN, int64_t{-1}, int64_t{0}, INT64_MAX}) {
    report.set_now_ms(time);
    REQUIRE(stream->Write(report));
    report.clear_inventory();
    pool::NodeOrders orders;
    REQUIRE(stream->Read(&orders));
    CHECK(std::abs(orders.now_ms() - time_of_day().count()) < 60'000);
    CHECK(orders.fenced_because().empty());
  }
  CHECK(scheduler.await_log("clock_skew"));
  CHECK(scheduler.stop() == 0);
}
