#include "client/timeline/server_track.h"

#include <algorithm>
#include <cstdio>

#include "protocol/wire/reader.h"

namespace gpupool::client::timeline {
namespace {

using wire::TimelineKind;

// Tracks of a server's rows. Streams come behind the others.
constexpr uint64_t kSessionTrack = 1, kFirstWaits = 10, kFirstTurns = 100, kFirstStream = 1000;
constexpr uint64_t kMostNumbered = 64;         // waiting threads, and GPUs
constexpr int64_t kCountersEvery = 1'000'000;  // nanoseconds
// Nanoseconds, 73 years: later times are refused, so that no sum or difference of two overflows.
constexpr uint64_t kLatest = uint64_t{1} << 61;

const char* name_of(TimelineKind kind) {
  switch (kind) {
    case TimelineKind::kernel: return "kernel";
    case TimelineKind::graph: return "graph";
    case TimelineKind::copy_to_device: return "copy to device";
    case TimelineKind::copy_from_device: return "copy from device";
    case TimelineKind::work_on_device: return "fill or copy on device";
    case TimelineKind::stream_wait: return "stream waits";
    case TimelineKind::worker_wait: return "worker waits";
    case TimelineKind::turn: return "turn on the GPU";
  }
  return nullptr;
}

bool is_wait(TimelineKind kind) {
  return kind == TimelineKind::stream_wait || kind == TimelineKind::worker_wait;
}

}  // namespace

ServerTrack::ServerTrack(Recorder& recorder, int64_t process, int64_t program, const std::string& name)
    : recorder_(recorder),
      process_(process),
      program_(program),
      name_(recorder.intern(name)),
      counters_name_(recorder.intern("traffic with " + name)) {
  name_row("thread_name", kSessionTrack, "session");
}

void ServerTrack::name_row(const char* kind, uint64_t track, const std::string& name) {
  recorder_.push({.phase = 'M',
                  .name = kind,
                  .process = process_,
                  .track = track,
                  .arguments = {{{"name", 0, recorder_.intern(name)}}}});
}

void ServerTrack::asked(uint64_t command) {
  const std::lock_guard lock(mutex_);
  question_ = command;
  asked_at_ = now();
}

void ServerTrack::read_clock(const wire::TimelineBatch& batch, int64_t received) {
  if (clock_number_ != batch.clock) {
    clock_number_ = batch.clock;
    clock_.restart();
    told_error_ = 0;
    dropped_before_ += dropped_there_;
    dropped_there_ = 0;
  }
  dropped_there_ = std::max(dropped_there_, batch.dropped);
  gpu_error_ = batch.gpu_error;
  if (batch.answers == 0) return;
  if (batch.answers == question_) {
    clock_.add(asked_at_, static_cast<int64_t>(batch.received), static_cast<int64_t>(batch.sent), received);
    if (told_error_ == 0 || clock_.error(received) < told_error_ / 2) tell_clock();
  }
  answered_.store(batch.answers, std::memory_order_release);
}

// Names the rows of the server with the quality of their times.
void ServerTrack::tell_clock() {
  told_error_ = std::max<int64_t>(1, clock_.error(now()));
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", static_cast<double>(told_error_) * 1e-3);
  name_row("process_name", 0, std::string(name_) + " (times of the server, within " + text + " us)");
}

bool ServerTrack::take(std::span<const std::byte> body) {
  const int64_t received = now();
  wire::Reader reader(body);
  const auto batch = reader.get<wire::TimelineBatch>();
  if (!reader.ok() || body.size() > wire::kMostTimelineBytes) return false;
  if (batch.received > kLatest || batch.sent > kLatest) return false;
  const std::lock_guard lock(mutex_);
  read_clock(batch, received);
  for (uint32_t i = 0; i < batch.records; ++i) {
    const auto record = reader.get<wire::TimelineRecord>();
    const auto text = reader.get_bytes(record.text_bytes);
    if (!reader.ok() || record.begin > kLatest || record.duration > kLatest) return false;
    take_record(record, {reinterpret_cast<const char*>(text.data()), text.size()});
  }
  return reader.finished();
}

uint64_t ServerTrack::track_of(const wire::TimelineRecord& record) {
  if (record.kind == TimelineKind::turn || record.kind == TimelineKind::worker_wait) {
    const bool turn = record.kind == TimelineKind::turn;
    const uint64_t number = std::min(record.subject, kMostNumbered - 1);
    const uint64_t track = (turn ? kFirstTurns : kFirstWaits) + number;
    uint64_t& named = turn ? named_turns_ : named_waits_;
    if ((named >> number & 1) == 0) {
      named |= uint64_t{1} << number;
      name_row("thread_name", track,
               turn          ? "turns on GPU " + std::to_string(number)
               : number == 0 ? "waits of the worker"
                             : "waits of worker thread " + std::to_string(number));
    }
    return track;
  }
  if (const auto known = streams_.find({record.context, record.stream}); known != streams_.end())
    return known->second;
  const uint64_t number = std::min<uint64_t>(streams_.size(), kMostTracks);
  const uint64_t track = kFirstStream + number;
  if (number == kMostTracks) return track;  // shared by all further streams
  streams_[{record.context, record.stream}] = track;
  char name[64];
  std::snprintf(name, sizeof name, record.stream == 0 ? "default stream" : "stream %llx",
                static_cast<unsigned long long>(record.stream));
  name_row("thread_name", track, name);
  return track;
}

const char* ServerTrack::reason(std::string_view text) {
  const char* const known = reasons_.find_or_add(text);
  return known ? known : "(other reasons)";
}

void ServerTrack::take_record(const wire::TimelineRecord& record, std::string_view text) {
  const char* const kind = name_of(record.kind);
  if (!kind) return;  // of a newer server
  if (!clock_.known()) return recorder_.count_dropped(1);
  TraceEvent event{.begin = clock_.to_local(static_cast<int64_t>(record.begin)),
                   .duration = static_cast<int64_t>(record.duration),
                   .name = kind,
                   .category = (record.flags & wire::kMeasuredByGpu) != 0 ? "gpu" : "server",
                   .process = process_,
                   .track = track_of(record)};
  auto* argument = event.arguments.data();
  *argument++ = {"command", record.command};
  switch (record.kind) {
    case TimelineKind::kernel:
      event.name = recorder_.kernel_name(record.subject);
      *argument++ = {"grid", pack_size(record.grid), nullptr, true};
      *argument++ = {"block", pack_size(record.block), nullptr, true};
      break;
    case TimelineKind::graph: *argument++ = {"nodes", record.subject}; break;
    case TimelineKind::copy_to_device:
    case TimelineKind::copy_from_device:
    case TimelineKind::work_on_device: *argument++ = {"bytes", record.subject}; break;
    case TimelineKind::stream_wait:
    case TimelineKind::worker_wait: *argument++ = {"for", 0, reason(text)}; break;
    case TimelineKind::turn: break;
  }
  if (is_wait(record.kind)) event.category = "wait";
  recorder_.push(event);
}

void ServerTrack::count(uint64_t sent, uint64_t received, uint64_t round_trips) {
  sent_.fetch_add(sent, std::memory_order_relaxed);
  received_.fetch_add(received, std::memory_order_relaxed);
  round_trips_.fetch_add(round_trips, std::memory_order_relaxed);
  const int64_t time = now();
  int64_t due = next_counters_.load(std::memory_order_relaxed);
  if (time < due || !next_counters_.compare_exchange_strong(due, time + kCountersEvery)) return;
  push_counters(time);
}

void ServerTrack::push_counters(int64_t time) {
  recorder_.push({.phase = 'C',
                  .begin = time,
                  .name = counters_name_,
                  .process = program_,
                  .arguments = {{{"bytes sent", sent_.load(std::memory_order_relaxed)},
                                 {"bytes received", received_.load(std::memory_order_relaxed)},
                                 {"round trips", round_trips_.load(std::memory_order_relaxed)}}}});
}

void ServerTrack::note(const char* name, int64_t begin, int64_t duration, const std::string& detail) {
  recorder_.push({.begin = begin,
                  .duration = duration,
                  .name = name,
                  .category = "session",
                  .process = process_,
                  .track = kSessionTrack,
                  .arguments = {{{"detail", 0, recorder_.intern(detail)}}}});
}

void ServerTrack::finish() {
  const int64_t time = now();
  push_counters(time);
  const std::lock_guard lock(mutex_);
  recorder_.push(
      {.phase = 'i',
       .begin = time,
       .name = "quality of the server's times",
       .category = "timeline",
       .process = process_,
       .track = kSessionTrack,
       .arguments = {{{"clock_known", clock_.known() ? 1u : 0u},
                      {"clock_error_ns", static_cast<uint64_t>(clock_.known() ? clock_.error(time) : 0)},
                      {"gpu_error_ns", gpu_error_},
                      {"dropped_on_server", dropped_before_ + dropped_there_}}}});
}

}  // namespace gpupool::client::timeline
