#include "server/softgpu/exec/pool.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

#include "server/softgpu/exec/faults.h"
#include "server/softgpu/memory/address_space.h"

namespace gpupool::softgpu {
namespace {

// Workers sleep on one futex word, each with one bit of its wait mask.
uint32_t bit_of(unsigned worker) {
  return 1u << worker % 32;
}

// Polling time of an idle worker before it sleeps; short, as the submitter may need the processor.
constexpr uint64_t kSpinNanoseconds = 5'000;
constexpr uint64_t kLongIdleNanoseconds = 500'000'000;  // idle time after which a worker frees memory

}  // namespace

__attribute__((tls_model("initial-exec"))) thread_local const Worker* completing_worker = nullptr;

uint64_t nanoseconds_now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

ParameterMemory::~ParameterMemory() {
  for (uint64_t slab : slabs_) free_host(slab, kBlock * kBlocksPerSlab);
}

uint64_t ParameterMemory::allocate(uint64_t bytes) {
  if (bytes > kBlock) return allocate_host(bytes, page_bytes()).value_or(0);
  std::lock_guard lock(mutex_);
  if (free_.empty()) {
    const auto slab = allocate_host(kBlock * kBlocksPerSlab, page_bytes());
    if (!slab) return 0;
    slabs_.push_back(*slab);
    for (uint64_t i = kBlocksPerSlab; i-- > 0;) free_.push_back(*slab + i * kBlock);
  }
  const uint64_t address = free_.back();
  free_.pop_back();
  return address;
}

void ParameterMemory::free(uint64_t address, uint64_t bytes) {
  if (bytes > kBlock) return free_host(address, bytes);
  std::lock_guard lock(mutex_);
  free_.push_back(address);
}

Pool::Pool(unsigned threads, DeviceTurns* turns) : turns_(turns), thread_count_(threads) {
  for (unsigned i = 0; i < threads; ++i) {
    threads_.emplace_back([this, i] { Worker(*this, i).run(); });
  }
}

Pool::~Pool() {
  std::vector<std::pair<Grid*, std::string>> cancelled;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    for (Grid* grid = unfinished_; grid != nullptr; grid = grid->following) {
      grid->references.fetch_add(1);
      cancelled.emplace_back(grid, "kernel " + std::string(grid->request.kernel_name) + ": cancelled");
    }
  }
  for (auto& [grid, detail] : cancelled) {
    abort(*grid, FaultKind::cancelled, 0, std::move(detail));
    release(grid);
  }
  epoch_.fetch_add(1);
  syscall(SYS_futex, &epoch_, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
  for (auto& thread : threads_) thread.join();
  for (Grid* grid : queue_) release(grid);
}

void Pool::submit(GridRequest request, std::function<void(GridResult)> done) {
  submit_at(0, std::move(request), std::move(done));
}

namespace {

// Fills in what follows from the request alone.
void describe_grid(Grid& grid) {
  const GridRequest& r = grid.request;
  BlockContext& context = grid.context;
  std::copy_n(r.grid_dim, 3, context.grid_dim);
  std::copy_n(r.block_dim, 3, context.block_dim);
  context.dynamic_shared_bytes = r.dynamic_shared_bytes;
  context.total_shared_bytes = static_cast<uint32_t>(
      round_up(uint64_t{r.static_shared_bytes} + r.dynamic_shared_bytes, kSharedAllocationUnit));
  context.module_data = r.module_data;
  grid.blocks = uint64_t{r.grid_dim[0]} * r.grid_dim[1] * r.grid_dim[2];
  const uint64_t threads = uint64_t{r.block_dim[0]} * r.block_dim[1] * r.block_dim[2];
  grid.threads = static_cast<uint32_t>(std::min<uint64_t>(threads, kMaxThreadsPerBlock + 1));
  grid.in_loops = r.code.loop_entry != nullptr && !r.cooperative;
  grid.stack_class = FiberPool::class_for(uint64_t{std::max(r.local_bytes, r.stack_bytes)} + (48 << 10));
}

// Returns false if the grid does not consist of whole clusters.
bool describe_clusters(Grid& grid) {
  const GridRequest& r = grid.request;
  BlockContext& context = grid.context;
  context.has_cluster = r.cluster_dim[0] != 0;
  bool whole = true;
  for (int d = 0; d < 3; ++d) {
    context.cluster_dim[d] = std::max(r.cluster_dim[d], 1u);
    whole &= context.cluster_dim[d] <= kMaxClusterBlocks && r.grid_dim[d] % context.cluster_dim[d] == 0;
  }
  if (whole) grid.cluster_blocks = context.cluster_dim[0] * context.cluster_dim[1] * context.cluster_dim[2];
  return whole;
}

}  // namespace

// Leaves the address 0 if there is no memory.
void Pool::copy_parameters(Grid& grid) {
  const GridRequest& r = grid.request;
  BlockContext& context = grid.context;
  constexpr uint64_t kWorkspaceBytes = 16;
  const uint64_t workspace = round_up(r.params.size(), kWorkspaceBytes);
  grid.params_bytes = std::max<uint64_t>(r.params.size(), 1);
  if (r.cooperative) grid.params_bytes = workspace + kWorkspaceBytes;
  context.params = parameters_.allocate(grid.params_bytes);
  if (context.params == 0) return;
  if (r.cooperative) {
    context.grid_workspace = context.params + workspace;
    std::memset(reinterpret_cast<void*>(context.grid_workspace), 0, kWorkspaceBytes);
  }
  if (!r.params.empty())
    std::memcpy(reinterpret_cast<void*>(context.params), r.params.data(), r.params.size());
}

void Pool::count_workers(Grid& grid) {
  grid.workers = thread_count_;
  if (!grid.request.multiprocessors) return;
  grid.workers = 0;
  for (unsigned i = 0; i < thread_count_; ++i) grid.workers += grid.request.multiprocessors->test(i);
  if (!has_restricted_grids_.load(std::memory_order_relaxed)) has_restricted_grids_.store(true);
}

// Lists the grid as unfinished, and queues it if it can run. Returns false if the pool is stopping.
bool Pool::enter(Grid& grid, bool possible) {
  std::lock_guard lock(mutex_);
  grid.context.grid_id = next_grid_id_++;
  grid.following = unfinished_;
  if (unfinished_ != nullptr) unfinished_->previous = &grid;
  unfinished_ = &grid;
  unfinished_count_.fetch_add(1, std::memory_order_relaxed);
  if (stopping_) return false;
  if (possible) {
    queue_.push_back(&grid);
    queued_.store(static_cast<uint32_t>(queue_.size()), std::memory_order_relaxed);
  }
  return true;
}

void Pool::submit_at(uint32_t depth, GridRequest request, std::function<void(GridResult)> done) {
  // Programs install signal handlers between their calls, not in the middle of many grids. Checking costs a
  // system call, so it is done rarely while grids run.
  const bool busy = completing_worker != nullptr || unfinished_count_.load(std::memory_order_relaxed) != 0;
  if (!busy || submissions_.fetch_add(1, std::memory_order_relaxed) % 64 == 0) reinstall_fault_handlers();
  auto* grid = new Grid;
  grid->request = std::move(request);
  grid->done = std::move(done);
  // CUDA's limit; bounds the recursion through the completion callbacks of nested children.
  constexpr uint32_t kMaxDepth = 24;
  grid->depth = depth;
  if (grid->request.services != nullptr && depth < kMaxDepth)
    grid->children = std::make_unique<ChildLaunches>();
  describe_grid(*grid);
  copy_parameters(*grid);
  const bool whole_clusters = describe_clusters(*grid);
  count_workers(*grid);
  const bool possible = whole_clusters && grid->cluster_blocks <= kMaxClusterBlocks && grid->workers > 0 &&
                        grid->blocks > 0 && grid->threads > 0 && grid->threads <= kMaxThreadsPerBlock &&
                        grid->stack_class < FiberPool::kClasses && grid->context.params != 0;
  // Copied, because once queued the grid may complete and be deleted.
  const std::shared_ptr<const Multiprocessors> where = grid->request.multiprocessors;
  const bool may_run = completing_worker != nullptr && grid->may_run_on(completing_worker->number());
  if (grid->blocks == 0) grid->blocks = 1;  // abort() then has one block to finish
  const bool stopping = !enter(*grid, possible);
  if (!possible || stopping) {  // not queued: a worker that is awake would run it
    abort(*grid, stopping ? FaultKind::cancelled : FaultKind::illegal_instruction, 0,
          "kernel " + std::string(grid->request.kernel_name) +
              (stopping ? ": cancelled"
                        : ": invalid launch: dimensions, stack size, cluster size or multiprocessors are out "
                          "of range, "
                          "or out of host memory"));
    release(grid);
    return;
  }
  // The worker that has just completed a grid runs the next one itself, and wakes others if there is more
  // than it can do.
  if (completing_worker != nullptr && may_run) {
    completing_worker = nullptr;
    return;
  }
  epoch_.fetch_add(1);
  wake(where.get(), 1);
}

void Pool::wake_helper(const Grid& grid) {
  // Wakes all workers rather than finding out which queued grid may run on which worker.
  if (has_restricted_grids_.load() && more_than_one_queued()) return wake(nullptr, INT32_MAX);
  wake(grid.request.multiprocessors.get(), 1);
}

void Pool::wake(const Multiprocessors* where, int most) {
  if (sleepers_.load() == 0) return;
  if (!has_restricted_grids_.load()) {
    if (!spinning_.load()) syscall(SYS_futex, &epoch_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
    return;
  }
  // The spinning worker may not be allowed to run the grid, so wake by bit mask.
  uint32_t bits = where == nullptr ? FUTEX_BITSET_MATCH_ANY : 0;
  for (unsigned i = 0; where != nullptr && i < thread_count_; ++i) bits |= where->test(i) ? bit_of(i) : 0;
  if (thread_count_ > 32) most = INT32_MAX;  // workers share bits
  syscall(SYS_futex, &epoch_, FUTEX_WAKE_BITSET_PRIVATE, most, nullptr, nullptr, bits);
}

Grid* Pool::first_grid(unsigned worker) {
  std::vector<Grid*> exhausted;
  Grid* found = nullptr;
  {
    std::lock_guard lock(mutex_);
    for (auto at = queue_.begin(); at != queue_.end() && found == nullptr;) {
      Grid* grid = *at;
      if (grid->next.load(std::memory_order_relaxed) >= grid->blocks) {
        exhausted.push_back(grid);
        at = queue_.erase(at);
      } else if (grid->may_run_on(worker)) {
        grid->references.fetch_add(1, std::memory_order_relaxed);
        found = grid;
      } else {
        ++at;
      }
    }
    queued_.store(static_cast<uint32_t>(queue_.size()), std::memory_order_relaxed);
  }
  for (Grid* grid : exhausted) release(grid);
  return found;
}

bool Pool::wait_for_work(unsigned worker, bool* long_idle) {
  const uint32_t seen = epoch_.load();
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return false;
    const auto runnable = [&](const Grid* grid) {
      return grid->may_run_on(worker) && grid->next.load(std::memory_order_relaxed) < grid->blocks;
    };
    if (std::any_of(queue_.begin(), queue_.end(), runnable)) return true;
  }
  bool expected = false;
  if (spinning_.compare_exchange_strong(expected, true)) {
    const uint64_t until = nanoseconds_now() + kSpinNanoseconds;
    bool changed = false;
    while (!changed && nanoseconds_now() < until) {
      for (int i = 0; i < 16 && !changed; ++i) {
        pause_cpu();
        changed = epoch_.load(std::memory_order_relaxed) != seen;
      }
    }
    spinning_.store(false);
    if (changed || epoch_.load() != seen) return true;
  }
  sleepers_.fetch_add(1);
  const uint64_t until = nanoseconds_now() + kLongIdleNanoseconds;
  const timespec limit{static_cast<time_t>(until / 1'000'000'000), static_cast<long>(until % 1'000'000'000)};
  const timespec* timeout = *long_idle ? nullptr : &limit;
  const long result =
      syscall(SYS_futex, &epoch_, FUTEX_WAIT_BITSET_PRIVATE, seen, timeout, nullptr, bit_of(worker));
  *long_idle = *long_idle || (result != 0 && errno == ETIMEDOUT);
  sleepers_.fetch_sub(1);
  return true;
}

void Pool::block_starts(Grid& grid) {
  uint64_t none = 0;
  if (grid.start.load(std::memory_order_relaxed) != 0) return;
  grid.without_turn_before.store(without_turn_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  grid.start.compare_exchange_strong(none, nanoseconds_now());
}

void Pool::finish_blocks(Grid& grid, uint64_t count) {
  // Copied, because once the blocks are counted another thread may complete and delete the grid.
  const uint64_t blocks = grid.blocks;
  if (grid.finished.fetch_add(count) + count == blocks) complete(grid);
}

void Pool::abort(Grid& grid, FaultKind kind, uint64_t address, std::string detail) {
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(grid.result_final, true)) return;
    grid.result.fault = kind;
    grid.result.address = address;
    grid.result.detail = std::move(detail);
  }
  grid.aborted.store(true);
  const uint64_t claimed = std::min(grid.next.exchange(grid.blocks), grid.blocks);
  if (claimed < grid.blocks) finish_blocks(grid, grid.blocks - claimed);
}

