// Tests hardware queues: their capacity, calls that block on a full queue, and waits between streams that
// share a queue.
#include <memory>
#include <vector>

#include "tests/server/softgpu/runtime/kernels.h"
#include "tests/server/softgpu/runtime/queue_fixture.h"

namespace {

constexpr int kQueues = 8;

void CUDA_CB wait_for_word(void* word) {
  while (std::atomic_ref(*static_cast<uint32_t*>(word)).load() == 0) std::this_thread::yield();
}

}  // namespace

TEST_CASE_METHOD(QueueFixture, "a full queue blocks the enqueueing thread and other threads of the context") {
  CUevent event = nullptr;
  REQUIRE_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  REQUIRE_OK(cuEventRecord(event, first));
  REQUIRE_OK(cuStreamSynchronize(first));
  fill_first();
  BlockedCall full(context, [&] { return cuMemsetD32Async(memory, 2, 1, first); });
  REQUIRE(full.blocks());
  BlockedCall other(context, [&] { return cuMemsetD32Async(memory + 4, 3, 1, second); });
  CHECK(other.blocks());
  BlockedCall query(context, [&] { return cuStreamQuery(second); });
  CHECK(query.blocks());
  BlockedCall event_query(context, [&] { return cuEventQuery(event); });
  CHECK(event_query.blocks());
  BlockedCall event_wait(context, [&] { return cuEventSynchronize(event); });
  CHECK(event_wait.blocks());
  CHECK(!full.returned());
  release();
  CHECK(full.result() == CUDA_SUCCESS);
  CHECK(other.result() == CUDA_SUCCESS);
  query.result();
  CHECK(event_query.result() == CUDA_SUCCESS);
  CHECK(event_wait.result() == CUDA_SUCCESS);
  REQUIRE_OK(cuCtxSynchronize());
  int values[2] = {};
  REQUIRE_OK(cuMemcpyDtoH_v2(values, memory, 8));
  CHECK(values[0] == 2);
  CHECK(values[1] == 3);
}

TEST_CASE_METHOD(QueueFixture, "completed operations free entries of a queue") {
  for (int round = 0; round < 3; ++round) {
    std::atomic_ref(*word).store(0);
    fill_first();
    release();
    REQUIRE_OK(cuStreamSynchronize(first));
  }
}

TEST_CASE_METHOD(QueueFixture, "a graph launch is one operation in its queue") {
  REQUIRE_OK(cuStreamBeginCapture_v2(second, CU_STREAM_CAPTURE_MODE_GLOBAL));
  for (int i = 0; i < 10; ++i) REQUIRE_OK(cuMemsetD32Async(memory, 1, 1, second));
  CUgraph graph = nullptr;
  REQUIRE_OK(cuStreamEndCapture(second, &graph));
  CUgraphExec exec = nullptr;
  REQUIRE_OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  park_first();
  for (int i = 1; i < QueueFixture::kEntries; ++i) REQUIRE_OK(cuGraphLaunch(exec, first));
  BlockedCall full(context, [&] { return cuGraphLaunch(exec, first); });
  CHECK(full.blocks());
  release();
  CHECK(full.result() == CUDA_SUCCESS);
  REQUIRE_OK(cuCtxSynchronize());
  REQUIRE_OK(cuGraphExecDestroy(exec));
  REQUIRE_OK(cuGraphDestroy(graph));
}

namespace {

struct SharedQueueFixture : QueueFixture {
  SharedQueueFixture() {
    for (int i = 0; i < kQueues - 1; ++i) REQUIRE_OK(cuStreamCreate(&shares_first, CU_STREAM_NON_BLOCKING));
  }
  // True if an operation of the stream that shares the queue of `first` completes at once, as one of another
  // stream must.
  bool passes() {
    REQUIRE_OK(cuMemsetD32Async(memory, 4, 1, second));
    CHECK(cuStreamQuery(second) == CUDA_SUCCESS);
    REQUIRE_OK(cuMemsetD32Async(memory + 4, 5, 1, shares_first));
    const bool passed = cuStreamQuery(shares_first) == CUDA_SUCCESS;
    release();
    REQUIRE_OK(cuStreamSynchronize(shares_first));
    REQUIRE_OK(cuCtxSynchronize());
    return passed;
  }
  CUstream shares_first = nullptr;
};

}  // namespace

TEST_CASE_METHOD(SharedQueueFixture,
                 "a stream that waits for a value blocks a stream that shares its queue") {
  park_first();
  CHECK(!passes());
}

TEST_CASE_METHOD(SharedQueueFixture,
                 "an operation that waits for its stream blocks the operations behind it in the queue") {
  CUmodule module = nullptr;
  CUfunction spin = nullptr;
  REQUIRE_OK(cuModuleLoadData(&module, kKernels));
  REQUIRE_OK(cuModuleGetFunction(&spin, module, "spin"));
  CUdeviceptr address = wait_address();
  void* parameters[] = {&address};
  SECTION("a kernel at work holds up none") {
    REQUIRE_OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, first, parameters, nullptr));
    CHECK(passes());
  }
  SECTION("a kernel behind a kernel does") {
    REQUIRE_OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, first, parameters, nullptr));
    REQUIRE_OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, first, parameters, nullptr));
    CHECK(!passes());
  }
}

TEST_CASE_METHOD(SharedQueueFixture, "a host function blocks a stream that shares its queue") {
  REQUIRE_OK(cuLaunchHostFunc(first, wait_for_word, word));
  CHECK(!passes());
}

TEST_CASE_METHOD(SharedQueueFixture,
                 "a stream that waits for an event blocks a stream that shares its queue") {
  CUstream third = nullptr;
  CUevent event = nullptr;
  REQUIRE_OK(cuStreamCreate(&third, CU_STREAM_NON_BLOCKING));  // shares the queue of `second`
  REQUIRE_OK(cuStreamCreate(&third, CU_STREAM_NON_BLOCKING));
  REQUIRE_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  REQUIRE_OK(cuStreamWaitValue32_v2(third, wait_address(), 1, CU_STREAM_WAIT_VALUE_EQ));
  REQUIRE_OK(cuEventRecord(event, third));
  REQUIRE_OK(cuStreamWaitEvent(first, event, 0));
  CHECK(!passes());
}

TEST_CASE_METHOD(SharedQueueFixture,
                 "a destroyed stream blocks its queue until its operations are complete") {
  park_first();
  REQUIRE_OK(cuStreamDestroy_v2(first));
  CHECK(!passes());
}

TEST_CASE_METHOD(SharedQueueFixture,
                 "a stream cannot release a waiting operation before it in a shared queue") {
  park_first();
  REQUIRE_OK(cuStreamWriteValue32_v2(shares_first, wait_address(), 1, 0));
  CHECK(std::atomic_ref(*word).load() == 0);
  REQUIRE_OK(cuStreamWriteValue32_v2(second, wait_address(), 1, 0));
  REQUIRE_OK(cuCtxSynchronize());
}

TEST_CASE_METHOD(QueueFixture, "destroying a context releases a thread that a full queue blocks") {
  fill_first();
  BlockedCall full(context, [&] { return cuMemsetD32Async(memory, 2, 1, first); });
  REQUIRE(full.blocks());
  REQUIRE_OK(cuCtxDestroy_v2(context));
  context = nullptr;  // destroyed, and the pinned word with it
  full.result();
}
