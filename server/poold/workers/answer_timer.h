// A timeout for one question at a time. WorkerPool uses it for dumps, on the io_context's thread. An asio
// timer that is cancelled may still call a handler without an error if asio had already queued it; this
// timer never expires after stop() or a new start(). It must outlive its handlers.
#pragma once
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

namespace gpupool::server {

class AnswerTimer {
 public:
  explicit AnswerTimer(asio::io_context& context) : timer_(context) {}

  // Calls `expired` after `time`, unless start() or stop() is called before.
  void start(std::chrono::milliseconds time, std::function<void()> expired) {
    timer_.expires_after(time);
    timer_.async_wait([this, round = ++round_, expired = std::move(expired)](const asio::error_code& status) {
      if (!status && round == round_) expired();
    });
  }
  void stop() {
    ++round_;
    timer_.cancel();
  }

 private:
  asio::steady_timer timer_;
  uint64_t round_ = 0;
};

}  // namespace gpupool::server
