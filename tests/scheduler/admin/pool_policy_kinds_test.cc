// Walks the table of the numbers and switches of a pool's policy (protocol/control/pool_policy.def): each
// must be readable and visible wherever operators meet the policy.
#include "protocol/control/pool_policy_kinds.h"

#include <set>

#include "scheduler/admin/pool/describe.h"
#include "scheduler/admin/pool/words.h"
#include "scheduler/core/tenant.h"
#include "scheduler/json/pool_json.h"
#include "tests/support/catch.h"

using namespace gpupool;
using pool::kPolicyKinds;
using pool::PolicyKind;
using pool::PolicyUnit;

namespace {

// A permitted value that is not the default, as `policy set` and `policy show` write it.
struct PolicySample {
  uint64_t value;
  std::string word, shown;
};

PolicySample policy_sample(const PolicyKind& kind) {
  switch (kind.unit) {
    case PolicyUnit::on_off:
      return {1 - kind.initial, kind.initial ? "off" : "on", kind.initial ? "off" : "on"};
    case PolicyUnit::end_suspend: return {1, "suspend", "suspend"};
    case PolicyUnit::seconds:
    case PolicyUnit::seconds_limit: return {12'500, "12.5", "12.5 s"};
    case PolicyUnit::bytes_limit: return {3ull << 30, "3GiB", "3GiB"};
    case PolicyUnit::rate: return {2'000'000'000, "2GB/s", "2GB/s"};
    case PolicyUnit::count:
    case PolicyUnit::count_limit: return {17, "17", "17"};
  }
  return {};
}

}  // namespace

TEST_CASE("each number of a pool's policy has a word, a line and a JSON field") {
  std::set<std::string> keys, fields;
  for (const PolicyKind& kind : kPolicyKinds) {
    INFO(kind.key);
    const PolicySample sample = policy_sample(kind);
    REQUIRE(sample.value != kind.initial);
    const auto changes = admin::read_policy({std::string(kind.key) + "=" + sample.word});
    if (!changes) FAIL(changes.error().message);
    for (const PolicyKind& other : kPolicyKinds) CHECK(other.has(*changes) == (&other == &kind));
    CHECK(kind.get(*changes) == sample.value);
    CHECK_FALSE(scheduler::check_policy(*changes));
    CHECK_FALSE(admin::read_policy({std::string(kind.key) + "=nonsense"}));

    pool::Policy policy = scheduler::default_policy();
    CHECK(kind.has(policy));
    CHECK(kind.get(policy) == kind.initial);
    policy.MergeFrom(*changes);
    CHECK(admin::policy_text(policy).find("\n" + std::string(kind.key) + "=" + sample.shown + "\n") !=
          std::string::npos);
    CHECK(keys.insert(kind.key).second);
    CHECK(fields.insert(kind.member).second);
    CHECK(pool::json_of(policy)[kind.member] ==
          Json(kind.unit == PolicyUnit::on_off || kind.unit == PolicyUnit::end_suspend
                   ? Json(sample.value != 0)
                   : Json(sample.value)));
  }
}

TEST_CASE("the limits of each number of a pool's policy are enforced and named") {
  for (const PolicyKind& kind : kPolicyKinds) {
    INFO(kind.key);
    CHECK(kind.lowest <= kind.initial);
    CHECK(kind.initial <= kind.highest);
    REQUIRE(kind.highest <= kind.largest);
    pool::Policy policy;
    for (const uint64_t good : {kind.lowest, kind.highest}) {
      kind.set(policy, good);
      CHECK_FALSE(scheduler::check_policy(policy));
    }
    for (const bool low : {true, false}) {
      if (low ? kind.lowest == 0 : kind.highest == kind.largest) continue;
      kind.set(policy, low ? kind.lowest - 1 : kind.highest + 1);
      const auto wrong = scheduler::check_policy(policy);
      REQUIRE(wrong);
      CHECK(wrong->starts_with(std::string(kind.key) + " must be "));
    }
  }
  pool::Policy policy;
  policy.set_heartbeat_ms(1);
  CHECK(scheduler::check_policy(policy) == "heartbeat must be 0.1 to 60 seconds");
}
