// Worker: the body of a pool thread. Claims chunks of blocks, runs them, and reports finished ones to the
// Pool.
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <utility>

#include "server/softgpu/exec/faults.h"
#include "server/softgpu/exec/pool.h"

#if defined(GPUPOOL_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace gpupool::softgpu {
namespace {

// Limits the number of blocks claimed at once, so that all workers end at about the same time: a worker
// claims its share of the remaining blocks divided by kChunksPerWorker, at least one and at most kMaxChunk.
constexpr uint64_t kMaxChunk = 64;
constexpr uint64_t kChunksPerWorker = 4;
// If all blocks of a worker only spin for kSpinBeforeExtraBlocks, further blocks start beside them, up to
// kMaxExtraBlocks.
constexpr uint64_t kSpinBeforeExtraBlocks = 100'000;  // nanoseconds
constexpr size_t kMaxExtraBlocks = 64;
constexpr size_t kMaxSpareBlocks = 4;

}  // namespace

void Worker::run() {
  // The program's signals are delivered to the program's own threads. Synchronous fault signals must not be
  // blocked.
  sigset_t all;
  sigfillset(&all);
  for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) sigdelset(&all, fault);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
  pthread_setname_np(pthread_self(), "softgpu");

  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
    void* bottom = nullptr;
    size_t bytes = 0;
    pthread_attr_getstack(&attributes, &bottom, &bytes);
    own_stack_.bottom = reinterpret_cast<uint64_t>(bottom);
    own_stack_.bytes = bytes;
    pthread_attr_destroy(&attributes);
  }
#if defined(GPUPOOL_TSAN)
  own_stack_.tsan = __tsan_get_current_fiber();
#endif
  SignalStack signal_stack;
  bool long_idle = false;
  for (;;) {
    if (step()) {
      long_idle = false;
      continue;
    }
    drop_turn();
    const bool was_idle = long_idle;
    if (!pool_.wait_for_work(number_, &long_idle)) break;
    if (long_idle && !was_idle) {
      spare_.clear();
      fibers_.trim();
    }
  }
  spare_.clear();
}

// Starts or advances blocks; returns false if there is nothing to do.
bool Worker::step() {
  if (live_.empty()) return start_block();
  advance_live_blocks();
  return true;
}

bool Worker::claim(Grid** grid, uint64_t* index) {
  for (;;) {
    if (grid_ != nullptr && chunk_next_ < chunk_end_) {
      *grid = grid_;
      *index = chunk_next_++;
      return true;
    }
    if (grid_ != nullptr) {
      const uint64_t claimed = grid_->next.load(std::memory_order_relaxed);
      if (claimed < grid_->blocks) {
        const uint64_t fair = (grid_->blocks - claimed) / (uint64_t{grid_->workers} * kChunksPerWorker);
        uint64_t wanted = grid_->request.cooperative ? 1 : std::clamp<uint64_t>(fair, 1, kMaxChunk);
        wanted = round_up(wanted, grid_->cluster_blocks);
        chunk_next_ = grid_->next.fetch_add(wanted);
        chunk_end_ = std::min(chunk_next_ + wanted, grid_->blocks);
        if (chunk_next_ < chunk_end_) continue;
      }
      count_finished();
      pool_.release(std::exchange(grid_, nullptr));
    }
    chunk_next_ = chunk_end_ = 0;
    grid_ = pool_.more_to_claim() ? pool_.first_grid(number_) : nullptr;
    if (grid_ == nullptr) return false;
    // Wake another worker for the rest of this grid or for the next one.
    if (grid_->blocks - std::min(grid_->blocks, grid_->next.load(std::memory_order_relaxed)) > 1 ||
        pool_.more_than_one_queued()) {
      pool_.wake_helper(*grid_);
    }
  }
}

bool Worker::start_block() {
  Grid* grid;
  uint64_t index;
  if (!claim(&grid, &index)) return false;
  if (grid->takes_turns()) {
    hold_turn();
  } else if (live_.empty()) {
    drop_turn();
  }
  if (grid->aborted.load(std::memory_order_relaxed)) {
    // Skip the rest of the chunk.
    if (counted_ != grid) count_finished();
    counted_ = grid;
    uncounted_ += 1 + (chunk_end_ - chunk_next_);
    chunk_next_ = chunk_end_;
    count_finished();
    return true;
  }
  pool_.block_starts(*grid);
  if (!grid->context.has_cluster) {
    auto block = take_block();
    const bool begun = block->begin(*grid, index);
    run_first(std::move(block), begun);
    return true;
  }
  // All windows must exist before any block of the cluster runs.
  const auto cluster = std::make_shared<Cluster>(grid->cluster_blocks);
  std::vector<std::pair<std::unique_ptr<BlockRun>, bool>> blocks;
  for (uint32_t rank = 0; rank < grid->cluster_blocks; ++rank) {
    auto block = take_block();
    const bool begun = block->begin(*grid, index + rank, cluster);
    blocks.emplace_back(std::move(block), begun);
  }
  chunk_next_ += grid->cluster_blocks - 1;
  for (auto& [block, begun] : blocks) run_first(std::move(block), begun);
  return true;
}

