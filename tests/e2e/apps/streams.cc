// Streams, events, host functions and threads: the order of their work.
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>

#include "tests/e2e/apps/scenario.h"

using namespace app;

// Runs until it is killed.
SCENARIO(stuck_behind_host_function) {
  Device device;
  Kernels kernels;
  CUstream stream = nullptr;
  CUdeviceptr values = 0;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuMemAlloc(&values, 256 * 4));
  OK(cuCtxSynchronize());
  Gate gate;
  gate.put_into(stream);
  for (unsigned i = 0; i < 5; ++i) OK(kernels.launch("fill", 1, 256, stream, values, i, 256u));
  std::printf("launched\n");
  std::fflush(stdout);
  OK(cuStreamSynchronize(stream));
}

SCENARIO(events_order_streams) {
  Device device;
  Kernels kernels;
  constexpr unsigned kCount = 100'000;
  CUstream a = nullptr, b = nullptr;
  CUevent filled = nullptr;
  CUdeviceptr values = 0;
  OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&filled, CU_EVENT_DISABLE_TIMING));
  OK(cuMemAlloc(&values, kCount * 4));
  for (unsigned round = 0; round < 20; ++round) {
    OK(kernels.launch("fill", (kCount + 255) / 256, 256, a, values, round, kCount));
    OK(cuEventRecord(filled, a));
    OK(cuStreamWaitEvent(b, filled, 0));
    OK(kernels.launch("add", (kCount + 255) / 256, 256, b, values, 1000u, kCount));
    OK(cuEventRecord(filled, b));
    OK(cuStreamWaitEvent(a, filled, 0));
  }
  OK(cuStreamSynchronize(a));
  const auto result = download<uint32_t>(values, kCount);
  for (uint32_t i = 0; i < kCount; ++i) EXPECT(result[i] == 19 + 1000 + i);
  OK(cuMemFree(values));
  OK(cuEventDestroy(filled));
  OK(cuStreamDestroy(a));
  OK(cuStreamDestroy(b));
}

SCENARIO(events_tell_progress) {
  Device device;
  CUstream stream = nullptr, other = nullptr;
  CUevent before = nullptr, after = nullptr, plain = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&before, CU_EVENT_DEFAULT));
  OK(cuEventCreate(&after, CU_EVENT_DEFAULT));
  OK(cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING));
  OK(cuEventQuery(plain));  // an event that was never recorded counts as complete
  Gate gate;
  OK(cuEventRecord(before, stream));
  gate.put_into(stream);
  OK(cuEventRecord(after, stream));
  OK(cuEventSynchronize(before));
  GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(after));
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  OK(cuStreamQuery(other));
  float milliseconds = -1;
  GIVES(CUDA_ERROR_NOT_READY, cuEventElapsedTime(&milliseconds, before, after));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // measured below
  gate.let_go();
  OK(cuEventSynchronize(after));
  OK(cuEventQuery(after));
  OK(cuEventElapsedTime(&milliseconds, before, after));
  EXPECT(milliseconds >= 15 && milliseconds < 20'000);
  GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&milliseconds, before, plain));
  for (const CUevent event : {before, after, plain}) OK(cuEventDestroy(event));
  OK(cuStreamDestroy(stream));
  OK(cuStreamDestroy(other));
}

SCENARIO(null_stream_waits_for_blocking_streams) {
  Device device;
  Kernels kernels;
  CUstream blocking = nullptr, apart = nullptr;
  OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  OK(cuStreamCreate(&apart, CU_STREAM_NON_BLOCKING));
  CUdeviceptr values = 0;
  OK(cuMemAlloc(&values, 4096));
  Gate gate;
  gate.put_into(blocking);
  OK(kernels.launch("fill", 4, 256, blocking, values, 5u, 1024u));
  OK(kernels.launch("add", 4, 256, nullptr, values, 10u, 1024u));    // waits for `blocking`
  OK(kernels.launch("add", 4, 256, blocking, values, 100u, 1024u));  // waits for the null stream
  OK(cuStreamSynchronize(apart));                                    // waits for neither
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(nullptr));
  gate.let_go();
  OK(cuStreamSynchronize(blocking));
  const auto result = download<uint32_t>(values, 1024);
  for (uint32_t i = 0; i < 1024; ++i) EXPECT(result[i] == 115 + i);
  OK(cuMemFree(values));
  OK(cuStreamDestroy(blocking));
  OK(cuStreamDestroy(apart));
}

