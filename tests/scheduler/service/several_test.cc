// Tests of several real pool-schedulers with a real etcd: election, redirection, failover, waiting clients.
#include <signal.h>

#include "tests/scheduler/service/clients.h"
#include "tests/scheduler/service/scheduler_process.h"
#include "tests/support/catch.h"
#include "tests/support/etcd.h"
#include "tests/support/poold_process.h"

using namespace gpupool;
using namespace gpupool::testing;
using namespace std::chrono_literals;

namespace {

class Several {
 public:
  explicit Several(size_t count) {
    for (size_t i = 0; i < count; ++i)
      all_.push_back(SchedulerProcess::one_of_several(etcd_.store(), folder_.path() / "key.pem"));
  }
  SchedulerProcess& operator[](size_t i) { return *all_[i]; }
  size_t size() const { return all_.size(); }
  std::string addresses() const {
    std::string out;
    for (const auto& one : all_) out += (out.empty() ? "" : ",") + one->address();
    return out;
  }
  // Waits for a leader of a later term than `terms`; returns its index, from the schedulers' logs.
  size_t leader(size_t terms = 0) const {
    size_t found = all_.size(), highest = terms;
    eventually([&] {
      for (size_t i = 0; i < all_.size(); ++i) {
        const std::string log = all_[i]->log();
        const size_t at = log.rfind(" leads term=");
        const size_t term = at == log.npos ? 0 : std::stoul(log.substr(at + 12));
        if (term > highest) highest = term, found = i;
      }
      return found != all_.size();
    });
    REQUIRE(found != all_.size());
    return found;
  }
  std::string pool_admin(std::vector<std::string> words) const {
    words.insert(words.begin(), {program_path("pool-admin"), "--scheduler", addresses()});
    return run_to_end(words).output;
  }

 private:
  EtcdCluster etcd_;
  TemporaryFolder folder_;
  std::vector<std::unique_ptr<SchedulerProcess>> all_;
};

}  // namespace

TEST_CASE("a standby names the leader and the next leader has all leases") {
  Several schedulers(3);
  const size_t first = schedulers.leader();
  const std::string address = schedulers[first].address();
  for (size_t i = 0; i < schedulers.size(); ++i) {
    if (i == first) continue;
    CHECK(eventually([&] {
      LeaseClient asks(connect(schedulers[i].address()), request_call(1, 1000));
      return asks.status().error_code() == grpc::StatusCode::UNAVAILABLE && asks.leader() == address;
    }));
  }
  CHECK(schedulers.pool_admin({"health"}).find(", leader for") != std::string::npos);
  std::shared_ptr<const pool::Granted> granted;
  {
    SimulatedPoolds poolds(address, 1, 1);
    REQUIRE(poolds.await());
    LeaseClient holder(connect(address), request_call(1, 1000));
    granted = holder.granted();
    REQUIRE(granted);
    schedulers[first].kill();
  }
  const size_t next = schedulers.leader(1);
  CHECK(next != first);
  SimulatedPoolds poolds(schedulers[next].address(), 1, 1);
  REQUIRE(poolds.await());
  LeaseClient back(connect(schedulers[next].address()), resume_call(*granted));
  REQUIRE(back.granted());
  CHECK(back.granted()->lease() == granted->lease());
  LeaseClient other(connect(schedulers[next].address()), request_call(1, 1000));
  CHECK(other.queued(1));  // the leased GPU is not granted again
  schedulers[next].stop();
  CHECK(schedulers.leader(2) != next);
  CHECK(schedulers.pool_admin({"leases"}).find("held") == std::string::npos);
}

TEST_CASE("the next leader returns a stored grant whose answer was lost") {
  Several schedulers(2);
  const size_t first = schedulers.leader();
  pool::AcquireCall call = request_call(1, 1000);
  call.mutable_request()->set_id("sixteen bytes 01");
  std::string lease;
  {
    SimulatedPoolds poolds(schedulers[first].address(), 1, 1);
    REQUIRE(poolds.await());
    LeaseClient holder(connect(schedulers[first].address()), call);
    REQUIRE(holder.granted());
    lease = holder.granted()->lease();
    schedulers[first].kill();
  }
  const size_t next = schedulers.leader(1);
  SimulatedPoolds poolds(schedulers[next].address(), 1, 1);
  REQUIRE(poolds.await());
  LeaseClient again(connect(schedulers[next].address()), call);
  REQUIRE(again.granted());
  CHECK(again.granted()->lease() == lease);
}

