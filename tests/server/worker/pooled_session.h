// A session under poold, which the test plays: four mappings of a page, full of a pattern, and nothing to do.
#pragma once
#include <memory>
#include <optional>
#include <utility>

#include "server/quota/accounts.h"
#include "tests/server/worker/test_client.h"

namespace gpupool::worker::test {

constexpr uint64_t kPage = FakeDriver::kGranularity;

struct PooledSession {
  explicit PooledSession(testing::FakeDirectMemory* direct = nullptr, bool staged = false);
  ~PooledSession();

  std::vector<std::byte> content(uint64_t i) { return pattern(kPage, static_cast<unsigned>(i) + 1); }
  bool intact();
  quota::SessionPage::Gpu& gpu() { return (*page)->gpus[0]; }
  uint64_t charged() { return (**accounts.of("t"))->sessions[place->slot()].memory_used[0]; }
  // Of the device.
  uint64_t own() { return client->fake.used() - others; }
  // Others take what the device has left, but for this.
  void leave_free(uint64_t bytes);
  void others_go();
  // As poold.
  void say(const server::ControlHeader& header);
  server::ControlHeader hear();
  // True if poold is told nothing for a moment.
  bool silent(int milliseconds = 50);

  int ends[2];
  quota::Accounts accounts;
  std::unique_ptr<Control> control;
  std::unique_ptr<quota::Accounts::Place> place;
  std::shared_ptr<quota::SharedPage<quota::SessionPage>> page;
  std::optional<TestClient> client;
  uint64_t others = 0;
};

}  // namespace gpupool::worker::test
