// Tests the order and cancellation of TLS handshake steps.
#include "server/poold/acceptor/tls_handshake_queue.h"

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "tests/support/catch.h"

using gpupool::server::TlsHandshakeQueue;

namespace {

// Blocks the queue's thread until open() is called, so that later steps wait.
class Gate {
 public:
  void pass() { passed_.wait(false); }
  void open() {
    passed_ = true;
    passed_.notify_all();
  }

 private:
  std::atomic<bool> passed_{false};
};

struct Run {
  asio::io_context context;
  TlsHandshakeQueue queue{context};
  std::vector<std::string> done;
  int owners[16] = {};

  TlsHandshakeQueue::Step step(
      int owner, const std::string& peer, std::function<void()> work = [] {}) {
    return {.owner = &owners[owner], .peer = peer, .work = std::move(work), .done = [this, owner, peer] {
              done.push_back(peer + std::to_string(owner));
            }};
  }
  void await(size_t count) {
    const asio::executor_work_guard<asio::io_context::executor_type> work(context.get_executor());
    while (done.size() < count) context.run_one();
  }
};

}  // namespace

TEST_CASE("a step runs on another thread and its completion on the caller's") {
  Run run;
  std::thread::id worked;
  run.queue.post(run.step(0, "a", [&] { worked = std::this_thread::get_id(); }));
  run.await(1);
  CHECK(worked != std::thread::id());
  CHECK(worked != std::this_thread::get_id());
}

TEST_CASE("the peer with fewest queued steps goes first") {
  Run run;
  Gate gate;
  run.queue.post(run.step(0, "a", [&] { gate.pass(); }));
  for (int i = 1; i <= 4; ++i) run.queue.post(run.step(i, "a"));
  run.queue.post(run.step(5, "b"));
  run.queue.post(run.step(6, "b"));
  gate.open();
  run.await(7);
  std::string peers;
  for (const std::string& done : run.done) peers += done[0];
  CHECK(peers == "abbaaaa");
  CHECK(std::set<std::string>(run.done.begin(), run.done.end()).size() == 7);
}

TEST_CASE("neither the oldest nor the newest step of one peer starves") {
  std::set<std::string> first;
  for (int round = 0; first.size() < 3; ++round) {
    REQUIRE(round < 1000);
    Run run;
    Gate gate;
    run.queue.post(run.step(0, "a", [&] { gate.pass(); }));
    for (int i = 1; i <= 3; ++i) run.queue.post(run.step(i, "a"));
    gate.open();
    run.await(4);
    first.insert(run.done[1]);
  }
}

TEST_CASE("a queued step can be cancelled and a running step finishes") {
  Run run;
  Gate gate;
  std::atomic<bool> begun{false};
  run.queue.post(run.step(0, "a", [&] {
    begun = true;
    begun.notify_all();
    gate.pass();
  }));
  run.queue.post(run.step(1, "a", [] { FAIL("it was withdrawn"); }));
  run.queue.post(run.step(2, "a"));
  begun.wait(false);
  CHECK(run.queue.cancel(&run.owners[1]));
  CHECK_FALSE(run.queue.cancel(&run.owners[1]));
  CHECK_FALSE(run.queue.cancel(&run.owners[0]));
  gate.open();
  run.await(2);
  CHECK(run.done == std::vector<std::string>{"a0", "a2"});
}

TEST_CASE("the destructor waits for the running step and drops queued ones") {
  bool worked = false;
  const auto kept = std::make_shared<int>(0);
  {
    Run run;
    run.queue.post(run.step(0, "a", [&] { worked = true; }));
    run.queue.post(run.step(1, "a", [kept] {}));
    run.queue.post(run.step(2, "b", [kept] {}));
  }
  CHECK(worked);
  CHECK(kept.use_count() == 1);
}
