#include "server/worker/compute/compute_gate.h"

#include <algorithm>
#include <system_error>

#include "protocol/control/dump.pb.h"

namespace gpupool::worker {
namespace {

using quota::TurnWord;
using std::chrono::nanoseconds;
using namespace std::chrono_literals;

constexpr uint64_t kMaxCommandsAlone = 1024;  // commands in one piece while the GPU is not shared
// Unfinished pieces per stream while the GPU is not shared; beyond that, pieces get longer.
constexpr size_t kPiecesAlone = 64;
constexpr uint64_t kMaxCommandsShared = 64;  // commands in one piece while the GPU is shared
constexpr double kPiece = 0.5e6;             // expected nanoseconds of one piece while the GPU is shared
constexpr double kAhead = 2e6;               // nanoseconds of work on the device while the GPU is shared
// Work that has not started by then is taken to wait for something else.
constexpr nanoseconds kStartGrace = 2ms;
constexpr std::chrono::microseconds kReapAlone{20'000};

void add(std::atomic<uint64_t>& counter, double nanoseconds) {
  quota::count(counter, static_cast<uint64_t>(std::max(0.0, nanoseconds)));
}

}  // namespace

ComputeGate::ComputeGate(const DeviceApi& api, const Usage& usage, WaitPool& waits,
                         std::function<void()> ring, std::function<void()> wake)
    : api_(api), page_(usage.page), waits_(waits), ring_(std::move(ring)), wake_(std::move(wake)) {}

ComputeGate::~ComputeGate() {
  stop();
  if (watcher_.joinable()) watcher_.join();
}

void ComputeGate::load(const SymbolLookup& symbol) {
  elapsed_ = reinterpret_cast<decltype(elapsed_)>(symbol("cuEventElapsedTime"));
}

bool ComputeGate::add_lane(StreamState& stream) {
  const auto index = static_cast<uint32_t>(stream.context->device);
  const Lock lock(mutex_);
  if (stopped_ || index >= quota::kMostGpus) return false;
  auto found = std::find_if(gpus_.begin(), gpus_.end(), [&](const auto& gpu) { return gpu->index == index; });
  if (found == gpus_.end()) {
    auto gpu = std::make_unique<ComputeGpu>();
    gpu->index = index;
    gpu->turn = &(*page_)->turns[index];
    gpu->use = &(*page_)->gpus[index];
    found = gpus_.insert(gpus_.end(), std::move(gpu));
  }
  if (!watcher_.joinable()) {
    try {
      watcher_ = std::thread([this] { run_watcher(); });
    } catch (const std::system_error&) {
      return false;
    }
  }
  stream.compute = std::make_shared<ComputeLane>(**found, stream);
  (*found)->lanes.push_back(stream.compute);
  return true;
}

bool ComputeGate::enter(StreamState& stream, const WorkKind& kind) {
  if (!stream.compute && !add_lane(stream)) return false;
  ComputeLane& lane = *stream.compute;
  const auto is_free = [&] { return TurnWord{lane.gpu.turn->load(std::memory_order_acquire)}.free(); };
  bool pass = is_free();
  if (pass && (!lane.open || lane.executor_slept)) {
    begin_alone(lane);
    pass = is_free();  // an open piece keeps the turn from being given up, so check again
  }
  if (!pass && !wait_for_turn(lane, kind)) return false;
  lane.kind = lane.commands == 0 || lane.kind == kind ? kind : WorkKind{};
  if (kind.is_kernel()) quota::count(lane.gpu.use->launches);
  return true;
}

void ComputeGate::left(ComputeLane& lane) {
  ++lane.commands;
  const TurnWord word{lane.gpu.turn->load(std::memory_order_relaxed)};
  if (word.free()) {
    if (lane.commands % kMaxCommandsAlone != 0) return;
    {
      const Lock lock(mutex_);
      reap(lane);
      if (lane.pieces.size() >= kPiecesAlone) return;
    }
    return end(lane);
  }
  bool full = word.single() || lane.commands >= kMaxCommandsShared;
  if (!full) {
    const Lock lock(mutex_);
    full = lane.expected >= kPiece || (lane.kind.shape != 0 && !estimates_.knows(lane.kind));
  }
  if (full) end(lane);
}

void ComputeGate::pause(StreamState& stream) {
  if (!page_ || (!stream.compute && !add_lane(stream))) return;
  if (stream.compute->open) end(*stream.compute);
  stream.compute->follows_wait = true;
}

// Waits for the turn, and until little enough work is on the device. The lane has an open piece on success.
bool ComputeGate::wait_for_turn(ComputeLane& lane, const WorkKind& kind) {
  ComputeGpu& gpu = lane.gpu;
  if (lane.open && lane.sampled) end(lane);  // while the GPU is shared all work is measured
  if (lane.open && lane.commands != 0 && !(lane.kind == kind)) {
    bool known = false;
    {
      const Lock lock(mutex_);
      known = estimates_.knows(kind);
    }
    if (!known) end(lane);  // measure an unknown kind by itself
  }
  const Waiting waiting("its turn on the GPU");
  Clock::time_point shut{}, crowded{}, asked{};
  const auto count_wait = [&](Clock::time_point now) {
    if (shut != Clock::time_point{})
      add(gpu.use->throttled_nanoseconds, static_cast<double>(nanoseconds(now - shut).count()));
    shut = {};
  };
  Lock lock(mutex_);
  gpu.executor_waits = true;
  bool pass = false;
  while (!stopped_) {
    auto next = settle(gpu);
    const auto now = Clock::now();
    const TurnWord word{gpu.turn->load(std::memory_order_acquire)};
    if (word.open()) {
      count_wait(now);
      set_held(gpu, true);
      const double flying = in_flight(gpu, now);
      if (word.free() || flying == 0 || (!word.single() && flying < kAhead)) {
        pass = true;
        break;
      }
      if (!word.single()) next = std::min(next, nanoseconds(static_cast<int64_t>(flying - kAhead) + 1));
      if (crowded == Clock::time_point{}) crowded = now;
      if (now - crowded > kLongest) {  // the earlier work may be waiting for this command
        for (const auto& other : gpu.lanes) other->overrun_pieces = other->pieces.size();
      }
    } else {
      if (shut == Clock::time_point{}) shut = now;
      // give_up() has already asked for the next turn
      const bool told = asked == Clock::time_point{} && (*page_)->wants_turn[gpu.index].load() != 0;
      if (word.closed() && now - asked > kAskAgain) {
        asked = now;
        if (!told) ask(gpu);
      }
    }
    if (!open_.empty()) {
      lock.unlock();
      end_all();
      lock.lock();
      continue;
    }
    changed_.wait_for(lock, std::min(next, kAskAgain));
  }
  count_wait(Clock::now());
  gpu.executor_waits = false;
  (*page_)->wants_turn[gpu.index].store(0);
  gpu.idle_since = {};
  if (!pass) return false;
  lane.expected = (lane.open ? lane.expected : 0) + estimates_.of(kind);
  const bool begins = !lane.open;
  lane.open = true;  // from here on the turn is not given up
  lock.unlock();
  if (begins) begin(lane);
  return true;
}

void ComputeGate::begin(ComputeLane& lane) {
  {
    const Lock lock(mutex_);
    lane.open = true;
    lane.seen_idle = false;
  }
  open_.push_back(&lane);
  lane.follows_wait = false;
  lane.commands = 0;
  lane.kind = {};
  lane.start = lane.events->take();
  if (!lane.start || api_.cuEventRecord(lane.start, lane.stream) == CUDA_SUCCESS) return;
  lane.events->give(std::exchange(lane.start, nullptr));
}

void ComputeGate::end(ComputeLane& lane) {
  std::erase(open_, &lane);
  if (lane.sampled) {
    const Lock lock(mutex_);
    if (lane.seen_idle) {  // the sampled work has ended, so no event is needed
      lane.open = lane.sampled = lane.executor_slept = lane.seen_idle = false;
      return;
    }
  }
  const VisitContext visit(api_, lane.context);
  CUevent last = lane.start || lane.sampled ? lane.events->take() : nullptr;
  if (last && api_.cuEventRecord(last, lane.stream) != CUDA_SUCCESS)
    lane.events->give(std::exchange(last, nullptr));
  const Lock lock(mutex_);
  const bool sampled = lane.sampled;
  lane.open = lane.sampled = lane.executor_slept = false;
  if (!last) {  // no event available, or the context is broken: not measured
    if (lane.start) lane.events->give(std::exchange(lane.start, nullptr));
    lane.expected = 0;
    return;
  }
  const bool one_kind = lane.kind.shape != 0;
  const bool known = one_kind ? estimates_.knows(lane.kind) : lane.expected != 0;
  const double expected =
      one_kind || !known ? estimates_.of(lane.kind) * static_cast<double>(lane.commands) : lane.expected;
  if (lane.pieces.empty()) {
    lane.front_since = Clock::now();
    lane.front_started = false;
  }
  // The start time of a sampled piece is unknown, and with it the expected end.
  lane.pieces.push_back(
      {std::exchange(lane.start, nullptr), last, lane.commands, lane.kind, expected, known && !sampled});
  lane.commands = 0;
  lane.expected = 0;
}

void ComputeGate::end_all() {
  while (!open_.empty()) end(*open_.back());
}

// Call when the executor is about to sleep. Ends the open pieces; sampled pieces stay open, without an end
// event, while the GPU is not shared.
void ComputeGate::close_pieces_before_sleep() {
  for (size_t i = open_.size(); i-- > 0;) {
    ComputeLane& lane = *open_[i];
    if (!lane.sampled || !TurnWord{lane.gpu.turn->load(std::memory_order_acquire)}.free()) {
      end(lane);
    } else if (!lane.executor_slept) {
      const Lock lock(mutex_);
      lane.executor_slept = true;
    }
  }
}

void ComputeGate::end_pieces_now() {
  attention_.store(false);
  end_all();
  const Lock lock(mutex_);
  settle_all();
}

std::optional<std::chrono::microseconds> ComputeGate::before_sleep() {
  if (!page_) return std::nullopt;
  close_pieces_before_sleep();
  const Lock lock(mutex_);
  settle_all();
  for (const auto& gpu : gpus_) {
    for (const auto& lane : gpu->lanes) {
      if (!lane->watched && !lane->pieces.empty()) return kReapAlone;
    }
  }
  return std::nullopt;
}

// Returns the expected remaining time, in nanoseconds, of work on the device that does not wait for anything
// else.
double ComputeGate::in_flight(ComputeGpu& gpu, Clock::time_point now) {
  double sum = 0;
  for (const auto& lane : gpu.lanes) {
    if (lane->may_be_at_work()) sum += std::max(1.0, lane->expected);
    if (lane->pieces.empty() || lane->overrun_pieces != 0 || is_blocked(*lane, now)) continue;
    for (const ComputePiece& piece : lane->pieces) sum += std::max(1.0, piece.expected);
    const ComputePiece& front = lane->pieces.front();
    if (lane->front_started)
      sum -= std::clamp(static_cast<double>(nanoseconds(now - lane->front_since).count()), 0.0,
                        std::max(0.0, front.expected - 1));
  }
  return sum;
}

// True if all work on the device is of known kinds and is expected to end within kHandOver.
bool ComputeGate::almost_done(ComputeGpu& gpu, double flying) const {
  return flying <= kHandOver && std::all_of(gpu.lanes.begin(), gpu.lanes.end(), [](const auto& lane) {
           return !lane->may_be_at_work() &&
                  std::all_of(lane->pieces.begin(), lane->pieces.end(),
                              [](const ComputePiece& piece) { return piece.known; });
         });
}

bool ComputeGate::is_blocked(ComputeLane& lane, Clock::time_point now) {
  if (lane.front_started) return false;
  const VisitContext visit(api_, lane.context);
  // A sampled piece has no start event; assume that it has started.
  lane.front_started =
      !lane.pieces.front().start || api_.cuEventQuery(lane.pieces.front().start) != CUDA_ERROR_NOT_READY;
  return !lane.front_started && now - lane.front_since > kStartGrace;
}

// Removes finished pieces from the front of the lane, unless a wait thread does that.
void ComputeGate::reap(ComputeLane& lane) {
  if (lane.watched || lane.pieces.empty()) return;
  const VisitContext visit(api_, lane.context);
  while (!lane.pieces.empty() && api_.cuEventQuery(lane.pieces.front().end) != CUDA_ERROR_NOT_READY)
    pop(lane);
}

void ComputeGate::pop(ComputeLane& lane) {
  const ComputePiece piece = lane.pieces.front();
  lane.pieces.pop_front();
  lane.front_since = Clock::now();
  lane.front_started = false;
  if (lane.overrun_pieces != 0) --lane.overrun_pieces;
  add(lane.gpu.use->gpu_nanoseconds, charge(lane, piece));
  if (piece.start) lane.events->give(piece.start);
}

// Returns the GPU time to charge for the piece: its length, less what overlaps with measured pieces of the
// same context.
double ComputeGate::charge(ComputeLane& lane, const ComputePiece& piece) {
  float length = 0, after = 0;
  if (!elapsed_ || !piece.start || elapsed_(&length, piece.start, piece.end) != CUDA_SUCCESS || length < 0)
    length = 0;
  const double nanoseconds = length * 1e6;
  if (piece.kind.shape != 0 && nanoseconds > 0) {
    estimates_.learn(piece.kind, nanoseconds / static_cast<double>(std::max<uint64_t>(1, piece.commands)));
  }
  const auto [latest, first] = lane.gpu.latest.try_emplace(lane.context, piece.end);
  if (first) return nanoseconds;
  if (!elapsed_ || elapsed_(&after, latest->second, piece.end) != CUDA_SUCCESS || after <= 0) {
    lane.events->give(piece.end);
    return 0;
  }
  lane.events->give(std::exchange(latest->second, piece.end));
  return std::min(nanoseconds, after * 1e6);
}

void ComputeGate::before_stream_destroyed(StreamState& stream) {
  if (!stream.compute) return;
  if (stream.compute->open) end(*stream.compute);
  const Lock lock(mutex_);
  stream.compute->orphan = true;
  stream.compute.reset();
}

void ComputeGate::leave(const ContextState& context) {
  if (!page_) return;
  end_all();
  const Lock lock(mutex_);
  for (const auto& gpu : gpus_) {
    for (const auto& lane : gpu->lanes) lane->leaving |= lane->context == context.object;
  }
}

void ComputeGate::drop(const ContextState& context) {
  if (!page_) return;
  end_all();
  const Lock lock(mutex_);
  for (const auto& gpu : gpus_) {
    for (const auto& lane : gpu->lanes) {
      if (lane->context != context.object) continue;
      lane->orphan = true;
      while (!lane->pieces.empty()) pop(*lane);
    }
    std::erase_if(gpu->lanes, [&](const auto& lane) { return lane->context == context.object; });
    if (const auto latest = gpu->latest.find(context.object); latest != gpu->latest.end()) {
      context.timed_events->give(latest->second);
      gpu->latest.erase(latest);
    }
  }
}

void ComputeGate::describe(admin::WorkerDump& dump) {
  const Lock lock(mutex_, std::try_to_lock);
  if (!lock) {
    dump.add_busy_locks("GPU work");
    return;
  }
  for (const auto& gpu : gpus_) {
    admin::GpuWork& work = *dump.add_work();
    work.set_gpu(gpu->index);
    for (const auto& lane : gpu->lanes) {
      const auto pieces = static_cast<uint32_t>(lane->pieces.size() + lane->may_be_at_work());
      work.set_streams(work.streams() + (pieces != 0));
      work.set_pieces(work.pieces() + pieces);
    }
  }
}

void ComputeGate::stop() {
  if (!page_ || stopped_.exchange(true)) return;
  changed_.notify_all();  // without the lock, a waiting executor can miss it, and looks after kAskAgain
  quota::wake_worker((*page_)->bell);
}

}  // namespace gpupool::worker
