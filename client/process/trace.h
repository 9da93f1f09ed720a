// Counts calls and traffic. GPUPOOL_TRACE=1 prints a table per call when the process exits, GPUPOOL_STATS=1
// (pool-run --stats) a few lines. Both go to stderr, or to the file named by GPUPOOL_TRACE_FILE (%p: the
// process id).
//
// A call is named by its table row or its command. Calls that the client answers itself are counted if the
// program got their address from cuGetProcAddress, as cudart does. When off, costs a test of one flag per
// call. Thread-safe; on failure nothing is printed.
#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace gpupool::client::trace {

extern std::atomic<bool> enabled;
inline bool on() {
  return enabled.load(std::memory_order_relaxed);
}

// Reads the environment, once. Nothing is counted before.
void start();

// Returns a stub that counts and then jumps to `function`, an exported symbol of this library.
void* counted(void* function);

void count_call(uint16_t id, size_t bytes_sent, std::chrono::nanoseconds in_client);
void count_round_trip(uint16_t id, size_t bytes_received, std::chrono::nanoseconds waited);
void count_sent(uint16_t id, size_t bytes);      // further bytes of a call that is counted elsewhere
void count_received(uint16_t id, size_t bytes);  // likewise

// Measures the time since its construction, if tracing is on.
class Timer {
 public:
  Timer() : on_(on()) {
    if (on_) [[unlikely]]
      begin_ = std::chrono::steady_clock::now();
  }
  explicit operator bool() const { return on_; }
  std::chrono::nanoseconds passed() const { return std::chrono::steady_clock::now() - begin_; }

 private:
  const bool on_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace gpupool::client::trace
