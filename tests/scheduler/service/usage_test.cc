// Tests of accounting with real pool-schedulers: GetUsage and pool-admin usage, the death of the leader with
// both kinds of store, and the rows of earlier days.
#include <nlohmann/json.hpp>

#include "common/text/dates.h"
#include "protocol/control/pool_admin.grpc.pb.h"
#include "scheduler/core/records.h"
#include "scheduler/core/records.pb.h"
#include "scheduler/store/open/open_store.h"
#include "tests/scheduler/service/clients.h"
#include "tests/scheduler/service/scheduler_process.h"
#include "tests/support/catch.h"
#include "tests/support/etcd.h"
#include "tests/support/has.h"
#include "tests/support/poold_process.h"

using namespace gpupool;
using namespace gpupool::testing;
using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

namespace {

constexpr int64_t kHourMs = 3'600'000, kDayMs = 24 * kHourMs;
constexpr double kSlackMs = 50;  // of clocks of several processes

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

double ms_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

grpc::Status get_usage(const std::string& address, const pool::GetUsageRequest& request,
                       pool::GetUsageReply& reply) {
  grpc::ClientContext context;
  return pool::PoolAdmin::NewStub(connect(address))->GetUsage(&context, request, &reply);
}

pool::GetUsageReply usage(const std::string& address, std::vector<std::string> by = {"tenant"},
                          int64_t from = 0) {
  pool::GetUsageRequest request;
  request.set_from_ms(from);
  request.set_to_ms(now_ms() + kHourMs);
  for (const std::string& name : by) request.add_by(name);
  pool::GetUsageReply reply;
  const grpc::Status status = get_usage(address, request, reply);
  INFO(status.error_message());
  REQUIRE(status.ok());
  return reply;
}

uint64_t leased(const pool::GetUsageReply& reply) {
  uint64_t sum = 0;
  for (const auto& group : reply.groups()) sum += group.amounts().leased_milli_ms();
  return sum;
}

Finished pool_admin(const SchedulerProcess& scheduler, std::vector<std::string> words) {
  words.insert(words.begin(), {program_path("pool-admin"), "--scheduler", scheduler.address()});
  return run_to_end(words);
}

scheduler::Write row_of(int64_t hour, char lease, const std::string& job, uint64_t amount) {
  pool::UsageRow row;
  row.set_lease(std::string(16, lease));
  row.set_tenant("default");
  row.add_labels("job=" + job);
  pool::UsagePart& part = *row.add_parts();
  part.set_node("n1");
  part.set_model("A100");
  part.mutable_amounts()->set_leased_milli_ms(amount);
  return {scheduler::usage_row_key(hour, row.lease()), row.SerializeAsString()};
}
scheduler::Write days_record(int64_t first, int64_t detailed_from, int64_t seen = 0) {
  scheduler::UsageDaysRecord days;
  days.set_first(first);
  days.set_detailed_from(detailed_from);
  days.set_seen(seen);
  return {scheduler::kUsageDaysKey, days.SerializeAsString()};
}

// Where the schedulers of a test have their store. Makes an etcd if necessary.
struct SomeStore {
  explicit SomeStore(bool with_etcd) {
    if (with_etcd) etcd = std::make_unique<EtcdCluster>();
    address = etcd ? etcd->store() : "sqlite:" + std::string(folder.path() / "pool.db");
  }
  std::unique_ptr<SchedulerProcess> start_scheduler() const {
    return SchedulerProcess::one_of_several(address, folder.path() / "key.pem");
  }
  std::unique_ptr<scheduler::Store> open() const {
    auto opened = scheduler::open_store(address, {}, false);
    if (!opened) throw std::runtime_error(opened.error().message);
    return std::move(*opened);
  }
  void write(const std::vector<scheduler::Write>& writes) const {
    const auto opened = open();
    const auto term = opened->campaign("test", std::chrono::seconds(5));
    REQUIRE(term);
    REQUIRE(opened->write(writes, *term));
    opened->resign();
  }
  size_t rows(const std::string& prefix) const { return open()->all(prefix)->size(); }
  scheduler::UsageDaysRecord days() const {
    const auto entries = open()->all(scheduler::kUsageDaysKey);
    scheduler::UsageDaysRecord days;
    REQUIRE(entries->size() == 1);
    REQUIRE(days.ParseFromString(entries->front().second));
    return days;
  }
  TemporaryFolder folder;
  std::unique_ptr<EtcdCluster> etcd;
  std::string address;
};

}  // namespace

