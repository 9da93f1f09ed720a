// Awaits that a thread of this process is blocked in the kernel, for tests of what wakes it. Any thread.
#pragma once
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <future>
#include <iterator>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

namespace gpupool::testing {

// Waits until the thread sleeps, at most a minute.
inline void wait_until_asleep(pid_t thread) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (std::chrono::steady_clock::now() < deadline) {
    std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    if (const size_t name_ends = text.rfind(") ");
        name_ends != std::string::npos && text[name_ends + 2] == 'S')
      return;
    std::this_thread::yield();
  }
}

// Calls `call` in another thread, and returns when that sleeps.
template <class F>
std::future<std::invoke_result_t<F&>> start_until_asleep(F call) {
  std::promise<pid_t> started;
  auto thread = started.get_future();
  auto result =
      std::async(std::launch::async, [call = std::move(call), started = std::move(started)]() mutable {
        started.set_value(::gettid());
        return call();
      });
  wait_until_asleep(thread.get());
  return result;
}

}  // namespace gpupool::testing
