// Stream-ordered allocations of several streams, and the memory that pools keep.
#include <atomic>
#include <random>
#include <thread>

#include "tests/e2e/apps/scenario.h"

using namespace app;

namespace {

void set_threshold(CUmemoryPool pool, cuuint64_t bytes) {
  OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes));
}
void set_reuse(CUmemoryPool pool, CUmemPool_attribute attribute, int on) {
  OK(cuMemPoolSetAttribute(pool, attribute, &on));
}
size_t reserved(CUmemoryPool pool) {
  cuuint64_t bytes = 0;
  OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes));
  return bytes;
}
CUmemoryPool default_pool() {
  CUmemoryPool pool = nullptr;
  OK(cuDeviceGetDefaultMemPool(&pool, 0));
  return pool;
}

// A stream that is held until let_go() is called.
struct StuckStream {
  StuckStream() {
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuLaunchHostFunc(
        stream, [](void* self) { static_cast<StuckStream*>(self)->go.wait(false); }, this));
  }
  void let_go() {
    go = true;
    go.notify_all();
  }
  CUstream stream = nullptr;
  std::atomic<bool> go{false};
};

}  // namespace

// No stream may overwrite a block that another stream uses: each writes its own number and reads it before
// the free, often in a stream that has waited for the writer.
SCENARIO(pooled_memory_of_many_streams) {
  constexpr size_t kStreams = 4, kRounds = 600;
  Device device;
  Kernels kernels;
  std::mt19937 random(7);
  CUstream streams[kStreams] = {};
  CUevent events[kStreams] = {};
  for (size_t i = 0; i < kStreams; ++i) {
    OK(cuStreamCreate(&streams[i], i == 0 ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&events[i], CU_EVENT_DISABLE_TIMING));
  }
  uint32_t* seen = nullptr;
  OK(cuMemAllocHost(reinterpret_cast<void**>(&seen), kRounds * 2 * sizeof *seen));
  struct Block {
    CUdeviceptr address;
    size_t stream, words, round;
  };
  std::vector<Block> live;
  const auto give = [&](size_t index) {
    const Block block = live[index];
    live[index] = live.back();
    live.pop_back();
    size_t in = block.stream;
    if (random() % 2 != 0) {
      in = random() % kStreams;
      OK(cuEventRecord(events[block.stream], streams[block.stream]));
      OK(cuStreamWaitEvent(streams[in], events[block.stream], 0));
    }
    OK(cuMemcpyDtoHAsync(&seen[2 * block.round], block.address, 4, streams[in]));
    OK(cuMemcpyDtoHAsync(&seen[2 * block.round + 1], block.address + 4 * (block.words - 1), 4, streams[in]));
    OK(cuMemFreeAsync(block.address, streams[in]));
  };
  for (size_t round = 0; round < kRounds; ++round) {
    if (round == kRounds / 2) set_threshold(default_pool(), ~cuuint64_t{0});
    const size_t stream = random() % kStreams,
                 words = random() % 2 ? 1 + random() % 4096 : 1 + random() % (1u << 20);
    CUdeviceptr address = 0;
    OK(cuMemAllocAsync(&address, 4 * words, streams[stream]));
    OK(cuMemsetD32Async(address, static_cast<unsigned>(round), words, streams[stream]));
    live.push_back({address, stream, words, round});
    while (live.size() > 8) give(random() % live.size());
    if (random() % 16 == 0) OK(cuStreamSynchronize(streams[random() % kStreams]));
    if (random() % 40 == 0) OK(cuEventSynchronize(events[random() % kStreams]));
    if (random() % 40 == 0) OK(cuCtxSynchronize());
    if (random() % 50 == 0) {  // freed memory outlives the stream
      const size_t gone = random() % kStreams;
      OK(cuStreamSynchronize(streams[gone]));
      for (size_t i = live.size(); i-- > 0;) {
        if (live[i].stream == gone) give(i);
      }
      OK(cuStreamDestroy(streams[gone]));
      OK(cuStreamCreate(&streams[gone], CU_STREAM_NON_BLOCKING));
    }
  }
  while (!live.empty()) give(live.size() - 1);
  OK(cuCtxSynchronize());
  for (size_t i = 0; i < 2 * kRounds; ++i) EXPECT(seen[i] == i / 2);
  set_threshold(default_pool(), 0);
  OK(cuCtxSynchronize());
  EXPECT(reserved(default_pool()) == 0);
}

