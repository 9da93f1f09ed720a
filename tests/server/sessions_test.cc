// Tests that many sequential and concurrent sessions leave nothing behind.
#include <atomic>
#include <thread>

#include "common/sanitizers.h"
#include "tests/server/fake_device_library.h"
#include "tests/support/catch.h"
#include "tests/support/poold_process.h"
#include "tests/support/raw_client.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

constexpr int kSequential = kSanitized ? 100 : 1000;

void settle(const PooldProcess& poold, size_t workers, size_t descriptors) {
  CHECK(eventually([&] { return poold.workers().size() == workers && poold.descriptors() == descriptors; }));
  INFO("workers " << poold.workers().size() << ", descriptors " << poold.descriptors() << " instead of "
                  << descriptors);
  CHECK(poold.descriptors() == descriptors);
  for (const pid_t worker : poold.workers()) CHECK_FALSE(is_zombie(worker));
}

}  // namespace

TEST_CASE("a thousand sessions one after another leave no process and no descriptor") {
  PooldProcess poold(kDevice, kTellsOfWorkers);
  RawClient(poold.endpoint()).open();
  REQUIRE(poold.await_rest(1));
  const size_t descriptors = poold.descriptors();
  for (int round = 0; round < kSequential; ++round) {
    RawClient client(poold.endpoint());
    client.open();
    if (round % 3 == 0) client.ping();
    if (round % 3 == 1) client.send_command(wire::Command::goodbye);
    // Workers exit after their clients, slowly with a sanitizer: keep a slot free for them.
    if (round % 32 == 31) CHECK(poold.await_log("session_ended", static_cast<size_t>(round) - 30));
  }
  CHECK(poold.await_log("session_ended", kSequential + 1));
  settle(poold, 2, descriptors);
  CHECK(poold.stop() == 0);
}

TEST_CASE("32 concurrent sessions are served and leave no process and no descriptor") {
  PooldProcess poold(kDevice, kTellsOfWorkers);
  RawClient(poold.endpoint()).open();
  REQUIRE(poold.await_rest(1));
  const size_t descriptors = poold.descriptors();
  constexpr int kClients = 32;
  std::atomic<int> open{0};
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int number = 0; number < kClients; ++number) {
    threads.emplace_back([&] {
      try {
        RawClient client(poold.endpoint());
        client.open();
        ++open;
        // Until all sessions are open at the same time.
        while (open.load() + failed.load() < kClients) client.ping();
        client.ping();
      } catch (const std::exception&) {
        ++failed;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(failed == 0);
  CHECK(poold.await_log("session_ended", kClients + 1));
  settle(poold, 2, descriptors);
}

TEST_CASE("the log says which client a session had and when and why it ended") {
  PooldProcess poold(kDevice);
  hello::Hello hello = test_hello();
  hello.program = "train.py";
  hello.host = "node-7";
  hello.pid = 4711;
  {
    RawClient client(poold.endpoint());
    client.open(hello);
    client.send_command(wire::Command::goodbye);
    CHECK(client.await_end());
  }
  CHECK(poold.await_log("session_ended"));
  const std::string log = poold.log();
  const std::string line = log.substr(log.find("session_ended"));
  for (const char* part : {"session=1", "host=node-7", "pid=4711", "program=train.py",
                           "duration_ms=", "reason=\"the client disconnected\""}) {
    CHECK(line.find(part) != std::string::npos);
  }
}

TEST_CASE("a client that breaks the protocol ends its own session, and the log says so") {
  PooldProcess poold(kDevice);
  RawClient other(poold.endpoint());
  other.open();
  RawClient client(poold.endpoint());
  client.open();
  client.send_header({.id = static_cast<uint16_t>(wire::Command::ping), .sequence = 77});
  const auto end = client.await_end();
  REQUIRE(end);
  CHECK_FALSE(end->empty());
  CHECK(poold.await_log("session_ended"));
  const std::string log = poold.log();
  const std::string line = log.substr(log.find("session_ended"));
  CHECK(line.find("session=2") != std::string::npos);
  CHECK(line.find("broke the protocol") != std::string::npos);
  other.ping();
}
