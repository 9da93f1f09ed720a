// Runs questions of other threads on poold's thread, which owns all state. AdminService uses it. ask() and
// ask_for() may be called on any thread but poold's.
#pragma once
#include <algorithm>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>

namespace gpupool::server {

class MainThreadCaller {
 public:
  explicit MainThreadCaller(asio::io_context& context)
      : context_(context), state_(std::make_shared<State>()) {}

  // Runs `question` on poold's thread and returns its result; empty: closed, or no answer within `patience`.
  // `question` must own what it uses: it may run after the caller has given up, but not after close().
  template <class Question>
  auto ask(Question question, std::chrono::milliseconds patience)
      -> std::optional<std::invoke_result_t<Question&>> {
    using Answer = std::invoke_result_t<Question&>;
    return ask_for<Answer>([question = std::move(question)](auto reply) mutable { reply(question()); },
                           patience);
  }
  // The same for a question that is answered later: `question` gets a function to call with the Answer, even
  // after close(). Also returns without an answer when `given_up`, called from time to time, returns true.
  template <class Answer, class Question>
  std::optional<Answer> ask_for(Question question, std::chrono::milliseconds patience,
                                const std::function<bool()>& given_up = nullptr) {
    const auto answer = std::make_shared<std::optional<Answer>>();
    std::unique_lock lock(state_->mutex);
    if (state_->closed) return std::nullopt;
    asio::post(context_, [state = state_, answer, question = std::move(question)]() mutable {
      if (state->closed) return;  // close() is called on this thread
      question([state, answer](Answer given) {
        const std::lock_guard lock(state->mutex);
        *answer = std::move(given);
        state->changed.notify_all();
      });
    });
    using Clock = std::chrono::steady_clock;
    const auto deadline = Clock::now() + patience;
    const auto settled = [&] { return answer->has_value() || state_->closed; };
    while (!settled()) {
      const auto next = given_up ? std::min(deadline, Clock::now() + kGivenUpEvery) : deadline;
      if (state_->changed.wait_until(lock, next, settled) || Clock::now() >= deadline) break;
      lock.unlock();
      const bool ends = given_up && given_up();
      lock.lock();
      if (ends) break;
    }
    return std::move(*answer);
  }

  // Returns false if closed.
  bool sleep(std::chrono::milliseconds time) {
    std::unique_lock lock(state_->mutex);
    return !state_->changed.wait_for(lock, time, [this] { return state_->closed; });
  }

  bool closed() const {
    const std::lock_guard lock(state_->mutex);
    return state_->closed;
  }

  // Called on poold's thread. Waiting calls of ask() and sleep() return at once, without an answer.
  void close() {
    const std::lock_guard lock(state_->mutex);
    state_->closed = true;
    state_->changed.notify_all();
  }

 private:
  static constexpr std::chrono::milliseconds kGivenUpEvery{250};
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool closed = false;
  };
  asio::io_context& context_;
  const std::shared_ptr<State> state_;
};

}  // namespace gpupool::server
