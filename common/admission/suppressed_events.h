// Counts events that were left out of a log, and reports their number one second after the first of them, so
// that every refusal is at least counted. One thread; never fails.
#pragma once
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <cstdint>
#include <functional>

namespace gpupool {

class SuppressedEvents {
 public:
  SuppressedEvents(asio::io_context& context, std::function<void(uint64_t count)> report)
      : timer_(context), report_(std::move(report)) {}

  void note();
  // Reports the events that have not been reported yet. Call it at the end.
  void finish();

 private:
  asio::steady_timer timer_;
  const std::function<void(uint64_t)> report_;
  uint64_t count_ = 0;  // since the last report
};

}  // namespace gpupool
