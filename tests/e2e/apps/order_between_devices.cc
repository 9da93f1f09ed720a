// CUDA's ordering guarantees for work on two devices.
#include <chrono>
#include <thread>

#include "tests/e2e/apps/side.h"

using namespace app;

namespace {

constexpr size_t kCopiedBytes = size_t{1} << 20;
constexpr unsigned kCopiedItems = kCopiedBytes / 4;

// Launches a kernel that takes a while and then one that fills memory, both in `stream`.
void fill_later(const Side& side, CUdeviceptr to, unsigned value, CUstream stream, CUdeviceptr scratch) {
  side.use();
  OK(side.kernels.launch("burn", 8, 64, stream, scratch, 200'000u));
  OK(side.kernels.launch("fill", kCopiedItems / 256, 256, stream, to, value, kCopiedItems));
}

void expect_filled(CUdeviceptr at, unsigned value) {
  const auto seen = download<unsigned>(at, kCopiedItems);
  for (unsigned i = 0; i < kCopiedItems; ++i) EXPECT(seen[i] == value + i);
}

void wait_a_little(void*) {
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

}  // namespace

// A stream is made to wait for a completed event of the other device before it reaches that wait.
SCENARIO(finished_events_behind_a_host_function) {
  const Side a(0), b(1);
  CUevent first = nullptr, second = nullptr;
  b.use();
  for (CUevent* event : {&first, &second}) {
    OK(cuEventCreate(event, CU_EVENT_DISABLE_TIMING));
    OK(cuEventRecord(*event, b.stream));
  }
  OK(cuStreamSynchronize(b.stream));
  a.use();
  for (int round = 0; round < 20; ++round) {
    OK(cuLaunchHostFunc(a.stream, wait_a_little, nullptr));
    OK(cuStreamWaitEvent(a.stream, first, 0));
    OK(cuStreamWaitEvent(a.stream, second, 0));
    OK(cuStreamSynchronize(a.stream));
  }
}

// A blocking stream waits for the legacy stream of its context, also with a copy to the other device.
SCENARIO(copies_to_another_device_behind_the_legacy_stream) {
  const Side a(0, 2 * kCopiedBytes), b(1, kCopiedBytes);
  a.use();
  CUstream blocking = nullptr;
  OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  for (unsigned round = 0; round < 5; ++round) {
    fill_later(a, a.memory, round, nullptr, a.memory + kCopiedBytes);
    OK(cuMemcpyDtoDAsync(b.memory, a.memory, kCopiedBytes, blocking));
    OK(cuStreamSynchronize(blocking));
    expect_filled(b.memory, round);
    a.use();
  }
}

// A copy between two devices in the legacy stream follows their earlier work, also behind a host function,
// and their later work follows it.
SCENARIO(copies_between_devices_in_the_legacy_stream) {
  const Side a(0, 2 * kCopiedBytes), b(1, kCopiedBytes);
  for (unsigned round = 0; round < 12; ++round) {
    a.use();
    if (round % 3 == 1) OK(cuLaunchHostFunc(nullptr, wait_a_little, nullptr));
    fill_later(a, a.memory, round, nullptr, a.memory + kCopiedBytes);
    if (round % 2 == 0) {
      b.use();
      OK(cuMemcpyDtoDAsync(b.memory, a.memory, kCopiedBytes, nullptr));
    } else {
      OK(cuMemcpyPeerAsync(b.memory, b.device.context, a.memory, a.device.context, kCopiedBytes, nullptr));
    }
    a.use();  // overwrites the source behind the copy
    OK(a.kernels.launch("fill", kCopiedItems / 256, 256, nullptr, a.memory, 1'000'000 + round, kCopiedItems));
    b.use();
    OK(cuCtxSynchronize());
    expect_filled(b.memory, round);
    a.use();
    OK(cuCtxSynchronize());
    expect_filled(a.memory, 1'000'000 + round);
  }
}

// A synchronous copy between two devices does not overlap with other work on either of them.
SCENARIO(synchronous_copies_between_devices) {
  const Side a(0, 2 * kCopiedBytes), b(1, 2 * kCopiedBytes);
  for (unsigned round = 0; round < 5; ++round) {
    fill_later(b, b.memory, round, b.stream, b.memory + kCopiedBytes);
    a.use();
    OK(cuMemcpyDtoD(a.memory, b.memory, kCopiedBytes));  // waits for b.stream
    expect_filled(a.memory, round);
    fill_later(a, a.memory, round + 100, nullptr, a.memory + kCopiedBytes);
    OK(cuMemcpyDtoD(b.memory, a.memory, kCopiedBytes));
    b.use();
    OK(b.kernels.launch("add", kCopiedItems / 256, 256, b.stream, b.memory, 1000u,
                        kCopiedItems));  // after the copy
    OK(cuStreamSynchronize(b.stream));
    expect_filled(b.memory, round + 1100);
  }
}

// Memory freed in a blocking stream while the legacy stream uses it is not reused before that use completes.
SCENARIO(frees_behind_the_legacy_stream) {
  const Side a(0, kCopiedBytes);
  a.use();
  CUstream blocking = nullptr, other = nullptr;
  OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  for (unsigned round = 0; round < 10; ++round) {
    CUdeviceptr first = 0, second = 0;
    OK(cuMemAllocAsync(&first, kCopiedBytes, nullptr));
    fill_later(a, first, round, nullptr, a.memory);
    OK(cuMemFreeAsync(first, blocking));
    OK(cuStreamSynchronize(blocking));
    OK(cuMemAllocAsync(&second, kCopiedBytes, other));
    OK(cuMemsetD8Async(second, 0x5a, kCopiedBytes, other));
    OK(cuCtxSynchronize());
    EXPECT(download<uint8_t>(second, kCopiedBytes) == std::vector<uint8_t>(kCopiedBytes, 0x5a));
    OK(cuMemFree(second));
  }
}

// A free in a blocking stream orders it behind the legacy stream, but behind no other blocking stream.
SCENARIO(frees_beside_a_stream_that_waits) {
  const Side a(0, kCopiedBytes);
  a.use();
  CUstream waiting = nullptr, freeing = nullptr;
  CUdeviceptr flag = 0;
  OK(cuStreamCreate(&waiting, CU_STREAM_DEFAULT));
  OK(cuStreamCreate(&freeing, CU_STREAM_DEFAULT));
  OK(cuMemAlloc(&flag, sizeof(unsigned)));
  OK(cuMemsetD32(flag, 0, 1));
  CUstream setting = nullptr;
  OK(cuStreamCreate(&setting, CU_STREAM_NON_BLOCKING));
  for (unsigned round = 1; round <= 5; ++round) {
    CUdeviceptr memory = 0;
    OK(cuMemAllocAsync(&memory, kCopiedBytes, freeing));
    OK(cuStreamSynchronize(freeing));
    OK(cuStreamWaitValue32(waiting, flag, round, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuMemsetD8Async(memory, 1, kCopiedBytes, freeing));
    OK(cuMemFreeAsync(memory, freeing));
    OK(cuStreamSynchronize(freeing));  // the value is written only afterwards
    OK(cuStreamWriteValue32(setting, flag, round, CU_STREAM_WRITE_VALUE_DEFAULT));
    OK(cuStreamSynchronize(waiting));
  }
}
