// A server in a timeline: turns its worker's messages (protocol/wire/timeline.h) into events, with times of
// this host's clock, and keeps what has travelled. The server is not trusted: names and numbers of tracks are
// bounded. Any thread.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "client/timeline/clock_alignment.h"
#include "client/timeline/name_table.h"
#include "client/timeline/recorder.h"
#include "protocol/wire/timeline.h"

namespace gpupool::client::timeline {

class ServerTrack {
 public:
  static constexpr uint64_t kMostTracks = 1024;
  static constexpr size_t kMostReasons = 64, kMostReasonBytes = kMostReasons * wire::kLongestTimelineText;

  // `process`: a number for the server's rows, of no other process in the file. `program`: the number of the
  // program's own. `name`: for the row.
  ServerTrack(Recorder& recorder, int64_t process, int64_t program, const std::string& name);

  // Call when read_clock with this number is about to be sent.
  void asked(uint64_t command);
  // The number of the last read_clock that was answered.
  uint64_t answered() const { return answered_.load(std::memory_order_acquire); }
  // The body of a message. Returns false if it is malformed.
  bool take(std::span<const std::byte> body);

  void count(uint64_t sent, uint64_t received, uint64_t round_trips);
  // A span or an instant of the session. `name` lives for good.
  void note(const char* name, int64_t begin, int64_t duration, const std::string& detail);
  // Writes the last counts and the quality of the clock.
  void finish();

 private:
  void read_clock(const wire::TimelineBatch& batch, int64_t received);
  void take_record(const wire::TimelineRecord& record, std::string_view text);
  uint64_t track_of(const wire::TimelineRecord& record);
  const char* reason(std::string_view text);
  void name_row(const char* kind, uint64_t track, const std::string& name);
  void tell_clock();
  void push_counters(int64_t time);

  Recorder& recorder_;
  const int64_t process_, program_;
  const char* const name_;
  const char* const counters_name_;
  std::atomic<uint64_t> answered_{0};
  std::atomic<uint64_t> sent_{0}, received_{0}, round_trips_{0};
  std::atomic<int64_t> next_counters_{0};

  std::mutex mutex_;  // guards the rest
  ClockAlignment clock_;
  uint64_t clock_number_ = 0;  // wire::TimelineBatch::clock
  uint64_t question_ = 0;
  int64_t asked_at_ = 0;
  int64_t told_error_ = 0;  // 0: not told yet
  uint64_t gpu_error_ = 0;
  uint64_t dropped_there_ = 0, dropped_before_ = 0;            // of the present worker, and of earlier ones
  std::map<std::pair<uint64_t, uint64_t>, uint64_t> streams_;  // tracks by context and stream
  NameTable reasons_{kMostReasons, kMostReasonBytes};          // of waits
  uint64_t named_turns_ = 0, named_waits_ = 0;                 // bit masks
};

}  // namespace gpupool::client::timeline
