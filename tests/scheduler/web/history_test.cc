// Tests of the history of usage, and of GPUs' utilization.
#include "scheduler/web/history.h"

#include <nlohmann/json.hpp>

#include "scheduler/web/gpu_utilization.h"
#include "scheduler/web/page.h"
#include "tests/support/catch.h"

using namespace gpupool::pool;

namespace {

constexpr int64_t kBegin = 1'700'000'000'000;

PoolSnapshot snapshot_at(int64_t at_ms, const std::vector<std::pair<std::string, uint64_t>>& tenants) {
  PoolSnapshot snapshot;
  snapshot.set_taken_ms(at_ms);
  snapshot.mutable_pool()->set_compute_milli(8000);
  for (const auto& [name, milli] : tenants) {
    TenantState& tenant = *snapshot.add_tenants();
    tenant.set_name(name);
    tenant.set_compute_milli(milli);
    snapshot.mutable_pool()->set_compute_milli_leased(snapshot.pool().compute_milli_leased() + milli);
  }
  return snapshot;
}

PoolSnapshot one_gpu(int64_t heard_ms, uint64_t nanoseconds, const std::string& node = "n") {
  PoolSnapshot snapshot;
  snapshot.set_taken_ms(heard_ms);
  NodeState& its = *snapshot.add_nodes();
  its.set_name(node);
  its.set_heard_ms(heard_ms);
  PoolGpu& gpu = *its.add_gpus();
  gpu.set_node(node);
  gpu.set_uuid("GPU-1");
  gpu.set_gpu_nanoseconds(nanoseconds);
  return snapshot;
}

const PoolGpu& gpu_of(const PoolSnapshot& snapshot) {
  return snapshot.nodes(0).gpus(0);
}

}  // namespace

