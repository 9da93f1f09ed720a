// Tests of pool-admin's tables, units, quota words and JSON for a poold.
#include "scheduler/admin/describe.h"
#include "scheduler/admin/quota_words.h"
#include "scheduler/admin/table.h"
#include "scheduler/admin/to_json.h"
#include "tests/support/catch.h"

using namespace gpupool::admin;
using gpupool::bytes_text;
using gpupool::Json;

namespace {

std::string error_of(const std::vector<std::string>& words) {
  const auto read = read_quota_words(words);
  return read ? "" : read.error().message;
}

}  // namespace

TEST_CASE("quota arguments change only the limits that they name") {
  const auto quota = read_quota_words({"memory=8GiB", "compute=12.5%", "mode=hard", "priority=best-effort",
                                       "bandwidth-to-device=1GB/s", "bandwidth_to_host=unlimited",
                                       "sessions=4", "queued-bytes=64MiB", "streams=unlimited"});
  REQUIRE(quota);
  CHECK(quota->memory_bytes() == 8ull << 30);
  CHECK(quota->compute_milli() == 125);
  CHECK(quota->mode() == Quota::HARD);
  CHECK(quota->priority() == Quota::BEST_EFFORT);
  CHECK(quota->to_device_bytes_per_second() == 1'000'000'000);
  CHECK(quota->has_to_host_bytes_per_second());
  CHECK(quota->to_host_bytes_per_second() == 0);
  CHECK(quota->sessions() == 4);
  CHECK(quota->queued_bytes() == 64u << 20);
  CHECK(quota->has_streams());
  CHECK_FALSE(quota->has_modules());
  CHECK_FALSE(quota->has_guaranteed_memory_bytes());
  CHECK(read_quota_words({"mode=partition"})->mode() == Quota::PARTITION);
}

TEST_CASE("an invalid quota argument is an error that names it") {
  for (const char* word :
       {"memory", "memory=", "memory=many", "memory=-1", "compute=0", "compute=100.1", "compute=ten",
        "compute=1.25", "compute=1.", "compute=-1", "mode=soft", "priority=high", "sessions=-1",
        "sessions=1.5", "sessions=99999999999", "bandwidth-to-host=fast", "=5"}) {
    INFO(word);
    const std::string key = std::string(word).substr(0, std::string(word).find('='));
    const std::string error = error_of({word});
    CHECK(error.find(key) != std::string::npos);
    CHECK_FALSE(error.empty());
  }
  CHECK(error_of({"memory=8"}) == "memory: '8' is 8 bytes: did you mean 8GiB?");
  CHECK(error_of({"guaranteed-memory=8"}) == "guaranteed-memory: '8' is 8 bytes: did you mean 8GiB?");
  CHECK(error_of({"memory=0"}).empty());
  CHECK(error_of({"memory=unlimited", "queued-bytes=4096"}).empty());
  CHECK(error_of({"color=red"}).find("memory") != std::string::npos);  // lists the keys
  CHECK(error_of({"mode=hard", "mode=elastic"}).find("twice") != std::string::npos);
  CHECK(error_of({"garanteed_memory=1GiB"}).find("did you mean 'guaranteed-memory'?") != std::string::npos);
  CHECK(error_of({"highest_priority=low"}).find("is a quota of a pool: use --scheduler HOST:PORT") !=
        std::string::npos);
}

TEST_CASE("a table is fitted by truncating cells and then dropping low-priority columns") {
  Table table({{"NUMBER", true}, {"PROGRAM", false, 8}, {"EXTRA", false, 0, 10}});
  table.add({"1", "a-program-with-a-long-name", "extra"});
  table.add({"22", "größe", ""});
  CHECK(table.text(0) ==
        "NUMBER  PROGRAM                     EXTRA\n"
        "     1  a-program-with-a-long-name  extra\n"
        "    22  größe\n");
  CHECK(table.text(30) ==
        "NUMBER  PROGRAM          EXTRA\n"
        "     1  a-program-with…  extra\n"
        "    22  größe\n");
  CHECK(table.text(20) ==
        "NUMBER  PROGRAM\n"
        "     1  a-progr…\n"
        "    22  größe\n");
  CHECK(table.text(3) == table.text(16));  // columns that cannot be cut or left out are always shown
}

TEST_CASE("a wrapping column continues on the next line") {
  Table table({{"ID"}, {"WHY", false, 8, 100, true}});
  table.add({"q1", "waits for größere GPUs"});
  table.add({"q2", ""});
  CHECK(table.text(16) ==
        "ID  WHY\n"
        "q1  waits for\n"
        "    größere GPUs\n"
        "q2\n");
  CHECK(wrapped("abcdefgh ij", 4) == std::vector<std::string>{"abcd", "efgh", "ij"});
  CHECK(wrapped("abcd", 4) == std::vector<std::string>{"abcd"});
  CHECK(wrapped("ää öö", 2) == std::vector<std::string>{"ää", "öö"});
  CHECK(wrapped("", 4) == std::vector<std::string>{""});
  CHECK(wrapped(" ab", 2) == std::vector<std::string>{" a", "b"});
  CHECK(wrapped("a  b", 2) == std::vector<std::string>{"a ", "b"});
  CHECK(wrapped("ä b", 1) == std::vector<std::string>{"ä", "b"});
}

TEST_CASE("texts are truncated between UTF-8 characters") {
  CHECK(shortened("größe", 5) == "größe");
  CHECK(shortened("größe", 4) == "grö…");
  CHECK(shortened("größe", 1) == "…");
  CHECK(shortened("größe", 0) == "");
}

TEST_CASE("sizes and durations are formatted for reading") {
  CHECK(bytes_text(0) == "0 B");
  CHECK(bytes_text(1023) == "1023 B");
  CHECK(bytes_text(1536) == "1.5 KiB");
  CHECK(bytes_text(8ull << 30) == "8.0 GiB");
  CHECK(bytes_text(~0ull) == "16.0 EiB");
  CHECK(duration_text(std::chrono::milliseconds(59'999)) == "59s");
  CHECK(duration_text(std::chrono::minutes(61)) == "1h 01m");
  CHECK(duration_text(std::chrono::hours(49)) == "2d 01h");
}

TEST_CASE("absent quota limits are null in JSON") {
  Quota quota;
  quota.set_compute_milli(500);
  quota.set_memory_bytes(4096);
  const Json json = json_of(quota);
  CHECK(json["memory_bytes"] == 4096);
  CHECK(json["streams"].is_null());
  CHECK(json["compute_percent"].dump() == "50");
  CHECK(json["gpus"].empty());
  CHECK(json["mode"] == "elastic");
  quota.set_mode(Quota::PARTITION);
  CHECK(json_of(quota)["mode"] == "partition");
}

TEST_CASE("shares of single GPUs are shown beside those of each") {
  google::protobuf::RepeatedPtrField<Tenant> tenants;
  Tenant& tenant = *tenants.Add();
  tenant.set_name("research");
  tenant.set_configured(true);
  Quota& quota = *tenant.mutable_quota();
  quota.set_compute_milli(500);
  quota.set_memory_bytes(4ull << 30);
  GpuQuota& other = *quota.add_gpus();
  other.set_gpu(1);
  other.set_compute_milli(255);
  CHECK(tenants_text(tenants, 0).find("50 %, GPU 1: 25.5 %") != std::string::npos);
  CHECK(tenants_text(tenants, 0).find("4.0 GiB, GPU 1: -") != std::string::npos);
  CHECK(quotas_text(tenants, 0).find("  GPU 1") != std::string::npos);
  CHECK(json_of(quota)["gpus"].dump() ==
        R"([{"gpu":1,"memory_bytes":null,"guaranteed_memory_bytes":0,"compute_percent":25.5}])");
}

TEST_CASE("a tenant's partition is shown with its multiprocessors, or that it has none") {
  google::protobuf::RepeatedPtrField<Tenant> tenants;
  Tenant& tenant = *tenants.Add();
  tenant.set_name("research");
  tenant.set_configured(true);
  tenant.mutable_quota()->set_compute_milli(500);
  CHECK(tenants_text(tenants, 0).find("50 %  ") != std::string::npos);
  tenant.mutable_quota()->set_mode(Quota::PARTITION);
  CHECK(tenants_text(tenants, 0).find("50 %, not placed") != std::string::npos);
  tenant.add_partition_multiprocessors(64);
  tenant.add_partition_multiprocessors(8);
  CHECK(tenants_text(tenants, 0).find("50 %, 64 and 8 SMs") != std::string::npos);
  CHECK(json_of(tenant)["partition_multiprocessors"] == Json{64, 8});
}
