// Hardware queues: how much they hold, and what a full one blocks.
#include <memory>
#include <vector>

#include "tests/server/softgpu/runtime/blocked_call.h"

namespace {

constexpr int kEntries = 1024;

struct QueueFixture : ContextFixture {
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
  // Makes the queue of `first` hold as many operations as it can, none of which completes before release().
  void fill_first() {
    REQUIRE_OK(cuStreamWaitValue32_v2(first, wait_address(), 1, CU_STREAM_WAIT_VALUE_EQ));
    for (int i = 1; i < kEntries; ++i) REQUIRE_OK(cuMemsetD32Async(memory, 1, 1, first));
  }
  CUdeviceptr memory = 0;
  uint32_t* word = nullptr;
  CUstream first = nullptr, second = nullptr;
};

}  // namespace

TEST_CASE_METHOD(QueueFixture, "a full queue blocks the thread that enqueues, and others of the context") {
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
  CHECK(cuEventQuery(event) == CUDA_SUCCESS);
  CHECK(cuEventSynchronize(event) == CUDA_SUCCESS);
  CHECK(!full.returned());
  release();
  CHECK(full.result() == CUDA_SUCCESS);
  CHECK(other.result() == CUDA_SUCCESS);
  query.result();
  REQUIRE_OK(cuCtxSynchronize());
  int values[2] = {};
  REQUIRE_OK(cuMemcpyDtoH_v2(values, memory, 8));
  CHECK(values[0] == 2);
  CHECK(values[1] == 3);
}

TEST_CASE_METHOD(QueueFixture, "a queue has room again as its operations complete") {
  for (int round = 0; round < 3; ++round) {
    std::atomic_ref(*word).store(0);
    fill_first();
    release();
    REQUIRE_OK(cuStreamSynchronize(first));
  }
}

TEST_CASE_METHOD(QueueFixture, "the launch of a graph is one operation in its queue") {
  REQUIRE_OK(cuStreamBeginCapture_v2(second, CU_STREAM_CAPTURE_MODE_GLOBAL));
  for (int i = 0; i < 10; ++i) REQUIRE_OK(cuMemsetD32Async(memory, 1, 1, second));
  CUgraph graph = nullptr;
  REQUIRE_OK(cuStreamEndCapture(second, &graph));
  CUgraphExec exec = nullptr;
  REQUIRE_OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  REQUIRE_OK(cuStreamWaitValue32_v2(first, wait_address(), 1, CU_STREAM_WAIT_VALUE_EQ));
  for (int i = 1; i < kEntries; ++i) REQUIRE_OK(cuGraphLaunch(exec, first));
  BlockedCall full(context, [&] { return cuGraphLaunch(exec, first); });
  CHECK(full.blocks());
  release();
  CHECK(full.result() == CUDA_SUCCESS);
  REQUIRE_OK(cuCtxSynchronize());
  REQUIRE_OK(cuGraphExecDestroy(exec));
  REQUIRE_OK(cuGraphDestroy(graph));
}

TEST_CASE_METHOD(QueueFixture, "destroying a context lets a thread go that a full queue blocks") {
  fill_first();
  BlockedCall full(context, [&] { return cuMemsetD32Async(memory, 2, 1, first); });
  REQUIRE(full.blocks());
  REQUIRE_OK(cuCtxDestroy_v2(context));
  context = nullptr;  // with the pinned word
  full.result();
}
