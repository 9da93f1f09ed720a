// The timeline of this process: what its calls and its servers do. The rest of the client tells it here.
//
// Off, each hook costs a test of one flag. On, events are bounded (recorder.h), and nothing here fails a
// call. Any thread.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace gpupool::client::timeline {

extern std::atomic<bool> enabled;
inline bool on() {
  return enabled.load(std::memory_order_relaxed);
}
int64_t now();  // trace_event.h

// Begins a timeline in this file, once. `program`: for the rows' names. Problems go to `warn`. Call it before
// the first server is connected. Returns on().
bool start(const char* path, const char* program, std::function<void(const std::string&)> warn);
// Ends it: later events are dropped. Call when the process exits.
void finish();
// In a forked child, which cannot use its parent's sessions: nothing is recorded.
void stop_in_child();

// --- Calls of the program ---
namespace detail {
struct Call;
void begin_call(Call& call, const char* function);
void end_call(Call& call);
struct Call {
  const char* function = nullptr;  // null: within another call
  const char* command = nullptr;   // the first that was sent
  uint64_t number = 0;             // of the last command
  int64_t begin = 0;
  uint64_t sent = 0, received = 0, round_trips = 0;
  unsigned server = 0;
};
}  // namespace detail

// A call of a driver function, for the lifetime of this object. Only the outermost of a thread is recorded.
// `function`: the function's name, or the name of a function that implements several: the call is then named
// by its first command.
class Call {
 public:
  explicit Call(const char* function) {
    if (on()) [[unlikely]]
      detail::begin_call(call_.emplace(), function);
  }
  ~Call() {
    if (call_) [[unlikely]]
      detail::end_call(*call_);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

 private:
  std::optional<detail::Call> call_;
};

// A wait of the calling thread, for the lifetime of this object. `reason`: a string literal.
void note_wait(const char* reason, int64_t begin, const char* command, unsigned server);
class Wait {
 public:
  Wait(const char* reason, unsigned server) : reason_(reason), server_(server), begin_(on() ? now() : 0) {}
  ~Wait() {
    if (begin_ != 0) [[unlikely]]
      note_wait(reason_, begin_, nullptr, server_);
  }
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;

 private:
  const char* const reason_;
  const unsigned server_;
  const int64_t begin_;
};

// --- Traffic; call only if on() ---
void note_sent(const char* command, uint64_t number, uint64_t bytes, unsigned server);
void note_received(uint64_t bytes, unsigned server);
// The calling thread has waited for a reply of `bytes` bytes since `begin`.
void note_round_trip(const char* reason, const char* command, uint64_t bytes, int64_t begin, unsigned server);

// --- Servers, by Session::index(); no effect if off ---
// `look` is called about ten times a second, on a thread that must not be blocked for long.
void add_server(unsigned index, const std::string& name, std::function<void()> look);
// Call when read_clock with this number is about to be sent.
void clock_asked(unsigned index, uint64_t command);
uint64_t clock_answered(unsigned index);
// The body of MessageKind::timeline. Returns false if it is malformed or was not asked for.
bool take_message(unsigned index, std::span<const std::byte> body);
void name_kernel(uint64_t handle, const std::string& name);
// Something that the session with the server went through, since `begin`. `name`: a string literal.
void note_session(unsigned index, const char* name, int64_t begin, const std::string& detail);

}  // namespace gpupool::client::timeline
