// The session's part of the timeline (client/timeline/): asks the server for its clock and its records.
#include <utility>

#include "client/session/session.h"
#include "client/timeline/timeline.h"
#include "protocol/wire/timeline.h"

namespace gpupool::client {
namespace {

using namespace std::chrono_literals;
using transport::Clock;

constexpr int kFirstReadings = 5;
constexpr auto kLongestReading = 100ms, kLongestLaterReading = 5ms;
constexpr auto kReadClockEvery = 1s;  // clocks drift apart

}  // namespace

// Called before the first command of the program, when nothing delays the answers.
void Session::begin_timeline(const hello::HelloReply& reply) {
  makes_timeline_ = reply.makes_timeline;
  timeline::add_server(index(), server(), [this] { look_at_timeline(); });
  for (int reading = 0; reading < kFirstReadings; ++reading) {
    if (!await_clock(ask_for_clock(0), Clock::now() + kLongestReading)) break;
  }
}

// Returns the number of the question; 0: it cannot be asked now.
uint64_t Session::ask_for_clock(uint32_t flags) {
  uint64_t number = 0;
  (void)queue_.append_now(
      wire::Command::read_clock, wire::ReadClock{.flags = flags},
      [this] { return makes_timeline_ && !failed(); },
      [&](uint64_t sequence) { timeline::clock_asked(index(), number = sequence); });
  // Sending and reading block while the connection is broken; this thread must not.
  if (number != 0) queue_.wake_flusher();
  return number;
}

// Returns whether the question was answered. A later answer counts as well.
bool Session::await_clock(uint64_t number, Clock::time_point deadline) {
  const auto answered = [&] { return timeline::clock_answered(index()) >= number; };
  return number != 0 && receiver_.await(answered, deadline);
}

bool Session::take_timeline_message(std::span<const std::byte> body) {
  const uint64_t answered = timeline::clock_answered(index());
  const bool good = timeline::take_message(index(), body);
  if (timeline::clock_answered(index()) != answered) receiver_.wake();
  return good;
}

// Called by the timeline's thread. A program that only launches reads no messages.
void Session::look_at_timeline() {
  if (failed() || !makes_timeline_) return;
  receiver_.read_some();
  // A session that does nothing must look idle: its memory may then give way to another session's.
  if (Clock::now() < next_clock_ || queue_.last_sequence() == last_clock_) return;
  next_clock_ = Clock::now() + kReadClockEvery;
  (void)await_clock(ask_for_clock(0), Clock::now() + kLongestLaterReading);
  last_clock_ = queue_.last_sequence();
}

void Session::ask_for_last_records() {
  if (timeline::on() && !failed()) last_records_ = ask_for_clock(wire::kFlushTimeline);
}

void Session::await_last_records(Clock::time_point deadline) {
  (void)await_clock(std::exchange(last_records_, 0), deadline);
}

}  // namespace gpupool::client
