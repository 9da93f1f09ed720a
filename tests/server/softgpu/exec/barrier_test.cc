#include "tests/server/softgpu/exec/run_grid.h"

using namespace softgpu_test;

namespace {

struct BarrierParams {
  uint32_t* out;
  uint32_t a, b;
};

uint32_t sync(ThreadContext* t, uint32_t id = 0, uint32_t count = 0) {
  return softgpu_barrier(t, id, count, BarrierReduction::none, 0);
}

// In each round every thread reads what its neighbour wrote in the previous round.
void ring_kernel(ThreadContext* t) {
  auto* cells = shared<uint32_t>(t);
  const uint32_t n = t->block->block_dim[0], me = t->linear_tid;
  cells[me] = me;
  for (uint32_t round = 0; round < params<BarrierParams>(t).a; ++round) {
    sync(t);
    const uint32_t got = cells[(me + 1) % n];
    sync(t);
    cells[me] = got + 1;
  }
  if (t->block->block_idx[0] == 0) params<BarrierParams>(t).out[me] = cells[me];
}

void reduction_kernel(ThreadContext* t) {
  auto& p = params<BarrierParams>(t);
  const uint32_t odd = t->linear_tid % 2, me = t->linear_tid;
  p.out[me * 4 + 0] = softgpu_barrier(t, 0, 0, BarrierReduction::popc, odd);
  p.out[me * 4 + 1] = softgpu_barrier(t, 0, 0, BarrierReduction::conjunction, odd);
  p.out[me * 4 + 2] = softgpu_barrier(t, 0, 0, BarrierReduction::disjunction, odd);
  p.out[me * 4 + 3] = softgpu_barrier(t, 0, 0, BarrierReduction::conjunction, 7);
}

// Even warps meet at barrier 1 and odd ones at barrier 2, a different number of times.
void partial_kernel(ThreadContext* t) {
  auto& p = params<BarrierParams>(t);
  const uint32_t side = t->warp % 2, n = t->block->block_dim[0] / 2;
  auto* counter = reinterpret_cast<std::atomic<uint32_t>*>(shared<uint32_t>(t)) + side;
  if (t->linear_tid < 64 && t->lane == 0) *counter = 0;
  sync(t);
  for (uint32_t round = 1; round <= 3 + side * 4; ++round) {
    counter->fetch_add(1);
    sync(t, 1 + side, n);
    if (*counter != round * n) p.out[0] += 1;
    sync(t, 1 + side, n);
  }
}

// Warp 0 produces data and continues without waiting; warp 1 consumes the data.
void producer_kernel(ThreadContext* t) {
  auto& p = params<BarrierParams>(t);
  auto* cells = shared<uint32_t>(t);
  if (t->warp == 0) {
    cells[t->lane] = 100 + t->lane;
    softgpu_barrier_arrive(t, 3, 64);
    return;  // threads that arrived and then exited still count
  }
  sync(t, 3, 64);
  p.out[t->lane] = cells[31 - t->lane];
}

void early_exit_kernel(ThreadContext* t) {
  auto& p = params<BarrierParams>(t);
  if (t->linear_tid % 3 == 0) return;
  if (t->linear_tid % 3 == 1) softgpu_exit(t);
  for (uint32_t i = 0; i < p.a; ++i) {
    sync(t);
    if (i == t->linear_tid) return;
  }
  p.out[t->linear_tid] = 1;
}

void deadlock_kernel(ThreadContext* t) {
  if (t->linear_tid < 16) {
    sync(t, 1, 32);
  } else {
    sync(t, 2, 32);
  }
}

void bad_barrier_kernel(ThreadContext* t) {
  sync(t, 16);
}

GridResult run_shared(ThreadEntry kernel, uint32_t blocks, uint32_t threads, BarrierParams p) {
  auto r = request(kernel, blocks, threads, p);
  r.static_shared_bytes = 4096;
  return run(executor(), std::move(r));
}

}  // namespace

TEST_CASE("a barrier waits for every thread of the block") {
  const uint32_t threads = GENERATE(1u, 2u, 31u, 32u, 33u, 256u, 1024u);
  Buffer<uint32_t> out(threads);
  REQUIRE(run_shared(ring_kernel, 3, threads, {out.data(), 10, 0}).fault == FaultKind::none);
  for (uint32_t i = 0; i < threads; ++i) REQUIRE(out[i] == (i + 10) % threads + 10);
}

TEST_CASE("a barrier reduces predicates") {
  Buffer<uint32_t> out(100 * 4);
  REQUIRE(run_shared(reduction_kernel, 1, 100, {out.data(), 0, 0}).fault == FaultKind::none);
  for (uint32_t i = 0; i < 100; ++i) {
    REQUIRE(out[i * 4 + 0] == 50);
    REQUIRE(out[i * 4 + 1] == 0);
    REQUIRE(out[i * 4 + 2] == 1);
    REQUIRE(out[i * 4 + 3] == 1);
  }
}

TEST_CASE("barriers among parts of a block are independent") {
  Buffer<uint32_t> out(1);
  REQUIRE(run_shared(partial_kernel, 4, 256, {out.data(), 0, 0}).fault == FaultKind::none);
  CHECK(out[0] == 0);
}

TEST_CASE("threads may arrive without waiting, and end") {
  Buffer<uint32_t> out(32);
  REQUIRE(run_shared(producer_kernel, 1, 64, {out.data(), 0, 0}).fault == FaultKind::none);
  for (uint32_t i = 0; i < 32; ++i) CHECK(out[i] == 131 - i);
}

TEST_CASE("a barrier does not wait for ended threads") {
  Buffer<uint32_t> out(128);
  REQUIRE(run_shared(early_exit_kernel, 1, 128, {out.data(), 60, 0}).fault == FaultKind::none);
  for (uint32_t i = 0; i < 128; ++i) CHECK(out[i] == (i % 3 == 2 && i >= 60));
}

TEST_CASE("a deadlock between threads of a block is reported as a fault") {
  const GridResult result = run_shared(deadlock_kernel, 3, 32, {nullptr, 0, 0});
  CHECK(result.fault == FaultKind::deadlock);
  CHECK(result.detail.find("deadlock") != std::string::npos);
  CHECK(run_shared(bad_barrier_kernel, 1, 1, {nullptr, 0, 0}).fault == FaultKind::illegal_instruction);
}
