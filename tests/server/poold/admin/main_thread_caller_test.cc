#include "server/poold/admin/main_thread_caller.h"

#include <asio/executor_work_guard.hpp>
#include <atomic>
#include <future>
#include <thread>
#include <vector>

#include "tests/support/catch.h"

using namespace gpupool::server;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kLong{30'000};

// Runs poold's main thread; `owned` is touched on this thread only.
struct Owner {
  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
  MainThreadCaller main_thread{context};
  int owned = 0;
  std::thread thread{[this] { context.run(); }};
  ~Owner() {
    work.reset();
    thread.join();
  }
  void close() {
    std::promise<void> closed;
    asio::post(context, [&] {
      main_thread.close();
      closed.set_value();
    });
    closed.get_future().wait();
  }
};

}  // namespace

TEST_CASE("calls from many threads run on the main thread alone") {
  Owner owner;
  std::vector<std::thread> threads;
  std::atomic<int> answered{0};
  for (int number = 0; number < 8; ++number) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        const auto answer = owner.main_thread.ask([&owner] { return std::to_string(++owner.owned); }, kLong);
        if (answer && !answer->empty()) ++answered;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(answered == 1600);
  CHECK(owner.main_thread.ask([&owner] { return owner.owned; }, kLong) == 1600);
}

TEST_CASE("a call that times out returns without an answer and later calls work") {
  Owner owner;
  std::promise<void> go_on;
  asio::post(owner.context, [&] { go_on.get_future().wait(); });
  CHECK_FALSE(owner.main_thread.ask([&owner] { return ++owner.owned; }, milliseconds(20)));
  go_on.set_value();
  // The call ran after its timeout.
  CHECK(owner.main_thread.ask([&owner] { return owner.owned; }, kLong) == 1);
}

TEST_CASE("a late answer reaches the caller or is dropped after its timeout") {
  Owner owner;
  std::function<void(int)> answer;
  std::thread later([&] {
    while (!owner.main_thread.ask([&] { return answer != nullptr; }, kLong).value_or(true))
      std::this_thread::yield();
    owner.main_thread.ask([&] { return answer(7), 0; }, kLong);
  });
  CHECK(owner.main_thread.ask_for<int>([&](auto reply) { answer = reply; }, kLong) == 7);
  later.join();
  CHECK_FALSE(owner.main_thread.ask_for<int>([&](auto reply) { answer = reply; }, milliseconds(20)));
  owner.close();
  answer(8);  // no caller waits for this answer
}

TEST_CASE("a caller that gives up returns without an answer") {
  Owner owner;
  std::atomic<bool> given_up{false};
  std::function<void(int)> answer;
  std::thread later([&] {
    while (!owner.main_thread.ask([&] { return answer != nullptr; }, kLong).value_or(true))
      std::this_thread::yield();
    given_up = true;
  });
  const auto start = std::chrono::steady_clock::now();
  CHECK_FALSE(owner.main_thread.ask_for<int>([&](auto reply) { answer = reply; }, kLong,
                                             [&] { return given_up.load(); }));
  CHECK(std::chrono::steady_clock::now() - start < kLong);
  later.join();
  CHECK(owner.main_thread.ask_for<int>([](auto reply) { reply(9); }, kLong, [] { return false; }) == 9);
}

TEST_CASE("shutdown wakes all callers and sleepers and refuses later calls") {
  Owner owner;
  std::atomic<int> without{0};
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([&] {
      if (!owner.main_thread.sleep(kLong)) ++without;
      if (!owner.main_thread.ask([&owner] { return ++owner.owned; }, kLong)) ++without;
    });
  }
  const auto start = std::chrono::steady_clock::now();
  owner.close();
  for (std::thread& thread : threads) thread.join();
  CHECK(without == 8);
  CHECK(owner.main_thread.closed());
  CHECK(owner.owned == 0);
  CHECK(std::chrono::steady_clock::now() - start < kLong);
}