// Work of one blocking stream, a free in the null stream and work of another blocking stream run in this
// order.
SCENARIO(memory_freed_in_the_null_stream) {
  Device device;
  CUstream first = nullptr, second = nullptr;
  OK(cuStreamCreate(&first, CU_STREAM_DEFAULT));
  OK(cuStreamCreate(&second, CU_STREAM_DEFAULT));
  CUdeviceptr values = 0, pooled = 0;
  OK(cuMemAlloc(&values, 4));
  OK(cuMemAllocAsync(&pooled, 1 << 20, nullptr));
  Gate gate;
  gate.put_into(first);
  OK(cuMemsetD32Async(values, 1, 1, first));
  OK(cuMemFreeAsync(pooled, nullptr));
  OK(cuMemsetD32Async(values, 2, 1, second));
  for (int i = 0; i < 100 && cuStreamQuery(second) == CUDA_ERROR_NOT_READY; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  gate.let_go();
  OK(cuStreamSynchronize(first));
  OK(cuStreamSynchronize(second));
  EXPECT(download<uint32_t>(values, 1)[0] == 2);
  OK(cuMemFree(values));
  OK(cuStreamDestroy(first));
  OK(cuStreamDestroy(second));
}

// A copy reads pinned memory when its stream reaches it, after earlier work of the stream has written it.
SCENARIO(pinned_memory_is_read_in_stream_order) {
  Device device;
  Kernels kernels;
  constexpr unsigned kCount = 5000;
  CUstream stream = nullptr;
  CUdeviceptr first = 0, second = 0;
  unsigned *source = nullptr, *bounce = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuMemAlloc(&first, kCount * 4));
  OK(cuMemAlloc(&second, kCount * 4));
  OK(cuMemAllocHost(reinterpret_cast<void**>(&source), kCount * 4));
  OK(cuMemAllocHost(reinterpret_cast<void**>(&bounce), kCount * 4));
  OK(kernels.launch("burn", 8, 64, stream, second,
                    20000u));  // keeps everything below queued
  OK(cuLaunchHostFunc(
      stream,
      [](void* user) {
        for (unsigned i = 0; i < kCount; ++i) static_cast<unsigned*>(user)[i] = 3 * i;
      },
      source));
  OK(cuMemcpyHtoDAsync(first, source, kCount * 4, stream));
  OK(kernels.launch("add", kCount / 250 + 1, 250, stream, first, 5u, kCount));
  OK(cuMemcpyDtoHAsync(bounce, first, kCount * 4, stream));
  OK(cuMemcpyHtoDAsync(second, bounce, kCount * 4, stream));
  OK(cuMemsetD8Async(first, 0, kCount * 4, stream));
  OK(cuStreamSynchronize(stream));
  const auto values = download<unsigned>(second, kCount);
  for (unsigned i = 0; i < kCount; ++i) EXPECT(values[i] == 3 * i + 5);
  OK(cuMemFreeHost(source));
  OK(cuMemFreeHost(bounce));
  OK(cuMemFree(first));
  OK(cuMemFree(second));
  OK(cuStreamDestroy(stream));
}

// Unloading waits for queued work, which waits for the program: calls of other threads must proceed
// meanwhile.
SCENARIO(unload_behind_a_host_function) {
  Device device;
  for (int round = 0; round < 10; ++round) {
    Kernels kernels;
    Gate gate;
    gate.put_into(nullptr);
    std::thread unloads([&] {
      OK(cuCtxSetCurrent(device.context));
      OK(cuModuleUnload(kernels.module));
      OK(cuCtxSynchronize());
    });
    // Enough calls for the other thread to reach the unload.
    size_t free = 0, total = 0;
    for (int call = 0; call < 100; ++call) OK(cuMemGetInfo(&free, &total));
    gate.let_go();
    unloads.join();
  }
}

// The unloading thread has another context current and destroys it immediately.
SCENARIO(unload_behind_a_host_function_in_another_context) {
  Device device;
  for (int round = 0; round < 3; ++round) {
    Kernels kernels;
    Gate gate;
    gate.put_into(nullptr);
    std::thread unloads([&] {
      CUcontext other = nullptr;
      OK(cuCtxCreate(&other, nullptr, 0, device.device));
      OK(cuModuleUnload(kernels.module));
      OK(cuCtxDestroy(other));
    });
    size_t free = 0, total = 0;
    for (int call = 0; call < 100; ++call) OK(cuMemGetInfo(&free, &total));
    gate.let_go();
    unloads.join();
    OK(cuCtxSynchronize());
  }
}