TEST_CASE("usage is neither lost nor counted twice when the leader is killed") {
  const bool with_etcd = GENERATE(false, true);
  INFO((with_etcd ? "etcd" : "SQLite"));
  const SomeStore store(with_etcd);
  auto first = store.start_scheduler();
  REQUIRE(first->await_log(" leads term="));
  auto second = store.start_scheduler();
  const auto before = Clock::now();
  Clock::time_point granted_at, released_at;
  std::shared_ptr<const pool::Granted> granted;
  {
    SimulatedPoolds poolds(first->address(), 1, 1);
    REQUIRE(poolds.await());
    REQUIRE(pool_admin(*first, {"policy", "set", "usage=0.1"}).status == 0);
    LeaseClient holder(connect(first->address()), request_call(1, 500));
    granted = holder.granted();
    REQUIRE(granted);
    granted_at = Clock::now();
    CHECK(eventually([&] { return leased(usage(first->address())) > 200 * 500; }));
    first->kill();
  }
  REQUIRE(second->await_log(" leads term="));
  {
    SimulatedPoolds poolds(second->address(), 1, 1);
    REQUIRE(poolds.await());
    LeaseClient holder(connect(second->address()), resume_call(*granted));
    REQUIRE(holder.granted());
    released_at = Clock::now();
    holder.release();
    REQUIRE(holder.ended());
    CHECK(eventually([&] { return has(pool_admin(*second, {"leases"}).output, "no leases"); }));
  }
  const auto after = Clock::now();
  const auto held = static_cast<double>(leased(usage(second->address()))) / 500;
  CHECK(held >= ms_between(granted_at, released_at) - kSlackMs);
  CHECK(held <= ms_between(before, after) + kSlackMs);
  CHECK(static_cast<double>(leased(usage(second->address()))) / 500 == held);
}

