// A pool whose poold is replaced while programs run, for upgrade_test.cc and upgrade_records_test.cc. Not
// thread-safe; what must succeed fails the test if it does not.
#pragma once
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/e2e/expect_success.h"
#include "tests/e2e/pool.h"
#include "tests/e2e/pool_admin.h"
#include "tests/support/catch.h"
#include "tests/support/installed_poold.h"

namespace gpupool::testing {

struct Upgradable {
  explicit Upgradable(const std::vector<std::string>& options = {}, Environment softgpu = {})
      : pool(std::move(softgpu), options, test_device(), installed.launcher()) {}

  Finished admin(const std::vector<std::string>& words) { return pool_admin(pool, words); }
  Json ask(const std::vector<std::string>& words) {
    const Finished answer = admin(words);
    INFO(answer.output);
    REQUIRE(answer.status == 0);
    return parse_json(answer.output);
  }
  // Replaces the file and the running program.
  void upgrade() {
    installed.install();
    const Json done = ask({"upgrade"});
    CHECK(done["upgrades"] == ++upgrades);
    if (::geteuid() != 0) return;  // poold lets no other process of its user look at its program
    struct stat file {
    }, running{};
    REQUIRE(::stat(installed.path().c_str(), &file) == 0);
    REQUIRE(::stat(("/proc/" + std::to_string(pool.poold().pid()) + "/exe").c_str(), &running) == 0);
    CHECK(running.st_ino == file.st_ino);
  }
  std::unique_ptr<Process> start(const std::vector<std::string>& words, Environment more = {}) {
    std::vector<std::string> all{driver_app()};
    all.insert(all.end(), words.begin(), words.end());
    return std::make_unique<Process>(all, pool.through(std::move(more)));
  }

  InstalledPoold installed;
  Pool pool;
  unsigned upgrades = 0;
};

}  // namespace gpupool::testing
