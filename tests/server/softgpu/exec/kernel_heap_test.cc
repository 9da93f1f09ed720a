#include "tests/server/softgpu/exec/run_grid.h"

using namespace softgpu_test;

namespace {

struct HeapParams {
  std::atomic<uint32_t>* failures;
  uint64_t* addresses;
  uint64_t bytes;
};

// Allocates and fills memory, waits for the other threads, checks and frees it.
void churn_kernel(ThreadContext* t) {
  auto& p = params<HeapParams>(t);
  for (uint32_t round = 0; round < 5; ++round) {
    const uint32_t words = 1 + (t->linear_tid * 7 + round) % 50;
    auto* memory = reinterpret_cast<uint32_t*>(softgpu_malloc(t, words * 4));
    if (memory == nullptr || reinterpret_cast<uint64_t>(memory) % 16 != 0) {
      p.failures->fetch_add(1);
      continue;
    }
    for (uint32_t i = 0; i < words; ++i) memory[i] = t->linear_tid + i;
    softgpu_barrier(t, 0, 0, BarrierReduction::none, 0);
    for (uint32_t i = 0; i < words; ++i) {
      if (memory[i] != t->linear_tid + i) p.failures->fetch_add(1);
    }
    softgpu_free(t, reinterpret_cast<uint64_t>(memory));
  }
}

void allocate_kernel(ThreadContext* t) {
  auto& p = params<HeapParams>(t);
  p.addresses[t->linear_tid] = softgpu_malloc(t, p.bytes);
}
void free_kernel(ThreadContext* t) {
  auto& p = params<HeapParams>(t);
  softgpu_free(t, p.addresses[t->linear_tid]);
  softgpu_free(t, p.addresses[t->linear_tid]);  // a double free, which has no effect
}

}  // namespace

TEST_CASE("malloc and free in kernels") {
  reset_kernel_heap();
  Buffer<std::atomic<uint32_t>> failures(1);
  REQUIRE(run(churn_kernel, 20, 128, HeapParams{failures.data(), nullptr, 0}).fault == FaultKind::none);
  CHECK(failures[0] == 0);

  // Everything was freed, so an allocation of the whole heap succeeds; it outlives its kernel.
  Buffer<uint64_t> addresses(32);
  REQUIRE(run(allocate_kernel, 1, 1, HeapParams{nullptr, addresses.data(), kernel_heap_bytes()}).fault ==
          FaultKind::none);
  CHECK(addresses[0] != 0);
  REQUIRE(run(allocate_kernel, 1, 2, HeapParams{nullptr, addresses.data() + 1, 16}).fault == FaultKind::none);
  CHECK(addresses[1] == 0);
  REQUIRE(run(free_kernel, 1, 1, HeapParams{nullptr, addresses.data(), 0}).fault == FaultKind::none);
  REQUIRE(run(allocate_kernel, 1, 2, HeapParams{nullptr, addresses.data(), 0}).fault == FaultKind::none);
  CHECK(addresses[0] == 0);
  REQUIRE(run(allocate_kernel, 1, 2, HeapParams{nullptr, addresses.data(), UINT64_MAX}).fault ==
          FaultKind::none);
  CHECK(addresses[1] == 0);
}

TEST_CASE("the heap's size can be set until it is used") {
  reset_kernel_heap();
  CHECK(kernel_heap_bytes() == 8 << 20);
  REQUIRE(set_kernel_heap_bytes(1 << 20));
  Buffer<uint64_t> addresses(32);
  REQUIRE(run(allocate_kernel, 1, 32, HeapParams{nullptr, addresses.data(), 64 << 10}).fault ==
          FaultKind::none);
  int got = 0;
  for (uint64_t address : {addresses[0], addresses[15], addresses[31]}) got += address != 0;
  CHECK(got == 2);
  CHECK_FALSE(set_kernel_heap_bytes(2 << 20));
  reset_kernel_heap();
  CHECK(set_kernel_heap_bytes(8 << 20));
}