// Threads with their own streams share a pool.
SCENARIO(pooled_memory_in_threads) {
  constexpr uint32_t kThreads = 6, kRounds = 200, kWords = 50'000;
  Device device;
  std::vector<std::thread> threads;
  for (uint32_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([thread, context = device.context] {
      OK(cuCtxSetCurrent(context));
      CUstream stream = nullptr;
      OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
      for (uint32_t round = 0; round < kRounds; ++round) {
        const size_t words = kWords * (1 + (round + thread) % 8);
        const uint32_t value = thread * kRounds + round;
        uint32_t first = 0, last = 0;
        CUdeviceptr block = 0, other = 0;
        OK(cuMemAllocAsync(&block, 4 * words, stream));
        OK(cuMemsetD32Async(block, value, words, stream));
        OK(cuMemAllocAsync(&other, 4 * words, stream));
        OK(cuMemcpyDtoDAsync(other, block, 4 * words, stream));
        OK(cuMemFreeAsync(block, stream));
        OK(cuMemcpyDtoHAsync(&first, other, 4, stream));
        OK(cuMemcpyDtoHAsync(&last, other + 4 * (words - 1), 4, stream));
        OK(cuMemFreeAsync(other, stream));
        if (round % 4 == 0) OK(cuStreamSynchronize(stream));
        EXPECT(first == value && last == value);  // copies to pageable memory have completed
      }
      OK(cuStreamDestroy(stream));
    });
  }
  for (std::thread& thread : threads) thread.join();
  OK(cuCtxSynchronize());
  EXPECT(reserved(default_pool()) == 0);
}

