// Walks the table of the kinds of quota of a tenant in a pool (protocol/control/pool_quota.def): each kind
// must be readable and visible wherever tenants and operators meet quotas.
#include "protocol/control/pool_quota_kinds.h"

#include <set>

#include "scheduler/admin/pool/describe.h"
#include "scheduler/admin/pool/words.h"
#include "scheduler/core/tenant.h"
#include "scheduler/json/pool_json.h"
#include "scheduler/service/callers.h"
#include "tests/support/catch.h"

using namespace gpupool;
using pool::kQuotaKinds;
using pool::QuotaKind;
using pool::QuotaUnit;

namespace {

// A value of a unit that is no kind's default, as each place writes it.
struct Sample {
  uint64_t value;
  std::string in_file, word, in_table;
  Json in_json;
};

Sample sample_of(QuotaUnit unit) {
  switch (unit) {
    case QuotaUnit::gpus: return {2500, "2.5", "2.5", "2.5", 2500};
    case QuotaUnit::memory: return {8ull << 30, "'8GiB'", "8GiB", "8.0 GiB", 8ull << 30};
    case QuotaUnit::rate: return {1u << 20, "'1MiB/s'", "1MiB/s", "1.0 MiB/s", 1u << 20};
    case QuotaUnit::count:
    case QuotaUnit::weight: return {7, "7", "7", "7", 7};
    case QuotaUnit::priority: return {lease::BEST_EFFORT, "'low'", "low", "low", "low"};
  }
  return {};
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Result<scheduler::Callers> read_file(const std::string& key, const std::string& value) {
  return scheduler::Callers::read(
      toml::parse("[[tenant]]\nname = 't'\nquota = { " + key + " = " + value + " }"));
}

}  // namespace

TEST_CASE("each kind of a pool's quota is read from the configuration file with its key") {
  for (const QuotaKind& kind : kQuotaKinds) {
    INFO(kind.key);
    const Sample sample = sample_of(kind.unit);
    for (const std::string& key : {std::string(kind.key), kind.word()}) {
      const auto callers = read_file(key, sample.in_file);
      if (!callers) FAIL(callers.error().message);
      const pool::TenantQuota& quota = callers->tenants().at(0).quota;
      CHECK(kind.has(quota));
      CHECK(kind.get(quota) == sample.value);
    }
    CHECK_FALSE(read_file(kind.key, "'nonsense'"));
  }
}

TEST_CASE(
    "each kind of a pool's quota has a word and a column in pool-admin and a field in its JSON output") {
  std::set<std::string> titles, fields;
  for (const QuotaKind& kind : kQuotaKinds) {
    INFO(kind.key);
    const Sample sample = sample_of(kind.unit);
    const auto changes = admin::read_tenant_quota({kind.word() + "=" + sample.word});
    if (!changes) FAIL(changes.error().message);
    for (const QuotaKind& other : kQuotaKinds) CHECK(other.has(*changes) == (&other == &kind));
    CHECK(kind.get(*changes) == sample.value);
    CHECK_FALSE(admin::read_tenant_quota({kind.word() + "=nonsense"}));

    pool::TenantQuota quota = scheduler::default_quota();
    CHECK(kind.has(quota));
    CHECK(kind.get(quota) == kind.initial);
    quota.MergeFrom(*changes);
    const std::string table = admin::quota_text("t", quota);
    CHECK(titles.insert(kind.title).second);
    CHECK(contains(table, kind.title));
    CHECK(contains(table, sample.in_table));
    CHECK(fields.insert(kind.member).second);
    CHECK(pool::json_of(quota)[kind.member] == sample.in_json);
  }
}
