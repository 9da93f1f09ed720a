// The session's part of the timeline (client/timeline/): asks the server for its clock and its records.
#include <algorithm>
#include <thread>

#include "client/session/session.h"
#include "client/timeline/timeline.h"
#include "protocol/wire/timeline.h"

namespace gpupool::client {
namespace {

using namespace std::chrono_literals;
using transport::Clock;

constexpr int kFirstReadings = 5;
constexpr auto kLongestReading = 100ms, kLongestLaterReading = 5ms, kLongestFlush = 1000ms;
constexpr auto kReadClockEvery = 1s;  // clocks drift apart
constexpr auto kPollEvery = 20us;     // for the answer

}  // namespace

// Called before the first command of the program, when nothing delays the answers.
void Session::begin_timeline(const hello::HelloReply& reply) {
  makes_timeline_ = reply.makes_timeline;
  timeline::add_server(index(), server(), [this] { look_at_timeline(); });
  for (int reading = 0; reading < kFirstReadings && ask_for_clock(0, kLongestReading); ++reading) {
  }
}

// Returns whether the answer has arrived. A later answer counts as well.
bool Session::ask_for_clock(uint32_t flags, std::chrono::milliseconds longest) {
  uint64_t number = 0;
  const bool appended = queue_.append_now(
      wire::Command::read_clock, wire::ReadClock{.flags = flags},
      [this] { return makes_timeline_ && !failed(); },
      [&](uint64_t sequence) { timeline::clock_asked(index(), number = sequence); });
  if (!appended) return false;
  queue_.wake_flusher();  // sending blocks while the connection is broken; this thread must not
  for (const auto end = Clock::now() + longest; !failed() && Clock::now() < end;) {
    receiver_.read_some();
    if (timeline::clock_answered(index()) >= number) return true;
    std::this_thread::sleep_for(kPollEvery);
  }
  return false;
}

// Called by the timeline's thread. A program that only launches reads no messages.
void Session::look_at_timeline() {
  if (failed() || !makes_timeline_) return;
  receiver_.read_some();
  // A session that does nothing must look idle: its memory may then give way to another session's.
  if (Clock::now() < next_clock_ || queue_.last_sequence() == last_clock_) return;
  next_clock_ = Clock::now() + kReadClockEvery;
  (void)ask_for_clock(0, kLongestLaterReading);
  last_clock_ = queue_.last_sequence();
}

void Session::end_timeline() {
  if (timeline::on() && !failed()) (void)ask_for_clock(wire::kFlushTimeline, kLongestFlush);
}

}  // namespace gpupool::client
