// An idle session whose poold is the test: two streams and four mappings of one page each, filled with a
// pattern. For tests of memory moves and checkpoints, on the test's thread.
#pragma once
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
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
  // Bytes of device memory that the session uses.
  uint64_t own() { return client->fake.used() - others; }
  // Other processes take all free device memory except `bytes`.
  void leave_free(uint64_t bytes);
  void others_go();
  // Sends and receives control messages as poold.
  template <server::ControlKind kind>
  void say(const server::ControlBody<kind>& body) {
    sent(server::send_control<kind>(ends[0], body));
  }
  server::ControlMessage hear();
  // True if poold gets no message for this time.
  bool silent(int milliseconds = 50);

  int ends[2];
  quota::Accounts accounts;
  std::unique_ptr<Control> control;
  std::unique_ptr<quota::Accounts::Place> place;
  std::shared_ptr<quota::SharedPage<quota::SessionPage>> page;
  std::optional<TestClient> client;
  uint64_t others = 0;

 private:
  // Receives messages, and answers those that ask for abandoned sessions: there are none.
  void listen();

  std::mutex mutex_;  // guards heard_
  std::condition_variable arrived_;
  std::deque<server::ControlMessage> heard_;
  std::thread listener_;
  static void sent(const Result<void>& result);  // fails the test unless it is success
};

}  // namespace gpupool::worker::test
