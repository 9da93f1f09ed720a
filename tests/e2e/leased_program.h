// Programs under leases of a whole pool, and the scheduler's JSON replies. Included by the tests of this
// folder. Not thread-safe; fails the test.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "tests/e2e/expect_success.h"
#include "tests/e2e/pool_admin.h"
#include "tests/e2e/whole_pool.h"
#include "tests/support/end_file.h"

namespace gpupool::testing {

// Returns pool-admin's reply, which may follow messages.
inline Json json_of(const WholePool& pool, std::vector<std::string> words) {
  words.push_back("--json");
  const std::string output = pool.pool_admin(words);
  const size_t begin = output.find_first_of("[{");
  INFO(output);
  REQUIRE(begin != std::string::npos);
  return parse_json(output.substr(begin));
}

// A leased program that changes its memory all the time, until this object ends it.
struct Leased : EndFile {
  explicit Leased(const WholePool& pool,
                  std::vector<std::string> wishes = {"--compute", "20", "--memory", "48MiB"},
                  const Environment& environment = {})
      : app(pool.command(std::move(wishes), {driver_app(), "changing", end, "4"}), environment) {
    REQUIRE(app.await_output("working", kLongPatience));
  }
  void expect_nothing_lost() {
    end_program();
    expect_success(app, "nothing is lost");
  }
  Process app;
};

}  // namespace gpupool::testing