TEST_CASE("pool-admin top continues with the next leader") {
  Several schedulers(2);
  const size_t first = schedulers.leader();
  Process top({program_path("pool-admin"), "--scheduler", schedulers.addresses(), "--json", "top",
               "--interval", "0.1"},
              {});
  const auto pictures = [&] { return occurrences(top.output(), "\"taken_ms\""); };
  REQUIRE(eventually([&] { return pictures() > 0; }));
  schedulers[first].kill();
  const auto goes_on = [&](size_t terms) {
    schedulers.leader(terms);
    const auto before = pictures();
    INFO(top.output());
    CHECK(eventually([&] { return pictures() > before; }));
  };
  SECTION("the other scheduler leads") {
    goes_on(1);
  }
  SECTION("for a while there is no scheduler") {
    schedulers[1 - first].kill();
    CHECK(top.await_output("retrying until a scheduler becomes the leader"));
    schedulers[first].start();
    goes_on(1);
  }
  top.signal(SIGTERM);
  CHECK(top.wait() == 0);
}

TEST_CASE("a suspended former leader sends nothing after its successor has started") {
  Several schedulers(2);
  const size_t first = schedulers.leader();
  const auto channel = connect(schedulers[first].address());
  REQUIRE(channel->WaitForConnected(std::chrono::system_clock::now() + kPatience));
  schedulers[first].process().signal(SIGSTOP);
  const size_t next = schedulers.leader(1);
  REQUIRE(next != first);
  SimulatedPoolds poolds(schedulers[next].address(), 1, 1);
  REQUIRE(poolds.await());
  LeaseClient holder(connect(schedulers[next].address()), request_call(1, 1000));
  const auto granted = holder.granted();
  REQUIRE(granted);
  // These messages wait for the suspended scheduler. In its state the lease was never granted, so it would
  // order the node to end it.
  LeaseClient lost(channel, resume_call(*granted));
  grpc::ClientContext context;
  const auto node = pool::Nodes::NewStub(channel)->Attend(&context);
  pool::NodeReport report;
  report.mutable_inventory()->set_node("n0");
  report.mutable_inventory()->set_boot("pretended-boot-a");
  report.mutable_inventory()->add_addresses("tcp://n0:9700");
  report.set_ready(true);
  pool::LeaseUse& use = *report.add_leases();
  use.set_lease(granted->lease());
  use.set_sessions(1);
  REQUIRE(node->Write(report));
  schedulers[first].process().signal(SIGCONT);
  pool::NodeOrders orders;
  CHECK(!node->Read(&orders));
  CHECK(node->Finish().error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK(lost.status().error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK(schedulers[first].await_log("does_not_lead"));
  CHECK(eventually([&] {
    LeaseClient asks(connect(schedulers[first].address()), request_call(1, 1000));
    return !asks.status().ok() && asks.leader() == schedulers[next].address();
  }));
}

// Uses a longer return time than the default, so that all clients return in time on a busy machine.
TEST_CASE("requests that waited before a change of leader keep their places") {
  SchedulerProcess scheduler({"--return-time", "10"});
  SimulatedPoolds poolds(scheduler.address(), 1, 1, nullptr, 50ms);
  REQUIRE(poolds.await());
  auto holder = std::make_unique<LeaseClient>(connect(scheduler.address()), request_call(1, 1000));
  const auto granted = holder->granted();
  REQUIRE(granted);
  auto waiting = std::make_unique<LeaseClient>(connect(scheduler.address()), request_call(1, 1000));
  const auto place = waiting->queued(1);
  REQUIRE(place);
  scheduler.kill();
  holder.reset();
  waiting.reset();
  scheduler.start();
  REQUIRE(poolds.await());
  LeaseClient gives_back(connect(scheduler.address()), resume_call(*granted));
  LeaseClient newcomer(connect(scheduler.address()), request_call(1, 1000));
  REQUIRE(gives_back.granted());
  gives_back.release();
  CHECK(gives_back.ended());
  REQUIRE(newcomer.queued(1));
  pool::AcquireCall again = request_call(1, 1000);
  again.mutable_request()->set_ticket(place->ticket());
  LeaseClient back(connect(scheduler.address()), again);
  CHECK(back.granted());
  CHECK(newcomer.queued(1));
}
