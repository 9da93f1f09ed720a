// A program whose session is suspended and resumed, for suspension_test.cc, suspension_refused_test.cc and
// upgrade_suspended_test.cc.
// Not thread-safe; what must succeed fails the test if it does not.
#pragma once
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/e2e/expect_success.h"
#include "tests/e2e/pool.h"
#include "tests/e2e/pool_admin.h"
#include "tests/support/catch.h"
#include "tests/support/end_file.h"
#include "tests/support/http_get.h"

namespace gpupool::testing {

constexpr unsigned kShare = kSanitized ? 4 : 1;  // of the rounds

// Without this option, the tests' servers accept files that are not encrypted.
constexpr const char* kOnlyEncrypted = "--suspended-plaintext=false";

// The folder and the key of suspended sessions, which servers may share.
struct Store {
  Store() {
    std::filesystem::create_directory(files());
    std::filesystem::permissions(files(), std::filesystem::perms::owner_all);
    folder.write_secret("key", std::string(32, 'k'));
  }
  std::string files() const { return folder.path() / "files"; }
  std::vector<std::string> options(std::vector<std::string> more = {}) const {
    std::vector<std::string> all;
    for (const auto& [name, value] :
         std::vector<std::pair<std::string, std::string>>{{"--resume-timeout", "30"},
                                                          {"--host-memory-for-suspended-mib", "512"},
                                                          {"--suspended-folder", files()},
                                                          {"--suspended-key", folder.path() / "key"}}) {
      if (std::find(more.begin(), more.end(), name) == more.end()) all.insert(all.end(), {name, value});
    }
    if (std::find(more.begin(), more.end(), kOnlyEncrypted) == more.end())
      all.push_back("--suspended-plaintext");
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  size_t count() const {
    return static_cast<size_t>(
        std::distance(std::filesystem::directory_iterator(files()), std::filesystem::directory_iterator()));
  }
  const TemporaryFolder folder;
};

// A program that changes everything all the time, until this object ends it, on a server that may suspend it.
struct Changing : EndFile {
  explicit Changing(unsigned mebibytes, const std::vector<std::string>& options = {}, Environment more = {},
                    const Environment& server = {}, const std::vector<std::string>& launcher = {})
      : Changing("changing", {std::to_string(mebibytes)}, options, std::move(more), server, launcher) {}
  // Another scenario of driver_app that goes on until the file of its first argument exists.
  Changing(const std::string& scenario, const std::vector<std::string>& arguments,
           const std::vector<std::string>& options = {}, Environment more = {},
           const Environment& server = {}, const std::vector<std::string>& launcher = {})
      : pool(std::in_place, server, store.options(options), test_device(), launcher),
        app(words(scenario, arguments), through(std::move(more))) {
    REQUIRE(app.await_output("working"));
  }
  std::vector<std::string> words(const std::string& scenario, const std::vector<std::string>& more) const {
    std::vector<std::string> all{driver_app(), scenario, end};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Environment through(Environment more) {
    more.insert({"GPUPOOL_SHM", "0"});
    if (more.contains("GPUPOOL_TLS_CA"))
      more["GPUPOOL"] = "tls://127.0.0.1:" + std::to_string(pool->poold().port());
    return pool->through(more);
  }
  Json suspend(std::vector<std::string> more = {}) {
    Json all;
    REQUIRE(eventually([&] { return (all = sessions_of(*pool)).size() == 1; }));
    number = std::to_string(all[0]["number"].get<uint64_t>());
    more.insert(more.begin(), {"suspend", number, "--timeout", "120"});
    return json_in(pool_admin(*pool, more));
  }
  Json resume(std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"resume", number, "--timeout", "120"});
    return json_in(pool_admin(*pool, more));
  }
  void expect_suspended(const std::vector<std::string>& more = {}) {
    const Json reply = suspend(more);
    INFO(reply.dump() << app.output());
    REQUIRE(reply["suspended"] == true);
    path = reply["path"].get<std::string>();
    bytes = reply["bytes"].get<uint64_t>();
  }
  void expect_resumed(const std::vector<std::string>& more = {}) {
    const Json reply = resume(more);
    INFO(reply.dump() << app.output());
    REQUIRE(reply["resumed"] == true);
  }
  void expect_nothing_lost() {
    end_program();
    expect_success(app, "nothing is lost");
  }

  const Store store;
  std::optional<Pool> pool;
  Process app;
  std::string number, path;
  uint64_t bytes = 0;
};

}  // namespace gpupool::testing
