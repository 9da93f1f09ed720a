// Walks the table of the kinds of quota (protocol/control/quota.def): each kind must be readable and visible
// wherever tenants and operators meet quotas.
#include "protocol/control/quota_kinds.h"

#include <toml++/toml.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>

#include "protocol/control/quota_fields.h"
#include "scheduler/admin/describe.h"
#include "scheduler/admin/quota_words.h"
#include "scheduler/admin/to_json.h"
#include "server/poold/admin/metrics.h"
#include "server/quota/accounts.h"
#include "server/quota/quota_members.h"
#include "server/tenants/quota_messages.h"
#include "server/tenants/tenants_file.h"
#include "tests/support/catch.h"

using namespace gpupool;
using quota::field_of;
using quota::Kind;
using quota::kKinds;
using quota::member_of;
using quota::Unit;

namespace {

// A value of a unit that is no kind's default, as each place writes it.
struct Sample {
  uint64_t value;
  std::string in_file, word, in_table;
  Json in_json;
};

Sample sample_of(Unit unit) {
  switch (unit) {
    case Unit::memory:
    case Unit::guarantee:
    case Unit::bytes: return {8ull << 30, "'8GiB'", "8GiB", "8.0 GiB", 8ull << 30};
    case Unit::rate: return {1u << 20, "'1MiB/s'", "1MiB/s", "1.0 MiB/s", 1u << 20};
    case Unit::count: return {7, "7", "7", "7", 7};
    case Unit::percent: return {125, "12.5", "12.5", "12.5 %", 12.5};
    case Unit::mode: return {1, "'hard'", "hard", "hard", "hard"};
    case Unit::timeout: return {30, "30", "30", "30 s", 30};
    case Unit::priority:
      return {2, "'latency-critical'", "latency-critical", "latency-critical", "latency-critical"};
  }
  return {};
}

Result<std::vector<server::Tenant>> read_file(const std::string& text) {
  return server::read_tenants(toml::parse(text));
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A tenant with the sample as the quota of this kind.
admin::Tenant tenant_with(const Kind& kind) {
  admin::Tenant tenant;
  tenant.set_name("t");
  tenant.set_configured(true);
  *tenant.mutable_quota() = server::to_message({});
  field_of(kind).set(*tenant.mutable_quota(), sample_of(kind.unit).value);
  return tenant;
}

}  // namespace

TEST_CASE("each kind of quota is read from the configuration file with its key") {
  for (const Kind& kind : kKinds) {
    INFO(kind.key);
    const Sample sample = sample_of(kind.unit);
    for (const std::string& key : {std::string(kind.key), quota::word_of(kind)}) {
      const auto tenants = read_file("[default_quota]\n" + key + " = " + sample.in_file);
      if (!tenants) FAIL(tenants.error().message);
      const quota::Quota& quota = tenants->at(0).quota;
      CHECK(member_of(kind).get(quota) == sample.value);
      quota::Quota others = quota;
      member_of(kind).set(others, member_of(kind).get({}));
      CHECK(others == quota::Quota{});
    }
    const auto tenants = read_file("[[tenant]]\nname = 't'\n[tenant.gpu.1]\n" + std::string(kind.key) +
                                   " = " + sample.in_file);
    CHECK(static_cast<bool>(tenants) == kind.per_gpu);
    if (tenants && kind.per_gpu)
      CHECK(member_of(kind).get_of_gpu(tenants->at(0).quota.of(1)) == sample.value);
    CHECK_FALSE(read_file("[default_quota]\n" + std::string(kind.key) + " = 'nonsense'"));
  }
}

TEST_CASE("each kind of quota is set and shown over poold's admin socket") {
  for (const Kind& kind : kKinds) {
    INFO(kind.key);
    const Sample sample = sample_of(kind.unit);
    const auto changes = admin::read_quota_words({quota::word_of(kind) + "=" + sample.word});
    if (!changes) FAIL(changes.error().message);
    CHECK(field_of(kind).has(*changes));
    admin::Quota others = *changes;
    field_of(kind).clear(others);
    CHECK(others.ByteSizeLong() == 0);

    quota::Quota quota;
    server::apply(*changes, quota);
    CHECK(member_of(kind).get(quota) == sample.value);
    const admin::Quota shown = server::to_message(quota);
    CHECK(field_of(kind).get(shown) == sample.value);
    for (const Kind& other : kKinds) CHECK(field_of(other).has(shown));  // replies have all fields

    quota::Quota with_gpu;
    const bool applied = static_cast<bool>(server::apply(*changes, with_gpu.gpus[1]));
    CHECK(applied == kind.per_gpu);
    if (kind.per_gpu) CHECK(field_of(kind).get_of_gpu(server::to_message(with_gpu).gpus(0)) == sample.value);
  }
}

TEST_CASE("each kind of quota has a column in pool-admin and a field in its JSON output") {
  std::set<std::string> titles, fields;
  for (const Kind& kind : kKinds) {
    INFO(kind.key);
    const Sample sample = sample_of(kind.unit);
    const admin::Tenant tenant = tenant_with(kind);
    const std::string table = admin::quota_text("t", tenant.quota());
    CHECK(titles.insert(kind.title).second);
    CHECK(contains(table, kind.title));
    CHECK(contains(table, sample.in_table));

    const std::string field = quota::json_key_of(kind);
    CHECK(fields.insert(field).second);
    CHECK(admin::json_of(tenant.quota())[field] == sample.in_json);
    CHECK(admin::json_of(admin::Quota())[field].is_null() == quota::is_limit(kind.unit));
    if (!kind.per_gpu) continue;
    admin::Quota quota = tenant.quota();
    field_of(kind).set_of_gpu(*quota.add_gpus(), sample.value);
    CHECK(admin::json_of(quota)["gpus"][0][field] == sample.in_json);
  }
}

TEST_CASE("each kind of quota with a metric is on the page of metrics") {
  std::set<std::string> metrics;
  for (const Kind& kind : kKinds) {
    INFO(kind.key);
    if (!kind.metric.name) continue;
    CHECK(metrics.insert(kind.metric.name).second);
    admin::Snapshot snapshot;
    snapshot.add_gpus()->set_index(0);
    *snapshot.add_tenants() = tenant_with(kind);
    const std::string page = server::metrics_text(snapshot);
    const std::string name = std::string("gpupool_") + kind.metric.name;
    CHECK(contains(page, "# HELP " + name + " " + kind.metric.help + "\n"));
    CHECK(contains(page, "\n" + name + "{tenant=\"t\"" + (kind.per_gpu ? ",gpu=\"0\"" : "") + "} "));
  }
}

TEST_CASE("each kind of quota is described in the help text and in docs/operations.md") {
  std::ifstream in(OPERATIONS_PAGE);
  const std::string page((std::istreambuf_iterator<char>(in)), {});
  REQUIRE_FALSE(page.empty());
  const std::string help = admin::quota_keys_help();
  for (const Kind& kind : kKinds) {
    INFO(kind.key);
    CHECK(contains(help, quota::word_of(kind)));
    CHECK(std::string(kind.help).ends_with("]"));
    CHECK(contains(page, "| `" + std::string(kind.key) + "` | " + kind.help + " |\n"));
    CHECK((!kind.metric.name || contains(page, "`gpupool_" + std::string(kind.metric.name) + "`")));
  }
}

TEST_CASE("each kind of quota that workers enforce reaches their tenant's account") {
  quota::Accounts accounts;
  const auto account = accounts.of("t");
  REQUIRE(account);
  quota::Quota quota;
#define QUOTA_IN_WORKERS(type, member, with_memory, unit, key, title, importance, metric, help) \
  quota.member = 5;                                                                             \
  REQUIRE(accounts.set("t", quota));                                                            \
  CHECK((**account)->member == 5);                                                              \
  quota.member = 0;                                                                             \
  quota.each.memory_bytes = 1 << 30;                                                            \
  REQUIRE(accounts.set("t", quota));                                                            \
  CHECK((**account)->member == with_memory);                                                    \
  quota.each.memory_bytes = 0;
#include "protocol/control/quota.def"
}

TEST_CASE("the help text lists the keys by the units of their values") {
  // Without the breaks of lines.
  std::string expected = "Quota keys:";
  std::set<std::string> listed;
  for (const Kind& first : kKinds) {
    const std::string example = quota::example_of(first.unit);
    if (!listed.insert(example).second) continue;
    for (const Kind& kind : kKinds) {
      if (quota::example_of(kind.unit) == example) expected += " " + quota::word_of(kind) + ",";
    }
    if (example.empty()) continue;
    expected.pop_back();
    expected += " (" + example + "),";
  }
  expected.back() = ';';
  expected += " unlimited or 0 removes a limit.";

  std::string help = admin::quota_keys_help();
  for (size_t begin = 0; begin < help.size();) {
    const size_t end = std::min(help.find('\n', begin), help.size());
    CHECK(end - begin <= 128);
    begin = end + 1;
  }
  std::replace(help.begin(), help.end(), '\n', ' ');
  CHECK(help == expected);
}