std::unique_ptr<BlockRun> Worker::take_block() {
  if (spare_.empty()) return std::make_unique<BlockRun>(fibers_, own_stack_);
  auto block = std::move(spare_.back());
  spare_.pop_back();
  return block;
}

void Worker::run_first(std::unique_ptr<BlockRun> block, bool begun) {
  SliceEnd end = SliceEnd::faulted;
  if (begun) {
    end = block->run();
  } else {
    block->set_fault(FaultKind::hardware_stack, 0);
    block->set_fault_text("out of host memory for shared memory or thread stacks");
  }
  if (finish_if_ended(*block, end)) {
    if (spare_.size() < kMaxSpareBlocks) spare_.push_back(std::move(block));
  } else {
    live_.push_back(std::move(block));
  }
}

// Runs each live block for one slice. If all of them only spin, they may be waiting for a block that has not
// started.
void Worker::advance_live_blocks() {
  const auto takes_turns = [](const std::unique_ptr<BlockRun>& block) { return block->grid().takes_turns(); };
  if (std::any_of(live_.begin(), live_.end(), takes_turns)) {
    hold_turn();
  } else {
    drop_turn();
  }
  bool progress = false;
  for (size_t i = 0; i < live_.size();) {
    BlockRun& block = *live_[i];
    const SliceEnd end = block.run();
    progress |= block.take_progress() || end != SliceEnd::idle;
    if (!finish_if_ended(block, end)) {
      ++i;
      continue;
    }
    if (spare_.size() < kMaxSpareBlocks) spare_.push_back(std::move(live_[i]));
    live_.erase(live_.begin() + static_cast<long>(i));
  }
  if (progress) {
    idle_rounds_ = 0;
    idle_since_ = 0;
    return;
  }
  count_finished();
  if (idle_since_ == 0) idle_since_ = nanoseconds_now();
  const Grid& grid = live_.back()->grid();
  const bool together = grid.request.cooperative && ((grid_ == &grid && chunk_next_ < chunk_end_) ||
                                                     grid.next.load(std::memory_order_relaxed) < grid.blocks);
  const bool patient =
      nanoseconds_now() - idle_since_ < kSpinBeforeExtraBlocks || live_.size() >= kMaxExtraBlocks;
  if ((together || !patient) && start_block()) {
    idle_since_ = 0;
    return;
  }
  throttle_spinning();
}

// Returns true if the block has ended.
bool Worker::finish_if_ended(BlockRun& block, SliceEnd end) {
  if (end == SliceEnd::idle) return false;
  if (end != SliceEnd::finished) {
    if (end == SliceEnd::faulted) fault(block);
    block.abandon();
  }
  block.leave_cluster();
  Grid& grid = block.grid();
  if (counted_ != &grid) count_finished();
  counted_ = &grid;
  ++uncounted_;
  // Counting every block at once would cause contention on the counter, but no finished block may stay
  // uncounted for long.
  if (grid_ != &grid || chunk_next_ == chunk_end_ || !live_.empty()) {
    if (grid_ == &grid && chunk_next_ == chunk_end_ && live_.empty()) completing_worker = this;
    count_finished();
    completing_worker = nullptr;
  }
  return true;
}

void Worker::fault(BlockRun& block) {
  pool_.abort(block.grid(), block.fault(), block.fault_address(), block.describe_fault());
}

void Worker::count_finished() {
  if (uncounted_ == 0) return;
  const uint64_t count = std::exchange(uncounted_, 0);
  pool_.finish_blocks(*std::exchange(counted_, nullptr), count);
}

void Worker::hold_turn() {
  DeviceTurns* turns = pool_.turns();
  if (turns == nullptr) return;
  if (holds_turn_ && !turns->keeps_turn()) drop_turn();
  if (holds_turn_) return;
  turns->acquire();
  holds_turn_ = true;
  pool_.turn_taken();
}

void Worker::drop_turn() {
  if (!holds_turn_) return;
  holds_turn_ = false;
  pool_.turn_dropped();
  pool_.turns()->release();
}

// Reduces the load while all live blocks spin on memory that another worker, a copy or the program will
// write.
void Worker::throttle_spinning() {
  ++idle_rounds_;
  if (idle_rounds_ < 16) return;
  if (idle_rounds_ < 2000) {
    sched_yield();
    return;
  }
  const timespec moment{0, 50'000};
  clock_nanosleep(CLOCK_MONOTONIC, 0, &moment, nullptr);
}

}  // namespace gpupool::softgpu
