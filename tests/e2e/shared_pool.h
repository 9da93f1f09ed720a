// A pool whose tenants have quotas, and helpers that start programs for a tenant. Used by the tests of quotas
// and sharing.
#pragma once
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "common/token/token.h"
#include "tests/e2e/pool.h"
#include "tests/support/catch.h"

namespace gpupool::testing {

// A pool with tenants t1, t2, ... that have these quotas (TOML lines of [tenant.quota]).
class SharedPool {
 public:
  explicit SharedPool(const std::vector<std::string>& quotas, const Environment& softgpu = {}) {
    std::string config;
    for (const std::string& quota : quotas) {
      tokens_.push_back(*make_token());
      config += "[[tenant]]\nname = \"t" + std::to_string(tokens_.size()) + "\"\ntokens = [\"" +
                hash_text(hash_token(tokens_.back())) + "\"]\n[tenant.quota]\n" + quota + "\n";
    }
    pool_ = std::make_unique<Pool>(softgpu,
                                   std::vector<std::string>{"--config", folder_.write("poold.toml", config)});
  }
  Pool* operator->() { return pool_.get(); }
  Environment of(size_t tenant) const { return pool_->through({{"GPUPOOL_TOKEN", tokens_.at(tenant - 1)}}); }
  std::unique_ptr<Process> start(size_t tenant, const std::vector<std::string>& scenario) const {
    std::vector<std::string> words{driver_app()};
    words.insert(words.end(), scenario.begin(), scenario.end());
    return std::make_unique<Process>(words, of(tenant));
  }
  // Also waits until the program has printed "working".
  std::unique_ptr<Process> start_working(size_t tenant, const std::vector<std::string>& scenario) const {
    auto process = start(tenant, scenario);
    INFO(process->output());
    REQUIRE(process->await_output("working", kLongPatience));
    return process;
  }

 private:
  TemporaryFolder folder_;
  std::vector<std::string> tokens_;
  std::unique_ptr<Pool> pool_;
};

// Waits for the program to succeed and returns the number that it printed after "done ".
inline double done(Process& process) {
  CHECK(process.wait(kLongPatience) == 0);
  process.await_end_of_output();
  INFO(process.output());
  const size_t at = process.output().find("done ");
  REQUIRE(at != std::string::npos);
  return std::strtod(process.output().c_str() + at + 5, nullptr);
}

// Runs the scenarios of driver_app one after another and checks that each succeeds.
inline void scenarios_pass(const SharedPool& pool, size_t tenant, const std::vector<std::string>& scenarios) {
  for (const std::string& scenario : scenarios) {
    const auto process = pool.start(tenant, {scenario});
    INFO(scenario);
    CHECK(process->wait(kLongPatience) == 0);
    process->await_end_of_output();
    INFO(process->output());
    CHECK(process->output().find("driver_app:") == std::string::npos);
  }
}

}  // namespace gpupool::testing