TEST_CASE("the history has a point per minute, the mean of its samples") {
  History history;
  for (int i = 0; i < 12; ++i)
    history.note(snapshot_at(kBegin + i * 10'000, {{"a", i < 3 ? 2000 : 1000}, {"b", 0}}), i % 2 ? 500 : 700);
  const auto points = history.points();
  REQUIRE(points.size() == 2);
  CHECK(points[0].begin_ms == kBegin);
  CHECK(points[0].end_ms == kBegin + History::kPointMs);
  CHECK(points[1].begin_ms == points[0].end_ms);
  CHECK(points[0].compute_milli == 8000);
  CHECK(points[0].compute_milli_leased == 1500);
  CHECK(points[0].compute_milli_used == 600);
  CHECK(points[0].tenants == std::vector<std::pair<std::string, uint64_t>>{{"a", 1500}});
  CHECK(points[1].tenants == std::vector<std::pair<std::string, uint64_t>>{{"a", 1000}});
}

TEST_CASE("many viewers add no weight to a moment of the history") {
  History history;
  for (int64_t at = 0; at < History::kSampleMs; at += 100)
    history.note(snapshot_at(kBegin + at, {{"a", 4000}}), {});
  history.note(snapshot_at(kBegin + History::kSampleMs, {{"a", 2000}}), {});
  REQUIRE(history.points().size() == 1);
  CHECK(history.points()[0].compute_milli_leased == 3000);
  CHECK_FALSE(history.points()[0].compute_milli_used);
}

TEST_CASE("the history is bounded to 24 hours") {
  History history;
  for (int64_t at = 0; at <= 2 * History::kKeptMs; at += History::kSampleMs)
    history.note(snapshot_at(kBegin + at, {{"a", 1000}}), {});
  const auto points = history.points();
  CHECK(points.size() <= static_cast<size_t>(History::kKeptMs / History::kPointMs) + 1);
  CHECK(points.size() >= static_cast<size_t>(History::kKeptMs / History::kPointMs) - 1);
  CHECK(points.front().end_ms > kBegin + History::kKeptMs);
}

TEST_CASE("a time without samples is a gap in the history, not a long point") {
  History history;
  history.note(snapshot_at(kBegin, {{"a", 1000}}), {});
  history.note(snapshot_at(kBegin + 50'000, {{"a", 3000}}), {});
  const auto points = history.points();
  REQUIRE(points.size() == 2);
  CHECK(points[0].end_ms == kBegin + History::kSampleMs);
  CHECK(points[1].begin_ms == kBegin + 50'000);
}

TEST_CASE("a clock that is set back leaves no points in the future") {
  History history;
  for (int i = 0; i < 60; ++i) history.note(snapshot_at(kBegin + i * 10'000, {{"a", 1000}}), {});
  history.note(snapshot_at(kBegin + 100'000, {{"a", 2000}}), {});
  const auto points = history.points();
  REQUIRE(points.size() == 2);
  CHECK(points[0].end_ms == kBegin + 60'000);
  CHECK(points[1].begin_ms == kBegin + 100'000);
}

TEST_CASE("the history keeps the largest tenants of a point by name and the sum of the others") {
  History history;
  std::vector<std::pair<std::string, uint64_t>> tenants;
  for (size_t i = 0; i < History::kMostTenants + 5; ++i)
    tenants.emplace_back("t" + std::to_string(i), 100 + i);
  history.note(snapshot_at(kBegin, tenants), {});
  const auto point = history.points().at(0);
  REQUIRE(point.tenants.size() == History::kMostTenants);
  CHECK(point.tenants[0].first == "t" + std::to_string(History::kMostTenants + 4));
  CHECK(point.others_milli == 100 + 101 + 102 + 103 + 104);
}

TEST_CASE("the history's JSON names each tenant once") {
  History history;
  CHECK(history.json()["points"].empty());
  CHECK(history.json()["begun_ms"].is_null());
  for (int i = 0; i < 12; ++i)
    history.note(snapshot_at(kBegin + i * 10'000, {{"<b>", 1000}, {"a", 500}}), {});
  const auto json = nlohmann::json::parse(history.json().dump());
  CHECK(json["kept_ms"] == History::kKeptMs);
  CHECK(json["begun_ms"] == kBegin);
  CHECK(json["tenants"] == nlohmann::json::array({"<b>", "a"}));
  const auto expected = nlohmann::json::parse("[[0,1000],[1,500]]");
  CHECK(json["points"][1][6] == expected);
  CHECK(json["points"][1][3] == 1500);
  CHECK(json["points"][1][4].is_null());
}

TEST_CASE("a GPU's utilization is its counter's increase between two reports") {
  GpuUtilization utilization;
  utilization.note(one_gpu(kBegin, 5'000'000'000));
  CHECK_FALSE(utilization.milli(gpu_of(one_gpu(kBegin, 0))));
  CHECK_FALSE(utilization.total_milli());
  utilization.note(one_gpu(kBegin + 1'000, 5'900'000'000));  // too soon to measure
  CHECK_FALSE(utilization.total_milli());
  const PoolSnapshot later = one_gpu(kBegin + 10'000, 7'500'000'000);
  utilization.note(later);
  CHECK(utilization.milli(gpu_of(later)) == 250u);
  CHECK(utilization.total_milli() == 250u);
  utilization.note(later);  // no new report
  CHECK(utilization.milli(gpu_of(later)) == 250u);
  const auto json = nlohmann::json::parse(page_json(later, utilization));
  CHECK(json["nodes"][0]["gpus"][0]["compute_milli_used"] == 250);
  CHECK(json["pool"]["compute_milli_used"] == 250);
}

TEST_CASE(
    "a GPU's utilization is unknown after a restart of its node, while it is silent, and when it is gone") {
  GpuUtilization utilization;
  utilization.note(one_gpu(kBegin, 5'000'000'000));
  utilization.note(one_gpu(kBegin + 10'000, 6'000'000'000));
  REQUIRE(utilization.total_milli() == 100u);
  utilization.note(one_gpu(kBegin + 20'000, 1'000));
  CHECK_FALSE(utilization.total_milli());
  utilization.note(one_gpu(kBegin + 30'000, 1'000'001'000));
  REQUIRE(utilization.total_milli() == 100u);
  PoolSnapshot silent = one_gpu(kBegin + 30'000, 1'000'001'000);
  silent.set_taken_ms(kBegin + 31'000 + GpuUtilization::kSilentMs);
  utilization.note(silent);
  CHECK_FALSE(utilization.total_milli());
  CHECK(nlohmann::json::parse(page_json(silent, utilization))["pool"]["compute_milli_used"].is_null());
  utilization.note(one_gpu(kBegin + 80'000, 0, "other"));
  CHECK_FALSE(utilization.milli(gpu_of(silent)));
}

TEST_CASE("a GPU's utilization is at most all of its time") {
  GpuUtilization utilization;
  utilization.note(one_gpu(kBegin, 0));
  utilization.note(one_gpu(kBegin + 5'000, 60'000'000'000));
  CHECK(utilization.total_milli() == 1000u);
}