SCENARIO(host_functions_run_in_order) {
  Device device;
  Kernels kernels;
  constexpr unsigned kRounds = 40;
  struct Round {
    std::vector<unsigned>* seen;
    unsigned number;
  };
  std::vector<unsigned> seen;
  std::vector<Round> rounds;
  for (unsigned i = 0; i < kRounds; ++i) rounds.push_back({&seen, i});
  CUstream stream = nullptr;
  CUdeviceptr values = 0;
  unsigned* pinned = nullptr;
  OK(cuMemAlloc(&values, 4));
  OK(cuMemAllocHost(reinterpret_cast<void**>(&pinned), 4));
  OK(cuMemsetD32(values, 0, 1));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (Round& round : rounds) {
    OK(kernels.launch("add", 1, 1, stream, values, 1u, 1u));
    if (round.number % 2) {
      OK(cuLaunchHostFunc(
          stream,
          [](void* user) {
            const auto* self = static_cast<Round*>(user);
            self->seen->push_back(self->number);
          },
          &round));
    } else {
      OK(cuStreamAddCallback(
          stream,
          [](CUstream, CUresult status, void* user) {
            const auto* self = static_cast<Round*>(user);
            self->seen->push_back(status == CUDA_SUCCESS ? self->number : 1000);
          },
          &round, 0));
    }
  }
  OK(cuMemcpyDtoHAsync(pinned, values, 4, stream));
  OK(cuStreamSynchronize(stream));
  EXPECT(*pinned == kRounds);
  EXPECT(seen.size() == kRounds);
  for (unsigned i = 0; i < kRounds; ++i) EXPECT(seen[i] == i);
  OK(cuMemFreeHost(pinned));
  OK(cuMemFree(values));
  OK(cuStreamDestroy(stream));
}

// Asynchronous copies to the host are visible after every kind of wait.
SCENARIO(async_readback) {
  Device device;
  Kernels kernels;
  constexpr unsigned kCount = 300'000;
  CUstream stream = nullptr;
  CUevent done = nullptr;
  CUdeviceptr values = 0;
  uint32_t* pinned = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
  OK(cuMemAlloc(&values, kCount * 4));
  OK(cuMemHostAlloc(reinterpret_cast<void**>(&pinned), kCount * 4, CU_MEMHOSTALLOC_PORTABLE));
  std::vector<uint32_t> registered(kCount);
  OK(cuMemHostRegister(registered.data(), kCount * 4, 0));
  for (unsigned way = 0; way < 8; ++way) {
    uint32_t* target = way % 2 ? registered.data() : pinned;
    std::memset(target, 0, kCount * 4);
    OK(kernels.launch("fill", (kCount + 255) / 256, 256, stream, values, way, kCount));
    OK(cuMemcpyDtoHAsync(target, values, kCount * 4, stream));
    OK(cuEventRecord(done, stream));
    switch (way / 2) {
      case 0: OK(cuStreamSynchronize(stream)); break;
      case 1: OK(cuEventSynchronize(done)); break;
      case 2: OK(cuCtxSynchronize()); break;
      default:
        CUresult result = CUDA_ERROR_NOT_READY;
        while (result == CUDA_ERROR_NOT_READY) result = cuEventQuery(done);
        OK(result);
    }
    for (uint32_t i = 0; i < kCount; ++i) EXPECT(target[i] == way + i);
  }
  OK(cuMemHostUnregister(registered.data()));
  OK(cuMemFreeHost(pinned));
  OK(cuMemFree(values));
  OK(cuEventDestroy(done));
  OK(cuStreamDestroy(stream));
}

