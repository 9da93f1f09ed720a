// A whole pool for tests: pool-scheduler and two poolds with two softgpu devices each.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "tests/e2e/pool.h"
#include "tests/scheduler/service/scheduler_process.h"
#include "tests/support/catch.h"
#include "tests/support/has.h"

namespace gpupool::testing {

class WholePool {
 public:
  // `first`, `second`: additional environment variables of the two poolds; `options` of both.
  explicit WholePool(const Environment& first = {}, const Environment& second = {},
                     const std::vector<std::string>& options = {})
      : first_(devices(first), member("one", options)), second_(devices(second), member("two", options)) {
    REQUIRE(eventually([&] { return has(pool_admin({"health"}), "2 open"); }));
    for (Pool* const pool : {&first_, &second_}) REQUIRE(pool->poold().await_log("scheduler_attends"));
  }

  SchedulerProcess& scheduler() { return scheduler_; }
  Pool& first() { return first_; }
  Pool& second() { return second_; }
  std::string url() const { return "pool://" + scheduler_.address(); }
  std::vector<std::string> command(std::vector<std::string> wishes,
                                   const std::vector<std::string>& program) const {
    wishes.insert(wishes.begin(), {program_path("pool-run"), "--server", url()});
    wishes.push_back("--");
    wishes.insert(wishes.end(), program.begin(), program.end());
    return wishes;
  }
  Finished run_pool_admin(std::vector<std::string> words) const {
    words.insert(words.begin(), {program_path("pool-admin"), "--scheduler", scheduler_.address()});
    return run_to_end(words);
  }
  std::string pool_admin(std::vector<std::string> words) const {
    return run_pool_admin(std::move(words)).output;
  }
  bool is_idle() const {
    return eventually([&] { return has(pool_admin({"leases"}), "no leases"); });
  }

 private:
  static Environment devices(Environment more) {
    more.insert({{"SOFTGPU_MEMORY", "256MiB"}, {"SOFTGPU_DEVICES", "2"}});
    return more;
  }
  std::vector<std::string> member(const std::string& name, const std::vector<std::string>& options) const {
    std::vector<std::string> all{
        "--peers",     "127.0.0.0/8", "--pool-scheduler",  scheduler_.address(),
        "--pool-name", name,          "--pool-public-key", scheduler_.public_key_file()};
    all.insert(all.end(), options.begin(), options.end());
    return all;
  }

  SchedulerProcess scheduler_;
  Pool first_, second_;
};

}  // namespace gpupool::testing
