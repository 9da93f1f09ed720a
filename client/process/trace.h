// Counts calls and traffic. GPUPOOL_TRACE=1 prints a table per call when the process exits, GPUPOOL_STATS=1
// (pool-run --stats) a few lines. Both go to stderr, or to the file named by GPUPOOL_TRACE_FILE (%p: the
// process id).
//
// A timeline (client/timeline/) turns the counting on as well.
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

// `server`: Session::index(). `number`: of the command. Both are for the timeline, which also counts here.
void count_call(uint16_t id, size_t bytes_sent, std::chrono::nanoseconds in_client, unsigned server = 0,
                uint64_t number = 0);
void count_round_trip(uint16_t id, size_t bytes_received, std::chrono::nanoseconds waited,
                      unsigned server = 0);
// Further bytes of a call that is counted elsewhere.
void count_sent(uint16_t id, size_t bytes, unsigned server = 0);
void count_received(uint16_t id, size_t bytes, unsigned server = 0);

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
