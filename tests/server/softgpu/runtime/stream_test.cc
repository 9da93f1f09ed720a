#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/server/softgpu/runtime/fixture.h"

namespace {

// A host function that blocks its stream until the test opens the gate.
struct Gate {
  std::atomic<bool> open{false};
  std::atomic<bool> reached{false};
  static void CUDA_CB wait(void* self) {
    auto* gate = static_cast<Gate*>(self);
    gate->reached = true;
    gate->reached.notify_all();
    gate->open.wait(false);
  }
  void release() {
    open = true;
    open.notify_all();
  }
};

struct StreamFixture : ContextFixture {
  StreamFixture() {
    REQUIRE_OK(cuMemAlloc_v2(&memory, 4096));
    REQUIRE_OK(cuMemsetD8_v2(memory, 0, 4096));
    void* pinned = nullptr;
    REQUIRE_OK(cuMemHostAlloc(&pinned, 4096, 0));
    word = static_cast<uint32_t*>(pinned);
  }
  CUstream stream(unsigned flags) {
    CUstream made = nullptr;
    REQUIRE_OK(cuStreamCreate(&made, flags));
    return made;
  }
  CUdeviceptr memory = 0;
  uint32_t* word = nullptr;
};

void CUDA_CB add_one(void* counter) {
  static_cast<std::atomic<int>*>(counter)->fetch_add(1);
}

}  // namespace

TEST_CASE_METHOD(StreamFixture, "operations of a stream run in order and other streams overtake it") {
  CUstream a = stream(CU_STREAM_NON_BLOCKING), b = stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr flag = 0;
  REQUIRE_OK(cuMemHostGetDevicePointer_v2(&flag, word, 0));
  std::atomic_ref(*word).store(0);
  REQUIRE_OK(cuStreamWaitValue32_v2(a, flag, 1, CU_STREAM_WAIT_VALUE_EQ));
  REQUIRE_OK(cuMemsetD32Async(memory, 5, 1, a));
  CHECK(cuStreamQuery(a) == CUDA_ERROR_NOT_READY);
  REQUIRE_OK(cuMemsetD32Async(memory + 4, 6, 1, b));
  REQUIRE_OK(cuStreamSynchronize(b));
  CHECK(cuStreamQuery(a) == CUDA_ERROR_NOT_READY);
  std::atomic_ref(*word).store(1);
  REQUIRE_OK(cuStreamSynchronize(a));
  int out[2] = {};
  REQUIRE_OK(cuMemcpyDtoH_v2(out, memory, 8));
  CHECK(out[0] == 5);
  CHECK(out[1] == 6);
}