SCENARIO(threads_with_streams) {
  Device device;
  Kernels kernels;
  constexpr unsigned kThreads = 6, kRounds = 15, kCount = 20'000;
  std::vector<std::thread> threads;
  std::atomic<unsigned> passed{0};
  for (unsigned number = 0; number < kThreads; ++number) {
    threads.emplace_back([&, number] {
      OK(cuCtxSetCurrent(device.context));
      for (unsigned round = 0; round < kRounds; ++round) {
        CUstream stream = nullptr;
        CUevent event = nullptr;
        CUdeviceptr values = 0;
        OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
        OK(cuMemAlloc(&values, kCount * 4));
        OK(kernels.launch("fill", (kCount + 127) / 128, 128, stream, values, number, kCount));
        OK(kernels.launch("add", (kCount + 127) / 128, 128, stream, values, round, kCount));
        OK(cuEventRecord(event, stream));
        std::vector<uint32_t> result(kCount);
        OK(cuMemcpyDtoHAsync(result.data(), values, kCount * 4, stream));
        OK(cuStreamSynchronize(stream));
        OK(cuEventQuery(event));
        for (uint32_t i = 0; i < kCount; ++i) EXPECT(result[i] == number + round + i);
        OK(cuMemFree(values));
        OK(cuEventDestroy(event));
        OK(cuStreamDestroy(stream));
      }
      passed += 1;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT(passed == kThreads);
}

SCENARIO(per_thread_streams) {
  Device device;
  Kernels kernels;
  std::atomic<bool> second_done{false};
  Gate gate;
  CUdeviceptr values = 0;
  OK(cuMemAlloc(&values, 8192));
  std::thread first([&] {
    OK(cuCtxSetCurrent(device.context));
    gate.put_into(CU_STREAM_PER_THREAD);
    OK(kernels.launch("fill", 4, 256, CU_STREAM_PER_THREAD, values, 1u, 1024u));
    OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    EXPECT(second_done);
  });
  std::thread second([&] {
    OK(cuCtxSetCurrent(device.context));
    OK(kernels.launch("fill", 4, 256, CU_STREAM_PER_THREAD, values + 4096, 2u, 1024u));
    OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));  // does not wait for the first thread's stream
    second_done = true;
    gate.let_go();
  });
  first.join();
  second.join();
  const auto result = download<uint32_t>(values, 2048);
  for (uint32_t i = 0; i < 1024; ++i) EXPECT(result[i] == 1 + i && result[1024 + i] == 2 + i);
  OK(cuMemFree(values));
}

SCENARIO(stream_memory_operations) {
  Device device;
  CUstream a = nullptr, b = nullptr;
  CUdeviceptr words = 0;
  OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
  OK(cuMemAlloc(&words, 64));
  OK(cuMemsetD8(words, 0, 64));
  OK(cuStreamWaitValue32(a, words, 3, CU_STREAM_WAIT_VALUE_EQ));
  OK(cuStreamWriteValue32(a, words + 8, 77, 0));
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(a));
  OK(cuStreamWriteValue32(b, words, 3, 0));
  OK(cuStreamSynchronize(a));
  EXPECT(download<uint32_t>(words, 3)[2] == 77);
  OK(cuMemFree(words));
  OK(cuStreamDestroy(a));
  OK(cuStreamDestroy(b));
}

SCENARIO(kernel_prints_in_order) {
  Device device;
  Kernels kernels;
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (unsigned i = 0; i < 5; ++i) {
    std::printf("host before %u\n", i);
    OK(kernels.launch("say", 1, 32, stream, i));
    OK(i % 2 ? cuCtxSynchronize() : cuStreamSynchronize(stream));
    std::printf("host after %u\n", i);
  }
  OK(kernels.launch("say", 1, 32, nullptr, 100u));
  OK(cuCtxSynchronize());
  std::printf("end\n");
  OK(cuStreamDestroy(stream));
}

// The null stream waits for a copy that has yet to be read from pinned memory, and a synchronous copy waits
// for the null stream: this must not deadlock.
SCENARIO(synchronous_copies_behind_late_ones) {
  Device device;
  constexpr size_t kBytes = 200'000;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUdeviceptr values = 0;
  void* pinned = nullptr;
  std::vector<uint8_t> pageable(kBytes);
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  OK(cuMemAlloc(&values, kBytes));
  OK(cuMemAllocHost(&pinned, kBytes));
  for (int round = 0; round < 30; ++round) {
    OK(cuMemcpyDtoHAsync(pinned, values, kBytes, stream));
    OK(cuMemcpyHtoDAsync(values, pinned, kBytes, stream));
    OK(cuEventRecord(event, stream));
    OK(cuStreamWaitEvent(nullptr, event, 0));
    OK(cuMemcpyHtoD(values, pageable.data(), 1000));
  }
  OK(cuCtxSynchronize());
}

// A copy reads from pinned memory what an earlier copy in the stream wrote there.
SCENARIO(pinned_memory_both_ways) {
  Device device;
  Kernels kernels;
  constexpr unsigned kCount = 50'000;
  CUstream stream = nullptr;
  CUdeviceptr from = 0, to = 0;
  void* pinned = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuMemAlloc(&from, kCount * 4));
  OK(cuMemAlloc(&to, kCount * 4));
  OK(cuMemAllocHost(&pinned, kCount * 4));
  for (unsigned round = 0; round < 30; ++round) {
    OK(kernels.launch("fill", (kCount + 255) / 256, 256, stream, from, round, kCount));
    OK(cuMemcpyDtoHAsync(pinned, from, kCount * 4, stream));
    OK(cuMemcpyHtoDAsync(to, pinned, kCount * 4, stream));
    if (round % 5 != 4) continue;
    OK(cuStreamSynchronize(stream));
    const auto result = download<uint32_t>(to, kCount);
    for (uint32_t i = 0; i < kCount; ++i) EXPECT(result[i] == round + i);
  }
}
