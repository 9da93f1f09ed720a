// Tests threads and blocks that wait for each other through memory.
#include <thread>

#include "tests/server/softgpu/exec/run_grid.h"

using namespace softgpu_test;

namespace {

using Word = std::atomic<uint32_t>;

struct RoundsParams {
  Word* words;
  uint32_t rounds;
};

// Each thread of the block takes a lock and changes a counter that it protects.
void lock_kernel(ThreadContext* t) {
  auto& p = params<RoundsParams>(t);
  for (uint32_t i = 0; i < p.rounds; ++i) {
    uint32_t free = 0;
    while (!p.words[0].compare_exchange_strong(free, 1)) {
      free = 0;
      softgpu_yield(t);
    }
    const uint32_t value = p.words[1].load(std::memory_order_relaxed);
    if (i % 3 == 0) softgpu_yield(t);  // while others try to take the lock
    p.words[1].store(value + 1, std::memory_order_relaxed);
    p.words[0].store(0);
  }
}

// Each thread waits for the next higher one, across warps.
void backward_kernel(ThreadContext* t) {
  auto& p = params<RoundsParams>(t);
  const uint32_t last = t->block->block_dim[0] - 1;
  if (t->linear_tid < last) {
    while (p.words[t->linear_tid + 1].load() == 0) softgpu_yield(t);
  }
  p.words[t->linear_tid].store(1);
}

// Threads that keep waking each other must not starve a thread that has not started.
void busy_warp_kernel(ThreadContext* t) {
  auto& p = params<RoundsParams>(t);
  if (t->warp == 1) {
    p.words[0].store(1);
    return;
  }
  while (softgpu_vote(t, VoteMode::any, p.words[0].load(), 0xffffffff) == 0) {
  }
}

void grid_sync_kernel(ThreadContext* t) {
  auto& p = params<RoundsParams>(t);
  const uint32_t blocks = t->block->grid_dim[0];
  for (uint32_t round = 1; round <= p.rounds; ++round) {
    softgpu_barrier(t, 0, 0, BarrierReduction::none, 0);
    if (t->linear_tid == 0) {
      p.words[0].fetch_add(1);
      while (p.words[0].load() < round * blocks) softgpu_yield(t);
    }
    softgpu_barrier(t, 0, 0, BarrierReduction::none, 0);
    p.words[round].fetch_add(1);
    softgpu_barrier(t, 0, 0, BarrierReduction::none, 0);
    // No thread may get here before every block has passed this round's grid synchronization.
    if (p.words[0].load() < round * blocks) p.words[p.rounds + 1].fetch_add(1);
  }
}

// Decoupled look-back: each block waits for the sum of the blocks before it.
void look_back_kernel(ThreadContext* t) {
  auto& p = params<RoundsParams>(t);
  const uint32_t me = t->block->block_idx[0];
  uint32_t before = 0;
  if (me > 0) {
    while ((before = p.words[me - 1].load()) == 0) softgpu_yield(t);
  }
  p.words[me].store(before + 1);
}

// Each block waits for the next one, which works on a GPU that holds all blocks at once.
void look_ahead_kernel(ThreadContext* t) {
  auto& p = params<RoundsParams>(t);
  const uint32_t me = t->block->block_idx[0];
  if (me + 1 < t->block->grid_dim[0]) {
    while (p.words[me + 1].load() == 0) softgpu_yield(t);
  }
  p.words[me].store(1);
}

void wait_kernel(ThreadContext* t) {
  while (params<RoundsParams>(t).words[0].load() == 0) softgpu_yield(t);
}
void signal_kernel(ThreadContext* t) {
  params<RoundsParams>(t).words[0].store(1);
}

template <ThreadEntry kernel>
GridRequest looped(uint32_t blocks, RoundsParams p) {
  auto r = request(kernel, blocks, 1, p);
  r.code.loop_entry = in_loops<kernel>;
  return r;
}

}  // namespace

