// How long the device is at work on a session that is alone on its GPU and sleeps often, without an event before and behind each piece of work:
// the watcher's thread asks at random moments, one in each span of kSampleEvery, and each answer stands for such a span. So the sum is right on
// average, whatever the work is, with a standard deviation of at most 35 ms over a second.
// Nobody asks once the device was seen idle while the executor sleeps.
#include <algorithm>
#include <unordered_map>

#include "server/worker/compute_gate.h"

namespace gpupool::worker {
namespace {

using std::chrono::nanoseconds;
using namespace std::chrono_literals;

constexpr nanoseconds kMeasureEvery = 10ms;  // a piece, alone, in the long run
constexpr nanoseconds kMeasureAhead = 310ms; // what short programs do is measured: 32 pieces at once
constexpr nanoseconds kSampleEvery = 5ms;
constexpr int64_t kMostMissed = 20;          // moments that one answer stands for, where the thread comes late

int64_t slot_of(ComputeLane::Clock::time_point time) { return nanoseconds(time.time_since_epoch()) / kSampleEvery; }

bool may_be_sampled(const ComputeLane& lane) {
  if (lane.sampled && lane.may_be_at_work()) return true;
  return std::any_of(lane.pieces.begin(), lane.pieces.end(), [](const ComputePiece& piece) { return !piece.start; });
}

}  // namespace

void ComputeGate::begin_alone(ComputeLane& lane) {
  const auto now = Clock::now();
  auto& next = lane.gpu.next_measured;
  if (lane.samplable && !lane.behind_wait && api_.cuStreamQuery && next > now + kMeasureAhead) return begin_sampled(lane, now);
  next = std::max(next, now) + kMeasureEvery;
  if (lane.open) end(lane);
  begin(lane);
}

// Or goes on with the open one.
void ComputeGate::begin_sampled(ComputeLane& lane, Clock::time_point now) {
  if (!lane.open) open_.push_back(&lane);
  lane.works = 0;
  lane.kind = {};
  {
    const Lock lock(mutex_);
    lane.open = lane.sampled = true;
    lane.resting = lane.seen_idle = false;
    if (std::exchange(sampling_, true)) return;
    draw_next_sample(now);
  }
  quota::ring_bell((*page_)->bell);
}

// Each span has one moment, also when nobody asked in it: otherwise the beginning of work would be asked about more often than the rest.
void ComputeGate::draw_next_sample(Clock::time_point now) {
  while (next_sample_ <= now) {
    sample_slot_ = std::max(slot_of(now), sample_slot_ + 1);
    const nanoseconds within(std::uniform_int_distribution<int64_t>(0, kSampleEvery.count() - 1)(random_));
    next_sample_ = Clock::time_point(std::chrono::duration_cast<Clock::duration>(sample_slot_ * kSampleEvery + within));
  }
}

// When to come again. Finished pieces have been reaped.
nanoseconds ComputeGate::take_samples() {
  if (!sampling_) return kLongest;
  const auto now = Clock::now();
  const bool due = next_sample_ <= now;
  const int64_t spans = std::clamp<int64_t>(slot_of(now) - sample_slot_ + 1, 1, kMostMissed);
  bool more = false;
  for (const auto& gpu : gpus_) {
    if (due) sample(*gpu, spans * kSampleEvery);
    more |= std::any_of(gpu->lanes.begin(), gpu->lanes.end(), [](const auto& lane) { return may_be_sampled(*lane); });
  }
  sampling_ = more;
  if (due) {
    sample_slot_ = std::max(sample_slot_, slot_of(now));
    draw_next_sample(now);
  }
  return more ? std::max(nanoseconds(next_sample_ - now), 0ns) : kLongest;
}

// Of a lane with an open sampled piece.
bool ComputeGate::is_idle(ComputeLane& lane) {
  const VisitContext visit(api_, lane.context);
  const bool idle = api_.cuStreamQuery(lane.stream) != CUDA_ERROR_NOT_READY;
  lane.seen_idle = idle && lane.resting;
  return idle;
}

// No event says when the device is done with them.
bool ComputeGate::any_resting_at_work(ComputeGpu& gpu) {
  bool any = false;
  for (const auto& lane : gpu.lanes) any |= lane->resting && !lane->seen_idle && !is_idle(*lane);
  return any;
}

// Counts `weight` for each context in which the device is at work on sampled pieces, and on none that is measured.
void ComputeGate::sample(ComputeGpu& gpu, nanoseconds weight) {
  std::unordered_map<CUcontext, bool> at_work;  // false: on a measured piece
  for (const auto& lane : gpu.lanes) {
    bool sampled = lane->sampled, works = lane->may_be_at_work();
    if (!lane->pieces.empty()) {
      const ComputePiece& front = lane->pieces.front();
      const VisitContext visit(api_, lane->context);
      sampled = !front.start;
      works = (sampled ? api_.cuEventQuery(front.end) == CUDA_ERROR_NOT_READY : api_.cuEventQuery(front.start) != CUDA_ERROR_NOT_READY);
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
