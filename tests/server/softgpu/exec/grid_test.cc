#include <numeric>
#include <thread>

#include "tests/server/softgpu/exec/run_grid.h"

using namespace softgpu_test;

namespace {

struct CountParams {
  std::atomic<uint32_t>* hits;  // one per thread of the grid
};

void count_kernel(ThreadContext* t) {
  const BlockContext& b = *t->block;
  const uint32_t block = b.block_idx[0] + b.grid_dim[0] * (b.block_idx[1] + b.grid_dim[1] * b.block_idx[2]);
  const uint32_t thread = t->tid[0] + b.block_dim[0] * (t->tid[1] + b.block_dim[1] * t->tid[2]);
  if (thread != t->linear_tid || t->lane != thread % 32 || t->warp != thread / 32) return;
  params<CountParams>(t).hits[block * b.block_dim[0] * b.block_dim[1] * b.block_dim[2] + thread].fetch_add(1);
}

void exit_kernel(ThreadContext* t) {
  params<CountParams>(t).hits[t->linear_tid].fetch_add(1);
  softgpu_exit(t);
}

void shared_kernel(ThreadContext* t) {
  auto* words = shared<uint32_t>(t);
  words[t->linear_tid] = t->linear_tid;
  softgpu_barrier(t, 0, 0, BarrierReduction::none, 0);
  const uint32_t other = t->block->block_dim[0] - 1 - t->linear_tid;
  if (words[other] == other) params<CountParams>(t).hits[t->linear_tid].fetch_add(1);
}

void store_last_byte_of_shared_memory(ThreadContext* t) {
  const uint64_t size = t->block->total_shared_bytes;
  if (size != 0) *reinterpret_cast<volatile char*>(t->block->shared_base + size - 1) = 1;
}

void deep_kernel(ThreadContext* t) {
  volatile char frame[200 << 10];
  frame[0] = 1;
  frame[sizeof frame - 1] = 1;
  softgpu_barrier(t, 0, 0, BarrierReduction::none, 0);
  params<CountParams>(t).hits[t->linear_tid].fetch_add(frame[0]);
}

void nothing(ThreadContext*) {}

void spin(ThreadContext* t) {
  while (params<std::atomic<uint32_t>*>(t)->load() == 0) softgpu_yield(t);
}

}  // namespace

TEST_CASE("every thread of every block runs exactly once, with its indices") {
  const bool loops = GENERATE(false, true);
  const auto [gx, gy, gz, bx, by, bz] =
      GENERATE(std::tuple<uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>{1, 1, 1, 1, 1, 1},
               std::tuple<uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>{7, 3, 2, 5, 3, 4},
               std::tuple<uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>{1000, 1, 1, 33, 1, 1},
               std::tuple<uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>{2, 1, 3, 1024, 1, 1});
  Buffer<std::atomic<uint32_t>> hits(size_t{gx} * gy * gz * bx * by * bz);
  auto r = request(count_kernel, 1, 1, CountParams{hits.data()});
  if (loops) r.code.loop_entry = in_loops<count_kernel>;
  const uint32_t grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
  std::copy_n(grid, 3, r.grid_dim);
  std::copy_n(block, 3, r.block_dim);
  const GridResult result = run(executor(), std::move(r));
  CHECK(result.fault == FaultKind::none);
  CHECK(result.busy_nanoseconds > 0);
  size_t wrong = 0;
  for (size_t i = 0; i < hits.size(); ++i) wrong += hits[i] != 1;
  CHECK(wrong == 0);
}

TEST_CASE("softgpu_exit ends a thread like a return") {
  Buffer<std::atomic<uint32_t>> hits(256);
  CHECK(run(exit_kernel, 20, 256, CountParams{hits.data()}).fault == FaultKind::none);
  for (size_t i = 0; i < hits.size(); ++i) REQUIRE(hits[i] == 20);
}

TEST_CASE("each block has its own shared window of the requested size") {
  Buffer<std::atomic<uint32_t>> hits(1024 / kLess);
  for (const uint32_t bytes : {4096u, 48u << 10, 200u << 10, 4096u}) {
    auto r = request(shared_kernel, 50, 1024 / kLess, CountParams{hits.data()});
    r.static_shared_bytes = bytes / 4;
    r.dynamic_shared_bytes = bytes - bytes / 4;
    REQUIRE(run(executor(), std::move(r)).fault == FaultKind::none);
  }
  for (size_t i = 0; i < hits.size(); ++i) REQUIRE(hits[i] == 200);
}

