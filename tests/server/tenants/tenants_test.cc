#include "server/tenants/tenants.h"

#include "tests/support/catch.h"

using namespace gpupool;
using server::Tenant;
using server::Tenants;

namespace {

Tenant tenant(const std::string& name, uint64_t memory = 0) {
  Tenant made;
  made.name = name;
  made.quota.each.memory_bytes = memory;
  return made;
}

}  // namespace

TEST_CASE("without configuration there is one tenant without limits") {
  const Tenants tenants;
  REQUIRE(tenants.all().size() == 1);
  REQUIRE(tenants.find("default"));
  CHECK(tenants.find("default")->quota == quota::Quota{});
  CHECK_FALSE(tenants.has_credentials());
}

TEST_CASE("listeners are called for every tenant first and for every later change") {
  Tenants tenants({tenant("a", 1), tenant("b", 2)});
  std::vector<std::pair<std::string, uint64_t>> heard;
  tenants.on_change(
      [&](const Tenant& changed) { heard.emplace_back(changed.name, changed.quota.each.memory_bytes); });
  CHECK(heard == std::vector<std::pair<std::string, uint64_t>>{{"a", 1}, {"b", 2}});
  heard.clear();

  REQUIRE(tenants.set_quota("b", {.each = {.memory_bytes = 7}}));
  REQUIRE(tenants.set_quota("b", {.each = {.memory_bytes = 7}}));  // no change
  CHECK(tenants.find("b")->quota.each.memory_bytes == 7);
  CHECK(heard == std::vector<std::pair<std::string, uint64_t>>{{"b", 7}});
  CHECK(tenants.set_quota("c", {}).error().code == ErrorCode::unavailable);
  CHECK(tenants.set_quota("b", {.each = {.compute_milli = 0}}).error().code == ErrorCode::invalid);
  heard.clear();

  tenants.replace({tenant("a", 1), tenant("b", 2), tenant("c", 3)});
  CHECK(heard == std::vector<std::pair<std::string, uint64_t>>{{"b", 2}, {"c", 3}});
  tenants.replace({tenant("c", 3)});
  CHECK(tenants.find("a") == nullptr);
}

TEST_CASE("partitions never exceed the GPU") {
  Tenants tenants({tenant("a"), tenant("b"), tenant("c")});
  CHECK(server::partitions_of(tenants.all()).empty());
  REQUIRE(tenants.set_quota("a", {.each = {.compute_milli = 600}, .mode = quota::Mode::partition}));
  REQUIRE(
      tenants.set_quota("b", {.each = {.compute_milli = 600}}));  // a share of time, not of multiprocessors
  const auto refused =
      tenants.set_quota("b", {.each = {.compute_milli = 600}, .mode = quota::Mode::partition});
  CHECK(refused.error().message == "compute: the tenants' partitions would use 120 % of each GPU");
  CHECK(tenants.find("b")->quota.mode == quota::Mode::elastic);
  REQUIRE(tenants.set_quota("a", {.each = {.compute_milli = 1000},
                                  .mode = quota::Mode::partition}));  // its previous share is not counted
  REQUIRE(server::partitions_of(tenants.all()).size() == 1);
  CHECK(server::partitions_of(tenants.all()).at("a")[7] == 1000);

  // A GPU with shares of its own has its own sum.
  REQUIRE(tenants.set_quota("a", {.each = {.compute_milli = 400},
                                  .gpus = {{2, {.compute_milli = 900}}},
                                  .mode = quota::Mode::partition}));
  const auto of_one =
      tenants.set_quota("b", {.each = {.compute_milli = 125}, .mode = quota::Mode::partition});
  CHECK(of_one.error().message == "compute: the tenants' partitions would use 102.5 % of GPU 2");
  REQUIRE(tenants.set_quota("b", {.each = {.compute_milli = 125},
                                  .gpus = {{2, {.compute_milli = 100}}},
                                  .mode = quota::Mode::partition}));
  CHECK(server::partitions_of(tenants.all()).at("b")[1] == 125);
  CHECK(server::partitions_of(tenants.all()).at("b")[2] == 100);
}

TEST_CASE("limits by UUID apply once the GPUs are known") {
  const std::string uuid = server::gpu_uuid("gpu-00112233-4455-6677-8899-AABBCCDDEEFF");
  CHECK(uuid == "GPU-00112233-4455-6677-8899-aabbccddeeff");
  for (const char* const other :
       {"", "GPU-00112233-4455-6677-8899-aabbccddeef", "GPU-00112233-4455-6677-8899-aabbccddeefg",
        "MIG-00112233-4455-6677-8899-aabbccddeeff"}) {
    CHECK(server::gpu_uuid(other) == "");
  }
  Tenant one = tenant("a", 8);
  one.named_gpus[uuid] = {.memory_bytes = 3};
  Tenants tenants({one, tenant("b", 8)});
  std::vector<std::string> heard;
  tenants.on_change([&](const Tenant& changed) { heard.push_back(changed.name); });
  heard.clear();
  tenants.set_gpu_uuids({"GPU-0", uuid});
  CHECK(heard == std::vector<std::string>{"a"});
  CHECK(tenants.find("a")->quota.of(1) == quota::GpuShare{.memory_bytes = 3});
  CHECK(tenants.find("a")->quota.of(0) == quota::GpuShare{.memory_bytes = 8});
  // Reloading an unchanged configuration changes nothing.
  tenants.replace({one, tenant("b", 8)});
  CHECK(heard.size() == 1);
  one.named_gpus[uuid] = {.memory_bytes = 4};
  tenants.replace({one, tenant("b", 8)});
  CHECK(heard == std::vector<std::string>{"a", "a"});
  CHECK(tenants.find("a")->quota.of(1).memory_bytes == 4);
}

TEST_CASE("invalid tenants are refused with the reason") {
  const auto why = [](std::vector<Tenant> tenants) {
    const auto checked = server::check_tenants(tenants);
    return checked ? std::string() : checked.error().message;
  };
  CHECK(why({tenant("a"), tenant("b-1_x.y")}) == "");
  CHECK(why({tenant("a b")}).find("letters, digits") != std::string::npos);
  CHECK(why({tenant("")}).find("letters, digits") != std::string::npos);
  CHECK(why({tenant("a"), tenant("a")}) == "tenant 'a': duplicate name");
  Tenant greedy = tenant("a", 10);
  greedy.quota.each.guaranteed_memory_bytes = 11;
  CHECK(why({greedy}) == "tenant 'a': quota.guaranteed_memory: must not be more than memory");
  Tenant one = tenant("a"), other = tenant("b");
  one.certificates = other.certificates = {"x"};
  CHECK(why({one, other}) == "tenant 'b': certificates: duplicate name");
}
