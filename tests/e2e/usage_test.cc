// Accounting of a whole pool: the sums agree with poolds' own counts, although the scheduler is killed
// meanwhile.
#include "tests/e2e/leased_program.h"

using namespace gpupool;
using namespace gpupool::testing;
using Clock = std::chrono::steady_clock;

namespace {

constexpr double kShare = 0.2;  // of a GPU, as Leased asks for
constexpr double kSlack = 0.5;  // seconds, of the clocks of schedulers that are started one after another

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// What a poold has counted for the tenant, by its own books: leases that have ended are added to their
// tenant's.
struct Counted {
  uint64_t nanoseconds = 0, from_client = 0, to_client = 0;
};
Counted counted_by(Pool& pool) {
  Counted sum;
  for (const Json& tenant : parse_json(pool_admin(pool, {"tenants"}).output)) {
    sum.nanoseconds += tenant.at("gpu_nanoseconds").get<uint64_t>();
    sum.from_client += tenant.at("bytes_from_client").get<uint64_t>();
    sum.to_client += tenant.at("bytes_to_client").get<uint64_t>();
  }
  return sum;
}

bool has_used_more(Pool& pool, const Counted& before) {
  return eventually([&] { return counted_by(pool).nanoseconds > before.nanoseconds; }, kLongPatience);
}

void restart_scheduler(WholePool& pool) {
  pool.scheduler().kill();
  // The programs go on without a scheduler.
  Pool& busy = counted_by(pool.first()).nanoseconds > 0 ? pool.first() : pool.second();
  CHECK(has_used_more(busy, counted_by(busy)));
  pool.scheduler().start();
  REQUIRE(eventually([&] { return has(pool.pool_admin({"health"}), "2 open"); }));
}

}  // namespace

TEST_CASE("usage agrees with poold's own counts although the scheduler is killed meanwhile") {
  WholePool pool;
  REQUIRE(has(pool.pool_admin({"policy", "set", "usage=0.2"}), "usage"));
  const auto before = Clock::now();
  Clock::time_point working, ending;
  {
    Leased first(pool, {"--compute", "20", "--memory", "48MiB", "--label", "job=one"});
    working = Clock::now();
    {
      Leased second(pool, {"--compute", "20", "--memory", "48MiB", "--label", "job=two"});
      restart_scheduler(pool);
      second.expect_nothing_lost();
    }
    restart_scheduler(pool);
    CHECK(has(pool.pool_admin({"usage", "--by", "job"}), "one"));
    ending = Clock::now();
    first.expect_nothing_lost();
  }
  REQUIRE(pool.is_idle());
  const auto after = Clock::now();

  const Json usage = json_of(pool, {"usage", "--by", "job"}).at("groups");
  INFO(usage.dump());
  REQUIRE(usage.size() == 2);
  double gpu_seconds = 0;
  uint64_t from_client = 0, to_client = 0;
  for (const Json& group : usage) {
    CHECK(group.at("gpu_seconds") > 0);
    CHECK(group.at("used_memory_byte_seconds") > 0);
    gpu_seconds += group.at("gpu_seconds").get<double>();
    from_client += group.at("bytes_from_client").get<uint64_t>();
    to_client += group.at("bytes_to_client").get<uint64_t>();
  }
  const Json by_user = json_of(pool, {"usage", "--by", "user"}).at("groups");
  REQUIRE(by_user.size() == 1);
  CHECK(by_user.at(0).at("user") != "");
  const Counted one = counted_by(pool.first()), two = counted_by(pool.second());
  CHECK(gpu_seconds == Approx(static_cast<double>(one.nanoseconds + two.nanoseconds) * 1e-9).epsilon(1e-6));
  CHECK(from_client == one.from_client + two.from_client);
  CHECK(to_client == one.to_client + two.to_client);
  const double held = usage.at(0).at("leased_gpu_seconds").get<double>() / kShare;
  CHECK(held >= seconds_between(working, ending) - kSlack);
  CHECK(held <= seconds_between(before, after) + kSlack);
  CHECK(json_of(pool, {"usage", "--by", "job"}).at("groups") == usage);
}