TEST_CASE("shared memory is allocated in whole units") {
  Buffer<std::atomic<uint32_t>> size(1);
  const auto kernel = [](ThreadContext* t) {
    store_last_byte_of_shared_memory(t);
    params<std::atomic<uint32_t>*>(t)->store(t->block->total_shared_bytes);
  };
  for (const auto& [bytes, given] : {std::pair{0u, 0u}, {4u, 128u}, {128u, 128u}, {129u, 256u}}) {
    auto r = request(kernel, 1, 1, size.data());
    r.static_shared_bytes = bytes / 2;
    r.dynamic_shared_bytes = bytes - bytes / 2;
    CHECK(run(executor(), std::move(r)).fault == FaultKind::none);
    CHECK(size[0] == given);
  }
}

TEST_CASE("a kernel with much local memory gets larger stacks") {
  Buffer<std::atomic<uint32_t>> hits(64);
  auto r = request(deep_kernel, 3, 64, CountParams{hits.data()});
  r.local_bytes = 200 << 10;
  CHECK(run(executor(), std::move(r)).fault == FaultKind::none);
  for (size_t i = 0; i < hits.size(); ++i) REQUIRE(hits[i] == 3);
}

TEST_CASE("large parameter blocks are passed completely") {
  struct Big {
    std::atomic<uint32_t>* hit;
    uint32_t words[8000];
  };
  Buffer<std::atomic<uint32_t>> hit(1);
  auto big = std::make_unique<Big>();
  big->hit = hit.data();
  std::iota(std::begin(big->words), std::end(big->words), 1u);
  const auto kernel = [](ThreadContext* t) {
    const auto& p = params<Big>(t);
    if (std::accumulate(std::begin(p.words), std::end(p.words), uint64_t{0}) == 8000ull * 8001 / 2)
      p.hit->fetch_add(1);
  };
  CHECK(run(kernel, 1, 1, *big).fault == FaultKind::none);
  CHECK(hit[0] == 1);
}

TEST_CASE("rejects invalid launches") {
  auto refused = [](GridRequest r) {
    const GridResult result = run(executor(), std::move(r));
    CHECK(result.detail.find("test_kernel") != std::string::npos);
    return result.fault != FaultKind::none;
  };
  for (int i = 0; i < 2000; ++i) {  // while awake workers look for work
    auto awake = submit(executor(), request(nothing, 1, 1, 0));
    REQUIRE(refused(request(nothing, 0, 1, 0)));
    REQUIRE(refused(request(nothing, 1, 0, 0)));
    REQUIRE(refused(request(nothing, 1, 1025, 0)));
    REQUIRE(awake.get().fault == FaultKind::none);
  }
  auto r = request(nothing, 1, 32, 0);
  r.local_bytes = UINT32_MAX;
  CHECK(refused(std::move(r)));
}

TEST_CASE("many grids from many threads all complete") {
  Buffer<std::atomic<uint32_t>> hits(8);
  std::vector<std::thread> threads;
  std::atomic<int> faults{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      std::vector<std::future<GridResult>> results;
      for (int i = 0; i < 300; ++i) {
        auto r = request(count_kernel, 1, 8, CountParams{hits.data()});
        if (i % 2) r.code.loop_entry = in_loops<count_kernel>;
        results.push_back(submit(executor(), std::move(r)));
      }
      for (auto& result : results) faults += result.get().fault != FaultKind::none;
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(faults == 0);
  for (size_t i = 0; i < hits.size(); ++i) CHECK(hits[i] == 1200);
}

TEST_CASE("destroying the executor completes every grid, run or cancelled") {
  Buffer<std::atomic<uint32_t>> never(1);
  std::vector<std::future<GridResult>> results;
  {
    auto own = GridExecutor::create(2, nullptr);
    for (int i = 0; i < 5; ++i) results.push_back(submit(*own, request(spin, 300, 4, never.data())));
    auto r = request(spin, 1, 1, never.data());
    r.code.loop_entry = in_loops<spin>;
    results.push_back(submit(*own, std::move(r)));
  }
  for (auto& result : results) CHECK(result.get().fault == FaultKind::cancelled);
}
