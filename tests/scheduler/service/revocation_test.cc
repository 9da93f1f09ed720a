// Tests of tokens that are replaced or removed while pool-scheduler runs.
#include <signal.h>

#include <fstream>
#include <optional>
#include <thread>

#include "protocol/control/pool_admin.grpc.pb.h"
#include "tests/scheduler/service/clients.h"
#include "tests/scheduler/service/scheduler_process.h"
#include "tests/support/catch.h"
#include "tests/support/poold_process.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

const std::string kOld(64, 'o'), kNew(64, 'n'), kOther(64, 't'), kNodeOld(64, 'p'), kNodeNew(64, 'q'),
    kOperator(64, 'r');

std::string hashes(const std::vector<std::string>& tokens) {
  std::string text = "[";
  for (const std::string& token : tokens) {
    text +=
        "\"sha256:" +
        run_to_end({"sh", "-c", "printf %s " + token + " | sha256sum | cut -c1-64"}).output.substr(0, 64) +
        "\", ";
  }
  return text + "]\n";
}

std::string tenant(const std::string& name, const std::vector<std::string>& tokens,
                   const std::vector<std::string>& retired = {}) {
  return "[[tenant]]\nname = \"" + name + "\"\ntokens = " + hashes(tokens) +
         (retired.empty() ? "" : "retired_tokens = " + hashes(retired));
}

class Configured {
 public:
  explicit Configured(const std::string& tenants) {
    scheduler_.emplace(std::vector<std::string>{"--config", write(tenants)});
    poold_ = std::make_unique<SimulatedPoold>(connect(scheduler_->address()),
                                              SimulatedPoold::Has{"n0", 0, 4, kNodeOld});
    heartbeats_ = std::jthread([this](std::stop_token stop) {
      while (!stop.stop_requested()) {
        poold_->send_heartbeat();
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
      }
    });
    REQUIRE(eventually([&] { return poold_->is_registered(); }));
  }
  void reload(const std::string& tenants) {
    write(tenants);
    scheduler_->process().signal(SIGHUP);
    ++reloads_;
    REQUIRE(eventually([&] { return occurrences(scheduler_->log(), " reloaded ") >= reloads_; }));
  }
  void set_node_tokens(const std::vector<std::string>& tokens) { node_tokens_ = tokens; }
  void set_operator_tokens(const std::vector<std::string>& tokens) { operator_tokens_ = tokens; }
  SchedulerProcess& scheduler() { return *scheduler_; }
  SimulatedPoold& poold() { return *poold_; }

 private:
  std::string write(const std::string& tenants) const {
    return folder_.write("pool.toml",
                         tenants + "[[node]]\nname = \"n0\"\ntokens = " + hashes(node_tokens_) +
                             "[[operator]]\nname = \"root\"\ntokens = " + hashes(operator_tokens_));
  }

  const TemporaryFolder folder_;
  std::vector<std::string> node_tokens_{kNodeOld}, operator_tokens_{kOperator};
  std::optional<SchedulerProcess> scheduler_;
  std::unique_ptr<SimulatedPoold> poold_;
  size_t reloads_ = 0;
  std::jthread heartbeats_;
};

}  // namespace