TEST_CASE_METHOD(StreamFixture, "stream memory operations wait for values and write values in all forms") {
  CUstream s = stream(CU_STREAM_NON_BLOCKING), other = stream(CU_STREAM_NON_BLOCKING);
  REQUIRE_OK(cuStreamWaitValue32_v2(s, memory, 10, CU_STREAM_WAIT_VALUE_GEQ));
  REQUIRE_OK(cuStreamWriteValue32_v2(s, memory + 4, 1, 0));
  REQUIRE_OK(cuStreamWaitValue64_v2(s, memory + 8, 0x100000000ull, CU_STREAM_WAIT_VALUE_AND));
  REQUIRE_OK(cuStreamWriteValue64_v2(s, memory + 16, 0x123456789abcdefull, 0));
  REQUIRE_OK(cuStreamWriteValue32_v2(other, memory, 11, 0));
  REQUIRE_OK(cuStreamWaitValue32_v2(other, memory + 4, 1, CU_STREAM_WAIT_VALUE_EQ));
  REQUIRE_OK(cuStreamSynchronize(other));
  CHECK(cuStreamQuery(s) == CUDA_ERROR_NOT_READY);
  CUstreamBatchMemOpParams batch[2] = {};
  batch[0].operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
  batch[0].writeValue.address = memory + 8;
  batch[0].writeValue.value64 = 0x300000000ull;
  batch[1].operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
  batch[1].waitValue.address = memory + 16;
  batch[1].waitValue.value64 = 0x123456789abcdefull;
  batch[1].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  REQUIRE_OK(cuStreamBatchMemOp_v2(other, 2, batch, 0));
  REQUIRE_OK(cuStreamSynchronize(other));
  REQUIRE_OK(cuStreamSynchronize(s));
  CHECK(cuStreamWaitValue32_v2(s, memory + 2, 1, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuStreamWaitValue32_v2(s, memory + (1ull << 30), 1, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuStreamWaitValue32_v2(s, memory, 1, 77) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE_METHOD(StreamFixture, "the legacy default stream synchronises with blocking streams only") {
  CUstream blocking = stream(0), second = stream(0), free = stream(CU_STREAM_NON_BLOCKING);
  Gate gate;
  REQUIRE_OK(cuLaunchHostFunc(blocking, Gate::wait, &gate));
  REQUIRE_OK(cuMemsetD32Async(memory, 1, 1, nullptr));
  REQUIRE_OK(cuMemsetD32Async(memory + 4, 1, 1, second));
  REQUIRE_OK(cuMemsetD32Async(memory + 8, 1, 1, free));
  REQUIRE_OK(cuMemsetD32Async(memory + 12, 1, 1, CU_STREAM_PER_THREAD));
  REQUIRE_OK(cuStreamSynchronize(free));
  gate.reached.wait(false);
  CHECK(cuStreamQuery(blocking) == CUDA_ERROR_NOT_READY);
  CHECK(cuStreamQuery(nullptr) == CUDA_ERROR_NOT_READY);
  CHECK(cuStreamQuery(second) == CUDA_ERROR_NOT_READY);
  CHECK(cuStreamQuery(CU_STREAM_PER_THREAD) == CUDA_ERROR_NOT_READY);
  gate.release();
  REQUIRE_OK(cuStreamSynchronize(second));
  CHECK(cuStreamQuery(nullptr) == CUDA_SUCCESS);
  REQUIRE_OK(cuCtxSynchronize());
}

TEST_CASE_METHOD(StreamFixture, "each thread has its own per-thread default stream") {
  Gate gate;
  REQUIRE_OK(cuLaunchHostFunc_ptsz(nullptr, Gate::wait, &gate));
  CHECK(cuStreamQuery_ptsz(nullptr) == CUDA_ERROR_NOT_READY);
  CHECK(cuStreamQuery(CU_STREAM_PER_THREAD) == CUDA_ERROR_NOT_READY);
  unsigned long long mine = 0, theirs = 0, legacy = 0;
  REQUIRE_OK(cuStreamGetId_ptsz(nullptr, &mine));
  REQUIRE_OK(cuStreamGetId(nullptr, &legacy));
  std::thread([&] {
    CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS);
    CHECK(cuStreamGetId_ptsz(nullptr, &theirs) == CUDA_SUCCESS);
    CHECK(cuStreamQuery_ptsz(nullptr) == CUDA_SUCCESS);
  }).join();
  CHECK(mine != theirs);
  CHECK(mine != legacy);
  gate.release();
  REQUIRE_OK(cuStreamSynchronize_ptsz(nullptr));
}

TEST_CASE_METHOD(StreamFixture, "events order streams and measure elapsed time") {
  CUstream a = stream(CU_STREAM_NON_BLOCKING), b = stream(CU_STREAM_NON_BLOCKING);
  CUevent start = nullptr, end = nullptr, untimed = nullptr;
  REQUIRE_OK(cuEventCreate(&start, 0));
  REQUIRE_OK(cuEventCreate(&end, CU_EVENT_BLOCKING_SYNC));
  REQUIRE_OK(cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
  CHECK(cuEventQuery(start) == CUDA_SUCCESS);
  float milliseconds = -1;
  CHECK(cuEventElapsedTime(&milliseconds, start, end) == CUDA_ERROR_INVALID_HANDLE);
  Gate gate;
  REQUIRE_OK(cuEventRecord(start, a));
  REQUIRE_OK(cuLaunchHostFunc(a, Gate::wait, &gate));
  REQUIRE_OK(cuMemsetD32Async(memory, 9, 1, a));
  REQUIRE_OK(cuEventRecord(end, a));
  REQUIRE_OK(cuEventRecord(untimed, a));
  REQUIRE_OK(cuStreamWaitEvent(b, end, 0));
  REQUIRE_OK(cuMemcpyDtoDAsync_v2(memory + 4, memory, 4, b));
  REQUIRE_OK(cuEventSynchronize(start));
  CHECK(cuEventQuery(end) == CUDA_ERROR_NOT_READY);
  CHECK(cuEventElapsedTime(&milliseconds, start, end) == CUDA_ERROR_NOT_READY);
  CHECK(cuStreamQuery(b) == CUDA_ERROR_NOT_READY);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  gate.release();
  REQUIRE_OK(cuEventSynchronize(end));
  REQUIRE_OK(cuEventElapsedTime_v2(&milliseconds, start, end));
  CHECK(milliseconds >= 4.9f);
  CHECK(milliseconds < 10000.f);
  REQUIRE_OK(cuEventSynchronize(untimed));
  CHECK(cuEventElapsedTime(&milliseconds, start, untimed) == CUDA_ERROR_INVALID_HANDLE);
  REQUIRE_OK(cuStreamSynchronize(b));
  int value = 0;
  REQUIRE_OK(cuMemcpyDtoH_v2(&value, memory + 4, 4));
  CHECK(value == 9);
  REQUIRE_OK(cuEventDestroy_v2(start));
  CHECK(cuEventDestroy_v2(start) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE_METHOD(StreamFixture, "host functions and callbacks run in stream order") {
  CUstream s = stream(0);
  std::atomic<int> count{0};
  for (int i = 0; i < 1000; ++i) REQUIRE_OK(cuLaunchHostFunc(s, add_one, &count));
  struct Seen {
    CUresult status = CUDA_ERROR_UNKNOWN;
    int count = 0;
    std::atomic<int>* source;
  } seen;
  seen.source = &count;
  REQUIRE_OK(cuStreamAddCallback(
      s,
      [](CUstream, CUresult status, void* user) {
        auto* to = static_cast<Seen*>(user);
        to->status = status;
        to->count = to->source->load();
      },
      &seen, 0));
  REQUIRE_OK(cuStreamSynchronize(s));
  CHECK(seen.status == CUDA_SUCCESS);
  CHECK(seen.count == 1000);
  CHECK(cuLaunchHostFunc(s, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE_METHOD(StreamFixture, "host functions and callbacks must not call CUDA") {
  struct Calls {
    static void make(void* self) {
      size_t bytes = 0;
      CUdeviceptr memory = 0;
      static_cast<Calls*>(self)->results = {cuMemGetInfo_v2(&bytes, &bytes), cuMemAlloc_v2(&memory, 16),
                                            cuStreamSynchronize(nullptr), cuCtxSetCurrent(nullptr)};
    }
    std::vector<CUresult> results;
  } function, callback;
  REQUIRE_OK(cuLaunchHostFunc(nullptr, Calls::make, &function));
  REQUIRE_OK(cuStreamAddCallback(
      nullptr, [](CUstream, CUresult, void* calls) { Calls::make(calls); }, &callback, 0));
  REQUIRE_OK(cuCtxSynchronize());
  const std::vector<CUresult> refused(4, CUDA_ERROR_NOT_PERMITTED);
  CHECK(function.results == refused);
  CHECK(callback.results == refused);
}

TEST_CASE_METHOD(StreamFixture, "a destroyed stream completes its enqueued work") {
  CUstream s = stream(0);
  Gate gate;
  std::atomic<int> count{0};
  REQUIRE_OK(cuLaunchHostFunc(s, Gate::wait, &gate));
  REQUIRE_OK(cuLaunchHostFunc(s, add_one, &count));
  REQUIRE_OK(cuStreamDestroy_v2(s));
  CHECK(cuStreamDestroy_v2(s) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuMemsetD8Async(memory, 0, 1, s) == CUDA_ERROR_INVALID_HANDLE);
  gate.release();
  REQUIRE_OK(cuCtxSynchronize());
  CHECK(count == 1);
}

TEST_CASE_METHOD(StreamFixture, "destroying a context releases a stream whose wait never ends") {
  CUcontext other = nullptr;
  REQUIRE_OK(cuCtxCreate_v2(&other, 0, 0));
  CUstream s = stream(0);
  CUdeviceptr flag = 0;
  REQUIRE_OK(cuMemAlloc_v2(&flag, 4));
  REQUIRE_OK(cuMemsetD8_v2(flag, 0, 4));
  REQUIRE_OK(cuStreamWaitValue32_v2(s, flag, 1, CU_STREAM_WAIT_VALUE_EQ));
  REQUIRE_OK(cuCtxDestroy_v2(other));
  REQUIRE_OK(cuCtxSynchronize());
}

TEST_CASE_METHOD(StreamFixture, "unmapping memory that a stream waits on fails only its context") {
  CUcontext other = nullptr;
  REQUIRE_OK(cuCtxCreate_v2(&other, 0, 0));
  CUstream s = stream(0);
  CUdeviceptr address = 0;
  constexpr size_t kGranule = 2 << 20;
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemGenericAllocationHandle physical = 0;
  REQUIRE_OK(cuMemCreate(&physical, kGranule, &prop, 0));
  REQUIRE_OK(cuMemAddressReserve(&address, kGranule, 0, 0, 0));
  REQUIRE_OK(cuMemMap(address, kGranule, 0, physical, 0));
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  REQUIRE_OK(cuMemSetAccess(address, kGranule, &access, 1));
  REQUIRE_OK(cuMemsetD8_v2(address, 0, 4));
  REQUIRE_OK(cuStreamWaitValue32_v2(s, address, 1, CU_STREAM_WAIT_VALUE_EQ));
  REQUIRE_OK(cuMemsetD8Async(address, 0, kGranule, s));
  REQUIRE_OK(cuMemUnmap(address, kGranule));
  CHECK(cuStreamSynchronize(s) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CUdeviceptr memory_there = 0;
  CHECK(cuMemAlloc_v2(&memory_there, 16) == CUDA_ERROR_ILLEGAL_ADDRESS);
  REQUIRE_OK(cuCtxDestroy_v2(other));
  REQUIRE_OK(cuMemAlloc_v2(&memory_there, 16));
  REQUIRE_OK(cuMemRelease(physical));
  REQUIRE_OK(cuMemAddressFree(address, kGranule));
}

TEST_CASE_METHOD(StreamFixture, "many threads use one context") {
  constexpr int kThreads = 8, kRounds = 200;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      if (cuCtxSetCurrent(context) != CUDA_SUCCESS) ++wrong;
      for (int i = 0; i < kRounds; ++i) {
        CUstream s = nullptr;
        CUevent e = nullptr;
        CUdeviceptr mine = 0;
        int out = 0;
        const unsigned value = static_cast<unsigned>(t * kRounds + i);
        if (cuStreamCreate(&s, i % 2) != CUDA_SUCCESS || cuEventCreate(&e, 0) != CUDA_SUCCESS ||
            cuMemAllocAsync(&mine, 1000, s) != CUDA_SUCCESS ||
            cuMemsetD32Async(mine, value, 1, s) != CUDA_SUCCESS || cuEventRecord(e, s) != CUDA_SUCCESS ||
            cuStreamWaitEvent(nullptr, e, 0) != CUDA_SUCCESS ||
            cuMemcpyDtoH_v2(&out, mine, 4) != CUDA_SUCCESS || out != static_cast<int>(value) ||
            cuMemFreeAsync(mine, s) != CUDA_SUCCESS || cuEventDestroy_v2(e) != CUDA_SUCCESS ||
            cuStreamDestroy_v2(s) != CUDA_SUCCESS) {
          ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  REQUIRE_OK(cuCtxSynchronize());
}

TEST_CASE_METHOD(StreamFixture, "rejects invalid handles") {
  for (const uint64_t wild : {uint64_t{3}, uint64_t{0xdeadbeef}, uint64_t{0x0200'0000'1000'0010}, UINT64_MAX,
                              reinterpret_cast<uint64_t>(context)}) {
    const auto s = reinterpret_cast<CUstream>(wild);
    CHECK(cuStreamSynchronize(s) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuMemsetD8Async(memory, 0, 4, s) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuEventRecord(reinterpret_cast<CUevent>(wild), nullptr) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuEventQuery(reinterpret_cast<CUevent>(wild)) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuMemRelease(wild) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemPoolTrimTo(reinterpret_cast<CUmemoryPool>(wild), 0) == CUDA_ERROR_INVALID_VALUE);
  }
  CHECK(cuCtxSetCurrent(reinterpret_cast<CUcontext>(1)) == CUDA_ERROR_INVALID_CONTEXT);
}