// By the pool's attributes, when a stream gets a block that another stream has freed. Runs only through
// poold: softgpu does not implement these rules.
SCENARIO(pooled_memory_passes_between_streams) {
  constexpr size_t kBytes = 64u << 20;
  Device device;
  CUmemoryPool pool = default_pool();
  set_threshold(pool, ~cuuint64_t{0});
  CUstream first = nullptr, second = nullptr;
  OK(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
  CUevent event = nullptr;
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  CUdeviceptr block = 0, other = 0;
  const auto freed_in = [&](CUstream stream) {
    OK(cuMemAllocAsync(&block, kBytes, stream));
    OK(cuMemsetD8Async(block, 1, 64, stream));
    OK(cuMemFreeAsync(block, stream));
  };
  const auto reused_in = [&](CUstream stream) {
    OK(cuMemAllocAsync(&other, kBytes, stream));
    OK(cuMemFreeAsync(other, stream));
    return other == block;
  };
  const auto start_again = [&] {
    OK(cuCtxSynchronize());
    OK(cuMemPoolTrimTo(pool, 0));
    EXPECT(reserved(pool) == 0);
  };
  freed_in(first);
  EXPECT(reused_in(first));
  OK(cuStreamSynchronize(first));
  EXPECT(reused_in(second));  // the host has synchronized with the first stream
  start_again();

  // The pool detects that a stream has completed, unless opportunistic reuse is disabled.
  set_reuse(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 0);
  freed_in(first);
  EXPECT(!reused_in(second));
  start_again();
  set_reuse(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 1);
  CUdeviceptr mark = 0;
  OK(cuMemAlloc(&mark, 1));
  bool reused = false;
  for (unsigned char attempt = 1; !reused && attempt < 100;
       ++attempt) {  // the program may see the value slightly before the operation completes
    freed_in(first);
    OK(cuMemsetD8Async(mark, attempt, 1, first));
    while (download<unsigned char>(mark, 1)[0] != attempt) {
    }
    reused = reused_in(second);
    start_again();
  }
  EXPECT(reused);

  StuckStream stuck;
  freed_in(stuck.stream);
  EXPECT(!reused_in(second));
  OK(cuEventRecord(event, stuck.stream));
  OK(cuStreamWaitEvent(first, event, 0));
  set_reuse(pool, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, 0);
  OK(cuMemAllocAsync(&other, kBytes, second));  // reuses the block that this stream freed
  CUdeviceptr third = 0;
  OK(cuMemAllocAsync(&third, kBytes, first));
  EXPECT(third != block);
  set_reuse(pool, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, 1);
  CUdeviceptr fourth = 0;
  OK(cuMemAllocAsync(&fourth, kBytes, first));
  EXPECT(fourth == block);
  OK(cuMemFreeAsync(fourth, first));
  OK(cuMemFreeAsync(third, first));
  OK(cuMemFreeAsync(other, second));
  stuck.let_go();
  start_again();
}

// [MiB of the device]: a pool's free memory is available to other allocations before they fail.
SCENARIO(pooled_memory_is_given_back) {
  Device device;
  const size_t all = std::stoul(arguments.at(0)) << 20;
  CUmemoryPool pool = default_pool();
  set_threshold(pool, ~cuuint64_t{0});
  CUstream first = nullptr, second = nullptr;
  OK(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
  CUdeviceptr block = 0, plain = 0;
  OK(cuMemAllocAsync(&block, all, first));
  GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocAsync(&plain, 4u << 20, second));
  OK(cuMemFreeAsync(block, first));
  OK(cuStreamSynchronize(first));
  size_t free = 0, total = 0;
  OK(cuMemGetInfo(&free, &total));
  EXPECT(reserved(pool) == all && free < all);
  OK(cuMemAlloc(&plain, all));
  EXPECT(reserved(pool) == 0);
  OK(cuMemFree(plain));
  // An allocation waits for freed memory that a stream still uses.
  OK(cuMemAllocAsync(&block, all, first));
  OK(cuMemsetD8Async(block, 3, all, first));
  OK(cuMemFreeAsync(block, first));
  OK(cuMemAlloc(&plain, all));
  OK(cuMemFree(plain));
  OK(cuMemAllocAsync(&block, all / 2, first));
  OK(cuMemsetD8Async(block, 3, all / 2, first));
  OK(cuMemFreeAsync(block, first));
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemGenericAllocationHandle memory = 0;
  OK(cuMemCreate(&memory, all, &properties, 0));
  OK(cuMemRelease(memory));
  // Another stream gets memory that a held stream has freed; it waits for that stream on the device.
  StuckStream stuck;
  OK(cuMemAllocAsync(&block, all, stuck.stream));
  OK(cuMemsetD8Async(block, 4, all, stuck.stream));
  OK(cuMemFreeAsync(block, stuck.stream));
  CUdeviceptr other = 0;
  OK(cuMemAllocAsync(&other, all, second));
  EXPECT(other == block);
  OK(cuMemsetD8Async(other, 5, all, second));
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(second));
  stuck.let_go();
  OK(cuStreamSynchronize(second));
  EXPECT(download<uint8_t>(other + all - 1, 1)[0] == 5);
  OK(cuMemFreeAsync(other, second));
  // A destroyed pool keeps no memory.
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemoryPool own = nullptr;
  OK(cuMemPoolCreate(&own, &props));
  set_threshold(own, ~cuuint64_t{0});
  OK(cuMemAllocFromPoolAsync(&block, all / 2, own, first));
  OK(cuMemAllocFromPoolAsync(&other, all / 4, own, first));
  OK(cuMemFreeAsync(block, first));
  OK(cuMemPoolDestroy(own));
  OK(cuMemsetD8Async(other, 6, all / 4, first));
  OK(cuMemFreeAsync(other, first));
  OK(cuCtxSynchronize());
  OK(cuMemGetInfo(&free, &total));
  EXPECT(free >= all);
}

// Through gpupool, destroying a context frees its stream-ordered memory (limits.def); with CUDA only the
// program does.
SCENARIO(pooled_memory_of_a_destroyed_context) {
  Device device;
  size_t before = 0, after = 0, total = 0;
  OK(cuMemGetInfo(&before, &total));
  const CUcontext made = create_context(device.device);
  CUdeviceptr block = 0;
  OK(cuMemAllocAsync(&block, 8u << 20, nullptr));
  OK(cuMemsetD8Async(block, 1, 8u << 20, nullptr));
  OK(cuCtxSynchronize());
  OK(cuCtxDestroy(made));
  cuuint64_t used = 1;
  OK(cuMemPoolGetAttribute(default_pool(), CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  EXPECT(used == 0 && reserved(default_pool()) == 0);
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(block, nullptr));
  OK(cuCtxSynchronize());
  OK(cuMemGetInfo(&after, &total));
  EXPECT(after == before);
  // The pool itself remains usable.
  OK(cuMemAllocAsync(&block, 8u << 20, nullptr));
  OK(cuMemsetD8Async(block, 2, 8u << 20, nullptr));
  EXPECT(download<uint8_t>(block, 1)[0] == 2);
  OK(cuMemFree(block));
}
