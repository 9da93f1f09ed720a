// Tests of poold's counters of what leases use: sessions that begin, end and go on; reports, confirmations,
// upgrades.
#include "server/poold/node/usage_counters.h"

#include <set>

#include "protocol/lease/token.h"
#include "tests/support/catch.h"

using namespace gpupool;
using server::UsageCounters;
using std::chrono::milliseconds;

namespace {

const std::string kLease(lease::kIdBytes, 'l'), kOther(lease::kIdBytes, 'm');
constexpr uint64_t kMiB = uint64_t{1} << 20;

struct Node {
  UsageCounters::Host host() {
    return {.for_each_session =
                [this](const std::function<void(const UsageCounters::Session&)>& visit) {
                  for (const auto& [number, session] : sessions) visit(session);
                },
            .uuid = [](size_t gpu) { return gpu < 2 ? "GPU-" + std::to_string(gpu) : std::string(); },
            .energy = [this](size_t gpu) { return gpu == 0 ? energy : std::nullopt; }};
  }
  uint64_t begin(const std::string& lease) {
    UsageCounters::Session& session = sessions[++numbers];
    session.number = numbers;
    session.lease = lease;
    session.gpus.resize(2);
    counters.session_began(lease);
    return numbers;
  }
  void end(uint64_t number) {
    const UsageCounters::Session ended = sessions.at(number);
    sessions.erase(number);
    counters.session_ended(ended);
  }
  pool::NodeReport report() {
    pool::NodeReport out;
    counters.begin_report();
    counters.report_others(out);
    return out;
  }
  pool::LeaseCounters only() {
    const pool::NodeReport out = report();
    REQUIRE(out.counters_size() == 1);
    return out.counters(0);
  }
  void confirm(const pool::LeaseCounters& told) {
    pool::CountersRecorded recorded;
    recorded.set_lease(told.lease());
    recorded.set_record(told.record());
    recorded.set_revision(told.revision());
    counters.recorded(recorded);
  }

  asio::io_context context;
  UsageCounters::Clock::time_point now{};
  std::map<uint64_t, UsageCounters::Session> sessions;
  uint64_t numbers = 0;
  std::optional<uint64_t> energy;  // of the first GPU
  UsageCounters counters{context, host(), [this] { return now; }};
};

}  // namespace

TEST_CASE("a lease's counters are the sum of its sessions, ended ones included") {
  Node node;
  const uint64_t first = node.begin(kLease), second = node.begin(kLease);
  node.sessions[first].gpus[0].gpu_nanoseconds = 100;
  node.sessions[second].gpus[0].gpu_nanoseconds = 20;
  node.sessions[second].gpus[1].gpu_nanoseconds = 3;
  node.sessions[second].bytes_to_client = 7;
  node.end(first);
  pool::LeaseCounters told = node.only();
  CHECK(told.lease() == kLease);
  CHECK(!told.complete());
  REQUIRE(told.gpus_size() == 2);
  CHECK(told.gpus(0).uuid() == "GPU-0");
  CHECK(told.gpus(0).gpu_nanoseconds() == 120);
  CHECK(told.gpus(1).gpu_nanoseconds() == 3);
  CHECK(told.bytes_to_client() == 7);
  node.end(second);
  told = node.only();
  CHECK(told.complete());
  CHECK(told.gpus(0).gpu_nanoseconds() == 120);
}