TEST_CASE("spin locks between threads of a block, and between blocks") {
  Buffer<Word> words(2);
  REQUIRE(run(lock_kernel, 1, 256 / kLess, RoundsParams{words.data(), 20}).fault == FaultKind::none);
  CHECK(words[1] == 256 / kLess * 20);
  words[1] = 0;
  REQUIRE(run(lock_kernel, 10, 64 / kLess, RoundsParams{words.data(), 5}).fault == FaultKind::none);
  CHECK(words[1] == 10 * 64 / kLess * 5);
}

TEST_CASE("a thread may wait for one that has not started") {
  Buffer<Word> words(1024);
  REQUIRE(run(backward_kernel, 1, 1024 / kLess, RoundsParams{words.data(), 0}).fault == FaultKind::none);
  CHECK(words[0] == 1);
  words[0] = 0;
  REQUIRE(run(busy_warp_kernel, 1, 64, RoundsParams{words.data(), 0}).fault == FaultKind::none);
}

TEST_CASE("cooperative grids synchronise as a whole") {
  const uint32_t blocks = GENERATE(1u, 3u, 40u);
  Buffer<Word> words(16);
  auto r = request(grid_sync_kernel, blocks, 64, RoundsParams{words.data(), 8});
  r.cooperative = true;
  REQUIRE(run(executor(), std::move(r)).fault == FaultKind::none);
  for (uint32_t round = 1; round <= 8; ++round) CHECK(words[round] == 64 * blocks);
  CHECK(words[9] == 0);
}

TEST_CASE("two cooperative grids at once, with plain grids between") {
  Buffer<Word> first(16), second(16), sum(2);
  auto a = request(grid_sync_kernel, 20, 32 / kLess, RoundsParams{first.data(), 8});
  auto b = request(grid_sync_kernel, 20, 32 / kLess, RoundsParams{second.data(), 8});
  a.cooperative = b.cooperative = true;
  auto ra = submit(executor(), std::move(a));
  auto rc = submit(executor(), request(lock_kernel, 50, 32, RoundsParams{sum.data(), 1}));
  auto rb = submit(executor(), std::move(b));
  CHECK(ra.get().fault == FaultKind::none);
  CHECK(rb.get().fault == FaultKind::none);
  CHECK(rc.get().fault == FaultKind::none);
  CHECK(sum[1] == 1600);
}

TEST_CASE("blocks that wait for other blocks progress, whatever the order") {
  Buffer<Word> words(600);
  REQUIRE(run(look_back_kernel, 600, 1, RoundsParams{words.data(), 0}).fault == FaultKind::none);
  CHECK(words[599] == 600);
  std::memset(static_cast<void*>(words.data()), 0, 600 * sizeof(Word));
  REQUIRE(run(executor(), looped<look_back_kernel>(600, RoundsParams{words.data(), 0})).fault ==
          FaultKind::none);
  CHECK(words[599] == 600);
  std::memset(static_cast<void*>(words.data()), 0, 600 * sizeof(Word));
  REQUIRE(run(look_ahead_kernel, 30, 1, RoundsParams{words.data(), 0}).fault == FaultKind::none);
  CHECK(words[0] == 1);
  words[0] = 0;
  for (int i = 1; i < 30; ++i) words[static_cast<size_t>(i)] = 0;
  REQUIRE(run(executor(), looped<look_ahead_kernel>(30, RoundsParams{words.data(), 0})).fault ==
          FaultKind::none);
  CHECK(words[0] == 1);
}

TEST_CASE("a grid may wait for a later grid, or for the program") {
  Buffer<Word> words(1);
  auto waiting = submit(executor(), request(wait_kernel, 10, 32, RoundsParams{words.data(), 0}));
  auto signal = submit(executor(), request(signal_kernel, 1, 1, RoundsParams{words.data(), 0}));
  CHECK(signal.get().fault == FaultKind::none);
  CHECK(waiting.get().fault == FaultKind::none);
  words[0] = 0;
  waiting = submit(executor(), looped<wait_kernel>(10, RoundsParams{words.data(), 0}));
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  words[0] = 1;
  CHECK(waiting.get().fault == FaultKind::none);
}
