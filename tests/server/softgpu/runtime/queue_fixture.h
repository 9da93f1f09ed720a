// A context with two streams, of which a test can block the first or fill its queue. Used from the test's
// thread.
#pragma once
#include "tests/server/softgpu/runtime/blocked_call.h"

struct QueueFixture : ContextFixture {
  static constexpr int kEntries = 1024;

  QueueFixture() {
    REQUIRE_OK(cuMemAlloc_v2(&memory, 4096));
    void* pinned = nullptr;
    REQUIRE_OK(cuMemHostAlloc(&pinned, 4096, 0));
    word = static_cast<uint32_t*>(pinned);
    *word = 0;
    REQUIRE_OK(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
    REQUIRE_OK(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
  }
  ~QueueFixture() {
    if (context != nullptr) release();
  }
  CUdeviceptr wait_address() const { return reinterpret_cast<CUdeviceptr>(word); }
  void release() { std::atomic_ref(*word).store(1); }
  // Enqueues an operation into `first` that completes at release().
  void park_first() { REQUIRE_OK(cuStreamWaitValue32_v2(first, wait_address(), 1, CU_STREAM_WAIT_VALUE_EQ)); }
  // Fills the queue of `first` with operations of which none completes before release().
  void fill_first() {
    park_first();
    for (int i = 1; i < kEntries; ++i) REQUIRE_OK(cuMemsetD32Async(memory, 1, 1, first));
  }
  CUdeviceptr memory = 0;
  uint32_t* word = nullptr;
  CUstream first = nullptr, second = nullptr;
};