TEST_CASE("a tenant's token is rotated without losing leases and a removed token ends its leases") {
  Configured pool(tenant("a", {kOld}));
  const auto channel = connect(pool.scheduler().address());
  auto first = std::make_unique<LeaseClient>(channel, request_call(1, 1000), kOld);
  const auto granted = first->granted();
  REQUIRE(granted);

  pool.reload(tenant("a", {kOld, kNew}));
  LeaseClient second(channel, request_call(1, 1000), kNew), third(channel, request_call(1, 1000), kOld);
  REQUIRE(second.granted());
  REQUIRE(third.granted());
  LeaseClient waits(channel, request_call(4, 1000), kOld);
  REQUIRE(waits.queued(1));

  pool.reload(tenant("a", {kNew}, {kOld}));
  CHECK(LeaseClient(channel, request_call(1, 1000), kOld).status().error_message() ==
        "this token is retired: use the tenant's current token");
  first->cut();
  // A retired token may resume an existing lease.
  first = std::make_unique<LeaseClient>(channel, resume_call(*granted), kOld);
  REQUIRE(first->granted());
  CHECK(LeaseClient(channel, request_call(1, 100), kNew).queued(2));

  pool.reload(tenant("a", {kNew}));
  for (LeaseClient* const lost : {first.get(), &third}) {
    REQUIRE(lost->ended());
    CHECK(lost->ended()->why() == pool::Ended::EVICTED);
    CHECK(lost->ended()->reason() == "its token was removed from the scheduler's configuration");
    CHECK(lost->ended()->at_ms() == 0);
  }
  CHECK(waits.status().error_code() == grpc::StatusCode::PERMISSION_DENIED);
  CHECK(LeaseClient(channel, resume_call(*granted), kOld).status().error_code() ==
        grpc::StatusCode::UNAUTHENTICATED);
  second.release();
  REQUIRE(second.ended());
  CHECK(second.ended()->why() == pool::Ended::RELEASED);  // it was not affected
}

TEST_CASE("a tenant that is removed loses its leases and its places in the queue") {
  Configured pool(tenant("a", {kOld}) + tenant("b", {kOther}));
  const auto channel = connect(pool.scheduler().address());
  LeaseClient removed(channel, request_call(2, 1000), kOld), stays(channel, request_call(2, 1000), kOther);
  auto away = removed.granted();
  REQUIRE(away);
  REQUIRE(stays.granted());
  removed.cut();  // the lease is held for it
  LeaseClient waits(channel, request_call(1, 1000), kOld);
  REQUIRE(waits.queued(1));
  LeaseClient next(channel, request_call(1, 1000), kOther);
  REQUIRE(next.queued(2));
  pool.reload(tenant("b", {kOther}));
  CHECK(waits.status().error_code() == grpc::StatusCode::PERMISSION_DENIED);
  CHECK(eventually([&] { return pool.poold().has_ended(away->lease()); }));
  CHECK(next.granted());
  CHECK(pool.scheduler().log().find("tenant 'a' was removed from the scheduler's configuration") !=
        std::string::npos);
  stays.release();
  REQUIRE(stays.ended());
  CHECK(stays.ended()->why() == pool::Ended::RELEASED);
}

TEST_CASE("removing a node's token ends its connection and another token is accepted") {
  Configured pool(tenant("a", {kOld}));
  pool.set_node_tokens({kNodeOld, kNodeNew});
  pool.reload(tenant("a", {kOld}));
  CHECK(pool.poold().is_registered());
  pool.set_node_tokens({kNodeNew});
  pool.reload(tenant("a", {kOld}));
  CHECK(eventually([&] {
    return !pool.poold().is_registered() &&
           pool.poold().last_error().starts_with("authentication failed: unknown token");
  }));
  SimulatedPoold again(connect(pool.scheduler().address()), {"n0", 0, 4, kNodeNew});
  CHECK(eventually([&] {
    again.send_heartbeat();
    return again.is_registered();
  }));
}

TEST_CASE("removing an operator's token ends its watch streams") {
  Configured pool(tenant("a", {kOld}));
  const auto admin = pool::PoolAdmin::NewStub(connect(pool.scheduler().address()));
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer " + kOperator);
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  pool::PoolWatchRequest request;
  request.set_interval_ms(100);
  const auto stream = admin->Watch(&context, request);
  pool::PoolSnapshot seen;
  REQUIRE(stream->Read(&seen));
  pool.set_operator_tokens({kNew});
  pool.reload(tenant("a", {kOld}));
  while (stream->Read(&seen)) {
  }
  CHECK(stream->Finish().error_code() == grpc::StatusCode::UNAUTHENTICATED);
}
