// When a session gives up its turn on a GPU and when it asks for one. Runs on the watcher thread, on wait
// threads, and on the executor's thread. All functions but run_waiter() and run_watcher() require
// ComputeGate's mutex_.
#include <algorithm>

#include "server/worker/compute/compute_gate.h"

namespace gpupool::worker {
namespace {

using quota::TurnWord;
using std::chrono::nanoseconds;
using namespace std::chrono_literals;

// Idle time before a turn is given up; a program that waits after each command sends the next one within
// this.
constexpr nanoseconds kLinger = 200us;
constexpr nanoseconds kCheckEvery = 1ms;  // interval of checks for work that has not started

}  // namespace

void ComputeGate::watch(const std::shared_ptr<ComputeLane>& lane) {
  lane->watched =
      waits_.submit(lane->context, "measuring the work of a stream", [this, lane] { run_waiter(lane); });
}

void ComputeGate::run_waiter(const std::shared_ptr<ComputeLane>& lane) {
  make_current(api_, lane->context);
  {
    Lock lock(mutex_);
    while (!stopped_ && !lane->pieces.empty() &&
           !TurnWord{lane->gpu.turn->load(std::memory_order_relaxed)}.free()) {
      const CUevent oldest = lane->pieces.front().end;
      lock.unlock();
      api_.cuEventSynchronize(oldest);
      lock.lock();
      do {
        pop(*lane);
      } while (!lane->pieces.empty() && api_.cuEventQuery(lane->pieces.front().end) != CUDA_ERROR_NOT_READY);
      if (settle(lane->gpu) < kLongest) quota::wake_worker((*page_)->bell);
      changed_.notify_all();
    }
    lane->watched = false;
  }
  make_current(api_, nullptr);
}

// Processes finished work and changes of the turn word, and gives the turn up when it is due. Returns the
// longest time until the next call.
nanoseconds ComputeGate::settle(ComputeGpu& gpu) {
  const auto now = Clock::now();
  const TurnWord word{gpu.turn->load(std::memory_order_acquire)};
  bool unwatched = false;
  for (const auto& lane : gpu.lanes) {
    reap(*lane);
    if (word.free() || lane->pieces.empty() || lane->watched || lane->leaving || stopped_) continue;
    watch(lane);
    unwatched |= !lane->watched;
  }
  std::erase_if(gpu.lanes,
                [](const auto& lane) { return lane->orphan && lane->pieces.empty() && !lane->open; });
  if (word.closed() && set_held(gpu, false)) {  // poold has taken the turn away
    for (const auto& lane : gpu.lanes) lane->overrun_pieces = lane->pieces.size();
  }
  if (!word.closed()) set_held(gpu, true);
  if (!word.yield() && !(word.open() && word.wanted())) {
    gpu.idle_since = {};
    return unwatched ? kCheckEvery : kLongest;
  }
  if (const double flying = in_flight(gpu, now); flying > 0) {
    gpu.idle_since = {};
    const bool begun = std::all_of(gpu.lanes.begin(), gpu.lanes.end(), [](const auto& lane) {
      return lane->pieces.empty() || lane->front_started;
    });
    if (!begun || unwatched) return kCheckEvery;
    if (!word.yield()) return kLongest;
    if (flying > kHandOver) return std::min(kLongest, nanoseconds(static_cast<int64_t>(flying - kHandOver)));
    if (almost_done(gpu, flying)) give_up(gpu);
    return kLongest;
  }
  if (gpu.idle_since == Clock::time_point{}) gpu.idle_since = now;
  const nanoseconds idle = now - gpu.idle_since;
  if (word.open() && idle < kLinger) return kLinger - idle;
  give_up(gpu);
  return kLongest;
}

nanoseconds ComputeGate::settle_all() {
  nanoseconds next = kLongest;
  for (const auto& gpu : gpus_) next = std::min(next, settle(*gpu));
  return next;
}

bool ComputeGate::set_held(ComputeGpu& gpu, bool held) {
  const bool before = std::exchange(gpu.held, held);
  if (before == held) return before;
  if (held)
    gpu.held_since = Clock::now();
  else if (turn_ended_)
    turn_ended_(gpu.index, gpu.held_since);
  return before;
}

void ComputeGate::give_up(ComputeGpu& gpu) {
  (*page_)->wants_turn[gpu.index].store(gpu.executor_waits && !stopped_ ? 1 : 0);
  uint32_t word = gpu.turn->load();
  if (!TurnWord{word}.closed() && gpu.turn->compare_exchange_strong(word, TurnWord{word}.given_up().word))
    set_held(gpu, false);
  ring_();
}

void ComputeGate::ask(ComputeGpu& gpu) {
  (*page_)->wants_turn[gpu.index].store(1);
  ring_();
}

void ComputeGate::run_watcher() {
  Lock lock(mutex_);
  while (!stopped_) {
    const uint32_t seen = (*page_)->bell.load();
    bool shared = false, to_be_ended = false;
    for (const auto& gpu : gpus_) {
      if (TurnWord{gpu->turn->load()}.free()) continue;
      shared = true;
      to_be_ended |= any_open_piece_at_work(*gpu);
    }
    const auto next = std::min(settle_all(), take_samples());
    changed_.notify_all();
    if (shared) attention_.store(true);
    lock.unlock();
    if (to_be_ended) wake_();
    quota::wait_for_turn_change((*page_)->bell, seen, next);
    lock.lock();
  }
  for (const auto& gpu : gpus_) give_up(*gpu);
  changed_.notify_all();
}

}  // namespace gpupool::worker
