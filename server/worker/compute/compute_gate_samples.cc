// Sampling of GPU time, for a session that is alone on its GPU and sleeps often, instead of events around
// each piece of work. The watcher thread checks at one random moment in each interval of kSampleEvery whether
// the device is working on the session's sampled pieces; each positive check counts for a whole interval. The
// expected value of the sum is correct for any pattern of work, with a standard deviation of at most 35 ms
// over one second. No checks are made once the device was seen idle while the executor sleeps.
#include <algorithm>
#include <unordered_map>

#include "server/worker/compute/compute_gate.h"

namespace gpupool::worker {
namespace {

using std::chrono::nanoseconds;
using namespace std::chrono_literals;

constexpr nanoseconds kMeasureEvery = 10ms;  // average interval of measured pieces while alone
// Credit for measured pieces: 32 at once, so that short programs are measured entirely.
constexpr nanoseconds kMeasureAhead = 310ms;
constexpr nanoseconds kSampleEvery = 5ms;
constexpr int64_t kMostMissed = 20;  // intervals that one check counts for at most if the thread runs late

int64_t slot_of(ComputeLane::Clock::time_point time) {
  return nanoseconds(time.time_since_epoch()) / kSampleEvery;
}

bool may_be_sampled(const ComputeLane& lane) {
  if (lane.sampled && lane.may_be_at_work()) return true;
  return std::any_of(lane.pieces.begin(), lane.pieces.end(),
                     [](const ComputePiece& piece) { return !piece.start; });
}

}  // namespace

void ComputeGate::begin_alone(ComputeLane& lane) {
  const auto now = Clock::now();
  auto& next = lane.gpu.next_measured;
  if (lane.samplable && !lane.follows_wait && api_.cuStreamQuery && next > now + kMeasureAhead)
    return begin_sampled(lane, now);
  next = std::max(next, now) + kMeasureEvery;
  if (lane.open) end(lane);
  begin(lane);
}

// Starts a sampled piece, or restarts the one that is open.
void ComputeGate::begin_sampled(ComputeLane& lane, Clock::time_point now) {
  if (!lane.open) open_.push_back(&lane);
  lane.commands = 0;
  lane.kind = {};
  {
    const Lock lock(mutex_);
    lane.open = lane.sampled = true;
    lane.executor_slept = lane.seen_idle = false;
    if (std::exchange(sampling_, true)) return;
    draw_next_sample(now);
  }
  quota::wake_worker((*page_)->bell);
}

// Draws one moment per interval, also for intervals without a check. Otherwise the start of work would be
// sampled more often than the rest.
void ComputeGate::draw_next_sample(Clock::time_point now) {
  while (next_sample_ <= now) {
    sample_slot_ = std::max(slot_of(now), sample_slot_ + 1);
    const nanoseconds within(std::uniform_int_distribution<int64_t>(0, kSampleEvery.count() - 1)(random_));
    next_sample_ =
        Clock::time_point(std::chrono::duration_cast<Clock::duration>(sample_slot_ * kSampleEvery + within));
  }
}

// Takes due samples and returns the time until the next call. Finished pieces must have been reaped.
nanoseconds ComputeGate::take_samples() {
  if (!sampling_) return kLongest;
  const auto now = Clock::now();
  const bool due = next_sample_ <= now;
  const int64_t spans = std::clamp<int64_t>(slot_of(now) - sample_slot_ + 1, 1, kMostMissed);
  bool more = false;
  for (const auto& gpu : gpus_) {
    if (due) sample(*gpu, spans * kSampleEvery);
    more |= std::any_of(gpu->lanes.begin(), gpu->lanes.end(),
                        [](const auto& lane) { return may_be_sampled(*lane); });
  }
  sampling_ = more;
  if (due) {
    sample_slot_ = std::max(sample_slot_, slot_of(now));
    draw_next_sample(now);
  }
  return more ? std::max(nanoseconds(next_sample_ - now), 0ns) : kLongest;
}

// Checks whether the stream of an open sampled piece is idle.
bool ComputeGate::is_idle(ComputeLane& lane) {
  const VisitContext visit(api_, lane.context);
  const bool idle = api_.cuStreamQuery(lane.stream) != CUDA_ERROR_NOT_READY;
  lane.seen_idle = idle && lane.executor_slept;
  return idle;
}

// True if the device is working on a piece that stays open while the executor sleeps; no event will report
// the end of the piece.
bool ComputeGate::any_open_piece_at_work(ComputeGpu& gpu) {
  bool any = false;
  for (const auto& lane : gpu.lanes) any |= lane->executor_slept && !lane->seen_idle && !is_idle(*lane);
  return any;
}

// Charges `weight` for each context in which the device is working on sampled pieces only.
void ComputeGate::sample(ComputeGpu& gpu, nanoseconds weight) {
  std::unordered_map<CUcontext, bool> at_work;  // by context; false: on at least one measured piece
  for (const auto& lane : gpu.lanes) {
    bool sampled = lane->sampled, works = lane->may_be_at_work();
    if (!lane->pieces.empty()) {
      const ComputePiece& front = lane->pieces.front();
      const VisitContext visit(api_, lane->context);
      sampled = !front.start;
      works = (sampled ? api_.cuEventQuery(front.end) == CUDA_ERROR_NOT_READY
                       : api_.cuEventQuery(front.start) != CUDA_ERROR_NOT_READY);
    } else if (works && sampled) {
      works = !is_idle(*lane);
    }
    if (works) at_work.try_emplace(lane->context, sampled).first->second &= sampled;
  }
  for (const auto& [context, sampled] : at_work) {
    if (sampled) quota::count(gpu.use->gpu_nanoseconds, static_cast<uint64_t>(weight.count()));
  }
}

}  // namespace gpupool::worker
