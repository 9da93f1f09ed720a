// What travelled, counted: GPUPOOL_TRACE=1 prints a table per call when the process exits, GPUPOOL_STATS=1 (pool-run
// --stats) a few lines. Both go to stderr, or to the file that GPUPOOL_TRACE_FILE names (%p: the process id).
//
// A call is named by its row of the call table or its command; calls that are answered in the client are counted where the
// program asked cuGetProcAddress for them, as cudart does. Off, it costs a test of one flag per call. Any thread; nothing
// fails, at worst nothing is printed.
#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace gpupool::client::trace {

extern std::atomic<bool> enabled;
inline bool on() { return enabled.load(std::memory_order_relaxed); }

// Reads the environment, once. Before it nothing is counted.
void start();

// The address of a function that counts and then goes on to `function`, an exported symbol of this library.
void* counted(void* function);

void count_call(uint16_t id, size_t bytes_sent, std::chrono::nanoseconds in_client);
void count_round_trip(uint16_t id, size_t bytes_received, std::chrono::nanoseconds waited);
void count_sent(uint16_t id, size_t bytes);      // what belongs to a call that is counted elsewhere
void count_received(uint16_t id, size_t bytes);  // the same

// The time from its making on, where tracing is on.
class Timer {
 public:
  Timer() : on_(on()) {
    if (on_) [[unlikely]] begin_ = std::chrono::steady_clock::now();
  }
  explicit operator bool() const { return on_; }
  std::chrono::nanoseconds passed() const { return std::chrono::steady_clock::now() - begin_; }

 private:
  const bool on_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace gpupool::client::trace