void Pool::complete(Grid& grid) {
  uint64_t busy = 0;
  if (const uint64_t start = grid.start.load(std::memory_order_relaxed); start != 0) {
    const uint64_t elapsed = nanoseconds_now() - start;
    uint64_t without_turn = 0;
    if (grid.takes_turns())
      without_turn = without_turn_.load(std::memory_order_relaxed) -
                     grid.without_turn_before.load(std::memory_order_relaxed);
    busy = elapsed - std::min(elapsed, without_turn);
  }
  if (grid.context.params != 0) parameters_.free(grid.context.params, grid.params_bytes);
  GridResult result;
  {
    std::lock_guard lock(mutex_);
    grid.result_final = true;
    result = std::move(grid.result);
    (grid.previous != nullptr ? grid.previous->following : unfinished_) = grid.following;
    if (grid.following != nullptr) grid.following->previous = grid.previous;
    unfinished_count_.fetch_sub(1, std::memory_order_relaxed);
  }
  auto done = std::move(grid.done);
  result.busy_nanoseconds = busy;
  std::shared_ptr<ChildLaunches> children = std::move(grid.children);
  const KernelServices* const services = grid.request.services;
  const std::shared_ptr<const Multiprocessors> where = grid.request.multiprocessors;
  const uint32_t depth = grid.depth;
  release(&grid);
  if (children)
    return run_children(depth, std::move(children), services, where, std::move(result), std::move(done));
  if (done) done(std::move(result));
}

