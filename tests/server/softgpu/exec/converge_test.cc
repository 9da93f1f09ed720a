// Tests softgpu_converge: the lanes of a warp wait for each other where a warp that runs in lock step would
// be converged.
#include "tests/server/softgpu/exec/run_grid.h"

using namespace softgpu_test;

namespace {

struct ConvergeParams {
  uint32_t* out;
};

uint32_t volatile_load(const uint32_t* from) {
  return *const_cast<const volatile uint32_t*>(from);
}

// A sum over the warp in shared memory, without barriers.
void reduce_kernel(ThreadContext* t) {
  auto* words = shared<uint32_t>(t) + t->linear_tid;
  *words = t->linear_tid;
  for (uint32_t distance = 16; distance > 0; distance /= 2) {
    softgpu_converge(t, 1);
    const uint32_t other = t->lane + distance < 32 ? volatile_load(words + distance) : 0;
    softgpu_converge(t, 2);
    *words += other;
  }
  if (t->lane == 0) params<ConvergeParams>(t).out[t->warp] = *words;
}

// Lanes leave the loop after different counts; at point 2 each must see the last store of every other lane.
void uneven_loop_kernel(ThreadContext* t) {
  auto* words = shared<uint32_t>(t);
  words[t->lane] = 0;
  for (uint32_t i = 0; i < 3 * t->lane; ++i) {
    softgpu_converge(t, 1);
    ++words[t->lane];
  }
  softgpu_converge(t, 2);
  uint32_t sum = 0;
  for (uint32_t lane = 0; lane < 32; ++lane) sum += volatile_load(words + lane);
  params<ConvergeParams>(t).out[t->lane] = sum;
}

// The loop yields, as a loop with a volatile load does; its lanes must converge nevertheless.
void yielding_loop_kernel(ThreadContext* t) {
  auto* words = shared<uint32_t>(t) + t->lane;
  *words = 1;
  for (uint32_t distance = 1; distance < 32; distance *= 2) {
    softgpu_converge(t, 1);
    const uint32_t other = t->lane >= distance ? volatile_load(words - distance) : 0;
    softgpu_converge(t, 2);
    *words += other;
    softgpu_yield(t);
  }
  params<ConvergeParams>(t).out[t->lane] = *words;
}

// Lane 0 passes an early point repeatedly until a lane that waits at a later point has continued.
void spinning_kernel(ThreadContext* t) {
  auto* flag = reinterpret_cast<std::atomic<uint32_t>*>(params<ConvergeParams>(t).out);
  if (t->lane == 0) {
    while (flag->load() == 0) {
      softgpu_converge(t, 1);
      softgpu_yield(t);
    }
    return;
  }
  softgpu_converge(t, 2);
  flag->store(1);
}

// Half of a warp waits at a convergence point and half at a barrier; exited lanes are not waited for.
void barrier_kernel(ThreadContext* t) {
  if (t->lane % 4 == 3) return;
  auto* words = shared<uint32_t>(t);
  words[t->linear_tid] = 7;
  if (t->lane < 16) {
    softgpu_converge(t, 1);
    words[t->linear_tid] += volatile_load(words + (t->linear_tid ^ 1));
  }
  softgpu_barrier(t, 0, 0, BarrierReduction::none, 0);
  params<ConvergeParams>(t).out[t->linear_tid] = words[t->linear_tid];
}

GridResult run_with_shared(ThreadEntry kernel, uint32_t threads, uint32_t* out) {
  auto r = request(kernel, 1, threads, ConvergeParams{out});
  r.static_shared_bytes = threads * 4;
  return run(executor(), std::move(r));
}

}  // namespace

TEST_CASE("converging lanes see each other's stores in lock step") {
  Buffer<uint32_t> out(4);
  REQUIRE(run_with_shared(reduce_kernel, 128, out.data()).fault == FaultKind::none);
  for (uint32_t w = 0; w < 4; ++w) CHECK(out[w] == 32 * (w * 32) + 496);
}

TEST_CASE("lanes that leave a loop early wait for the rest of their warp at the next convergence point") {
  Buffer<uint32_t> out(32);
  REQUIRE(run_with_shared(uneven_loop_kernel, 32, out.data()).fault == FaultKind::none);
  for (uint32_t lane = 0; lane < 32; ++lane) CHECK(out[lane] == 3 * 496);
}

TEST_CASE("lanes converge in a loop that yields") {
  Buffer<uint32_t> out(32);
  REQUIRE(run_with_shared(yielding_loop_kernel, 32, out.data()).fault == FaultKind::none);
  for (uint32_t lane = 0; lane < 32; ++lane) CHECK(out[lane] == lane + 1);
}

TEST_CASE("a lane that spins through a convergence point does not block the lane that it waits for") {
  Buffer<uint32_t> out(1);
  CHECK(run_with_shared(spinning_kernel, 32, out.data()).fault == FaultKind::none);
  CHECK(out[0] == 1);
}

TEST_CASE("lanes converge while others of their warp wait at a barrier or have ended") {
  Buffer<uint32_t> out(64);
  REQUIRE(run_with_shared(barrier_kernel, 64, out.data()).fault == FaultKind::none);
  CHECK(out[0] == 14);
  CHECK(out[1] == 21);
  CHECK(out[20] == 7);
  CHECK(out[32] == 14);
}