TEST_CASE("rows of earlier days are summed up, and give the same sums") {
  const bool with_etcd = GENERATE(false, true);
  INFO((with_etcd ? "etcd" : "SQLite"));
  const SomeStore store(with_etcd);
  const int64_t today = now_ms() / kDayMs, old = today - 40;
  store.write({row_of(old * 24 + 3, 'a', "one", 1), row_of(old * 24 + 4, 'a', "one", 20),
               row_of(old * 24 + 4, 'b', "two", 300), row_of((today - 50) * 24 + 4, 'c', "one", 4'000),
               row_of((today - 1) * 24 + 4, 'd', "one", 50'000), days_record(today - 50, today - 50)});
  const auto scheduler = store.start_scheduler();
  REQUIRE(scheduler->await_log(" leads term="));
  CHECK(leased(usage(scheduler->address())) == 54'321);
  REQUIRE(eventually([&] { return store.rows("usage/day/" + day_text(old)) == 2; }));
  CHECK(store.rows("usage/hour/" + day_text(old)) == 0);
  CHECK(store.rows("usage/hour/") == 1);
  const auto by_job = usage(scheduler->address(), {"job"});
  REQUIRE(by_job.groups_size() == 2);
  CHECK(by_job.groups(0).keys(0) == "one");
  CHECK(by_job.groups(0).amounts().leased_milli_ms() == 54'021);
  CHECK(by_job.groups(1).amounts().leased_milli_ms() == 300);
  // Of a day that was summed up, an hour is the whole day.
  const auto part = usage(scheduler->address(), {"hour"}, old * kDayMs + 5 * kHourMs);
  CHECK(part.from_ms() == old * kDayMs);
  CHECK(part.groups(0).keys(0) == day_text(old));
  CHECK(leased(part) == 50'321);
}

TEST_CASE("a leader whose clock is far ahead keeps the history") {
  const SomeStore store(false);
  const int64_t today = now_ms() / kDayMs, seen = today - 500;
  store.write({row_of(seen * 24 + 3, 'a', "one", 1), row_of((seen - 34) * 24, 'b', "one", 20),
               days_record(seen - 34, seen - 34, seen)});
  const auto scheduler = store.start_scheduler();
  REQUIRE(scheduler->await_log("usage_clock"));
  REQUIRE(eventually([&] { return store.days().seen() == seen + 1; }));
  CHECK(store.days().first() == seen - 34);
  CHECK(store.rows("usage/hour/") == 2);
  CHECK(store.rows("usage/day/") == 0);
}

TEST_CASE("usage is shown and summed up after a clock was far ahead") {
  const SomeStore store(false);
  const int64_t today = now_ms() / kDayMs, old = today - 36;
  auto [key, sum] = row_of(old * 24, 'a', "one", 300);
  const scheduler::Write summed{"usage/day/" + day_text(old) + "/1", sum};
  const scheduler::Write of_yesterday{"usage/day/" + day_text(today - 1) + "/1", sum};
  store.write({summed, of_yesterday, row_of(old * 24 + 1, 'b', "one", 1), row_of(today * 24, 'c', "one", 20),
               days_record(today + 3, today + 4, today + 40)});
  auto scheduler = store.start_scheduler();
  REQUIRE(eventually([&] { return store.days().seen() <= today + 1; }));  // a day may begin meanwhile
  CHECK(store.days().first() <= today + 1);
  CHECK(leased(usage(scheduler->address())) == 20);
  scheduler.reset();
  // The days before are still there: a day that was summed up already is merged.
  store.write({days_record(old, old, today)});
  scheduler = store.start_scheduler();
  REQUIRE(eventually([&] { return store.rows("usage/hour/" + day_text(old)) == 0; }));
  CHECK(store.rows("usage/day/" + day_text(old)) == 1);
  CHECK(leased(usage(scheduler->address())) == 621);
}

TEST_CASE("usage is shown by label, and hostile names do no harm") {
  SchedulerProcess scheduler;
  SimulatedPoolds poolds(scheduler.address(), 1, 1);
  REQUIRE(poolds.await());
  pool::AcquireCall call = request_call(1, 1000);
  call.mutable_request()->set_user("=cmd|'/C calc'!A0");
  call.mutable_request()->add_labels("job=\"a,b\"");
  call.mutable_request()->set_program("train\x1b[2J.py");
  {
    LeaseClient holder(connect(scheduler.address()), call);
    REQUIRE(holder.granted());
    CHECK(eventually([&] { return leased(usage(scheduler.address())) > 0; }));
    holder.release();
    REQUIRE(holder.ended());
  }
  const Finished csv = pool_admin(scheduler, {"usage", "--by", "user,job,program,model", "--csv"});
  INFO(csv.output);
  CHECK(csv.status == 0);
  CHECK(has(csv.output, "user,job,program,model,leased_gpu_seconds,"));
  CHECK(has(csv.output, "\"'=cmd|'/C calc'!A0\",\"\"\"a,b\"\"\",train?[2J.py,"));
  const Finished text = pool_admin(scheduler, {"usage", "--by", "tenant", "--by", "label:job"});
  INFO(text.output);
  CHECK(text.status == 0);
  CHECK(has(text.output, "LABEL:JOB"));
  CHECK(has(text.output, "default"));
  const Json json = Json::parse(pool_admin(scheduler, {"usage", "--by", "day,lease", "--json"}).output);
  CHECK(json["groups"].size() == 1);
  CHECK(json["groups"][0]["leased_gpu_seconds"] > 0);
  CHECK(json["groups"][0]["cost"].is_null());
}

TEST_CASE("malformed requests for usage are refused with the reason") {
  SchedulerProcess scheduler;
  REQUIRE(scheduler.await_log(" leads term="));
  const auto refused = [&](const std::vector<std::string>& words, int status, const std::string& reason) {
    std::vector<std::string> all{"usage"};
    all.insert(all.end(), words.begin(), words.end());
    const Finished finished = pool_admin(scheduler, all);
    INFO(finished.output);
    CHECK(finished.status == status);
    CHECK(has(finished.output, reason));
  };
  refused({"--by", "colour"}, 1, "unknown dimension 'colour'; there are tenant, user, job, label:KEY");
  refused({"--by", "label:"}, 1, "unknown dimension");
  refused({"--from", "yesterday"}, 2, "--from: 'yesterday' is no date or time");
  refused({"--from", "2026-02-02", "--to", "2026-02-01"}, 2, "--from must be before --to");
  refused({"--opencost"}, 1, "--opencost needs [prices]");
  refused({"--opencost", "--csv"}, 2, "--csv");
  pool::GetUsageRequest request;
  pool::GetUsageReply reply;
  CHECK(get_usage(scheduler.address(), request, reply).error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  request.set_from_ms(INT64_MIN);
  request.set_to_ms(INT64_MAX);
  CHECK(get_usage(scheduler.address(), request, reply).error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  request.set_from_ms(0);
  for (int i = 0; i < 9; ++i) request.add_by("tenant");
  CHECK(get_usage(scheduler.address(), request, reply).error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  request.clear_by();
  CHECK(get_usage(scheduler.address(), request, reply).ok());
}

TEST_CASE("prices and budgets are read from the configuration and shown") {
  TemporaryFolder folder;
  const std::string config =
      folder.write("scheduler.toml",
                   "[prices]\ncurrency = \"EUR\"\ngpu_hour = 3600000\n"
                   "[[tenant]]\nname = \"default\"\n"
                   "budgets = [{amount = 0.5, period = \"day\", action = \"queue\"}]\n");
  SchedulerProcess scheduler({"--config", config, "--metrics", "127.0.0.1:0"});
  SimulatedPoolds poolds(scheduler.address(), 1, 1);
  REQUIRE(poolds.await());
  REQUIRE(pool_admin(scheduler, {"policy", "set", "usage=0.1"}).status == 0);
  LeaseClient holder(connect(scheduler.address()), request_call(1, 500));
  REQUIRE(holder.granted());
  CHECK(scheduler.await_log("budget_exceeded"));
  LeaseClient waits(connect(scheduler.address()), request_call(1, 500));
  const auto queued = waits.queued(1);
  REQUIRE(queued);
  CHECK(eventually(
      [&] { return has(pool_admin(scheduler, {"queue"}).output, "the budget of tenant 'default'"); }));
  const Json tenants = Json::parse(pool_admin(scheduler, {"tenants", "--json"}).output);
  REQUIRE(tenants[0]["budgets"].size() == 1);
  CHECK(tenants[0]["budgets"][0]["unit"] == "EUR");
  CHECK(tenants[0]["budgets"][0]["spent"] > 0.5);
  const Json usage = Json::parse(pool_admin(scheduler, {"usage", "--json"}).output);
  CHECK(usage["currency"] == "EUR");
  CHECK(usage["groups"][0]["cost"].get<double>() ==
        Approx(usage["groups"][0]["leased_gpu_seconds"].get<double>() * 1000));
  const Json opencost =
      Json::parse(pool_admin(scheduler, {"usage", "--by", "tenant,model", "--opencost"}).output);
  REQUIRE(opencost.size() == 1);
  CHECK(opencost[0]["domain"] == "gpupool");
  CHECK(opencost[0]["currency"] == "EUR");
  REQUIRE(opencost[0]["costs"].size() == 1);
  const Json& cost = opencost[0]["costs"][0];
  CHECK(cost["account_name"] == "default");
  CHECK(cost["billed_cost"] > 0.5);
  CHECK(cost["list_unit_price"].get<double>() == Approx(3'600'000));
}