TEST_CASE("memory counts for the time that a session has it") {
  Node node;
  const uint64_t session = node.begin(kLease);
  node.sessions[session].gpus[1].memory_used = 8 * kMiB;
  node.now += milliseconds(1'000);
  CHECK(node.only().gpus(0).memory_kib_ms() == 8 * 1024 * 1'000);
  CHECK(node.only().gpus(0).memory_kib_ms() == 8 * 1024 * 1'000);  // the clock has not moved on
  node.sessions[session].gpus[1].memory_used = 1 * kMiB;
  node.now += milliseconds(500);
  node.end(session);
  node.now += milliseconds(60'000);
  const pool::LeaseCounters told = node.only();
  CHECK(told.gpus(0).uuid() == "GPU-1");
  CHECK(told.gpus(0).memory_kib_ms() == 8 * 1024 * 1'000 + 1024 * 500);
}

TEST_CASE("complete counters are repeated until they are confirmed") {
  Node node;
  node.end(node.begin(kLease));
  const pool::LeaseCounters told = node.only();
  CHECK(node.only().SerializeAsString() == told.SerializeAsString());
  SECTION("then they are forgotten, and a later session begins another record") {
    node.confirm(told);
    CHECK(node.counters.count() == 0);
    node.begin(kLease);
    CHECK(node.only().record() != told.record());
  }
  SECTION("a late confirmation forgets nothing that has happened since") {
    const uint64_t session = node.begin(kLease);
    node.confirm(told);
    CHECK(node.counters.count() == 1);
    node.sessions[session].gpus[0].gpu_nanoseconds = 5;
    node.end(session);
    node.confirm(told);
    const pool::LeaseCounters again = node.only();
    CHECK(again.record() == told.record());
    CHECK(again.gpus(0).gpu_nanoseconds() == 5);
  }
  SECTION("a confirmation of running sessions' counters forgets nothing") {
    node.begin(kLease);
    node.confirm(node.only());
    CHECK(node.counters.count() == 1);
  }
}

TEST_CASE("a GPU's energy is divided by the GPU time since it was read last") {
  Node node;
  node.energy = 1'000;
  const uint64_t first = node.begin(kLease), second = node.begin(kOther), local = node.begin("");
  node.sessions[first].gpus[0].gpu_nanoseconds = 600;
  node.sessions[second].gpus[0].gpu_nanoseconds = 300;
  node.sessions[local].gpus[0].gpu_nanoseconds = 100;
  node.report();  // the counter stands still
  node.energy = 2'000;
  pool::NodeReport told = node.report();
  REQUIRE(told.counters_size() == 2);
  CHECK(told.counters(0).gpus(0).energy_millijoules() == 600);
  CHECK(told.counters(1).gpus(0).energy_millijoules() == 300);
  node.energy = 3'000;  // nobody used the GPU
  told = node.report();
  CHECK(told.counters(0).gpus(0).energy_millijoules() == 600);
  node.energy = 10;  // the driver was loaded again
  node.sessions[first].gpus[0].gpu_nanoseconds = 700;
  told = node.report();
  CHECK(told.counters(0).gpus(0).energy_millijoules() == 600);
  node.energy.reset();
  node.report();
  node.energy = 110;
  node.sessions[first].gpus[0].gpu_nanoseconds = 800;
  told = node.report();
  CHECK(told.counters(0).gpus(0).energy_millijoules() == 700);
}

TEST_CASE("sessions without a lease are not counted") {
  Node node;
  const uint64_t session = node.begin("");
  node.sessions[session].gpus[0].gpu_nanoseconds = 5;
  CHECK(node.report().counters_size() == 0);
  node.end(session);
  CHECK(node.report().counters_size() == 0);
}

TEST_CASE("a report has room for some leases, and the next one for the others") {
  Node node;
  constexpr int kLeases = 3'000;
  for (int i = 0; i < kLeases; ++i) {
    std::string lease(lease::kIdBytes, '\0');
    lease[0] = static_cast<char>(i), lease[1] = static_cast<char>(i >> 8);
    node.end(node.begin(lease));
  }
  std::map<std::string, int> seen;
  for (int reports = 0; reports < 2; ++reports) {
    const pool::NodeReport told = node.report();
    CHECK(told.ByteSizeLong() < 512 * 1024);
    for (const auto& one : told.counters()) ++seen[one.lease()];
  }
  CHECK(seen.size() == kLeases);
  pool::NodeReport out;
  node.counters.begin_report();
  CHECK(node.counters.report(seen.rbegin()->first, out));
  CHECK(node.counters.report(kOther, out));  // nothing is known of it
  CHECK(out.counters_size() == 1);
  node.counters.report_others(out);
  std::set<std::string> distinct;
  for (const auto& one : out.counters()) distinct.insert(one.lease());
  CHECK(distinct.size() == static_cast<size_t>(out.counters_size()));
  for (const auto& [lease, times] : seen) {
    if (distinct.contains(lease)) continue;
    CHECK(!node.counters.report(lease, out));  // the report is full
    break;
  }
}

TEST_CASE("an upgrade of poold hands the counters over") {
  Node before, after;
  const uint64_t session = before.begin(kLease);
  before.sessions[session].gpus[0].memory_used = kMiB;
  before.now += milliseconds(100);
  before.end(before.begin(kLease));
  upgrade::Leases state;
  before.counters.save(state);
  after.counters.restore(state);
  after.sessions = before.sessions;
  after.sessions[session].gpus[0].gpu_nanoseconds = 9;
  const pool::LeaseCounters told = after.only();
  CHECK(told.record() == before.only().record());
  CHECK(told.gpus(0).memory_kib_ms() == 1024 * 100);
  CHECK(told.gpus(0).gpu_nanoseconds() == 9);
  after.begin(kOther);
  CHECK(after.report().counters_size() == 2);
}