// Runs the next item that a grid has launched. `result` is the result of the grid and of the children run so
// far.
void Pool::run_children(uint32_t depth, std::shared_ptr<ChildLaunches> children,
                        const KernelServices* services, std::shared_ptr<const Multiprocessors> where,
                        GridResult result, std::function<void(GridResult)> done) {
  auto launch = result.fault == FaultKind::none ? children->next() : std::nullopt;
  if (!launch) {
    if (done) done(std::move(result));
    return;
  }
  GridRequest request = std::move(launch->request);
  request.multiprocessors = where;
  if (launch->kernel != 0) request.services = services;
  if (launch->kernel != 0 && !services->prepare(launch->kernel, request)) {
    result.fault = FaultKind::illegal_instruction;
    result.detail = "kernel launched from the device: compilation failed";
    if (done) done(std::move(result));
    return;
  }
  submit_at(depth + 1, std::move(request),
            [this, depth, children = std::move(children), services, where = std::move(where),
             result = std::move(result), done = std::move(done)](GridResult child) mutable {
              child.busy_nanoseconds += result.busy_nanoseconds;
              run_children(depth, std::move(children), services, std::move(where), std::move(child),
                           std::move(done));
            });
}

void Pool::release(Grid* grid) {
  if (grid->references.fetch_sub(1) == 1) delete grid;
}

void Pool::turn_taken() {
  std::lock_guard lock(turn_mutex_);
  if (turn_holders_++ == 0 && dropped_at_ != 0) without_turn_.fetch_add(nanoseconds_now() - dropped_at_);
}

void Pool::turn_dropped() {
  std::lock_guard lock(turn_mutex_);
  if (--turn_holders_ == 0) dropped_at_ = nanoseconds_now();
}

}  // namespace gpupool::softgpu
