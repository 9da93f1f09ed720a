// Tests that --worker-users selects the right users and that each serves one worker at a time.
#include "server/confinement/worker_users.h"

#include <memory>
#include <string>
#include <vector>

#include "tests/support/catch.h"

using gpupool::ErrorCode;
using gpupool::server::WorkerUsers;

TEST_CASE("a single name or ID is the user of all workers") {
  const std::string text = GENERATE("nobody", "gpupool-w", "61000", "gpu-1", "");
  auto users = WorkerUsers::parse(text);
  REQUIRE(users.ok());
  CHECK_FALSE(users->one_per_worker());
  const auto first = users->reserve(), second = users->reserve();
  REQUIRE((first.ok() && second.ok()));
  CHECK((*first)->name == text);
  CHECK((*second)->name == text);
}

TEST_CASE("a range gives each worker its own user and reuses users in turn") {
  auto users = WorkerUsers::parse("61000-61002");
  REQUIRE((users.ok() && users->one_per_worker() && users->size() == 3));
  std::vector<std::unique_ptr<WorkerUsers::ReservedUser>> taken;
  for (const char* const name : {"61000", "61001", "61002"}) {
    auto one = users->reserve();
    REQUIRE(one.ok());
    CHECK((*one)->name == name);
    taken.push_back(std::move(*one));
  }
  const auto none = users->reserve();
  REQUIRE_FALSE(none.ok());
  CHECK(none.error().code == ErrorCode::limit);
  taken[1]->release();
  auto again = users->reserve();
  REQUIRE(again.ok());
  CHECK((*again)->name == "61001");
  taken.erase(taken.begin() + 1);  // already released: no effect
  CHECK_FALSE(users->reserve().ok());
  taken.clear();
  auto next = users->reserve();
  REQUIRE(next.ok());
  CHECK((*next)->name == "61002");
}

TEST_CASE("root and invalid user IDs are refused") {
  for (const char* const text : {"0", "4294967295", "0-10", "10-0", "7-7", "1-4294967295", "1-1048578"}) {
    INFO(text);
    CHECK_FALSE(WorkerUsers::parse(text).ok());
  }
}
