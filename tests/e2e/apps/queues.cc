// More work than a queue of the driver holds, behind what only the client can let go on: nothing hangs, and other streams go on meanwhile.
// On a device directly these would block in the launch that finds the queue full; through poold they must not.
#include <cuda.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "tests/e2e/apps/scenario.h"

using namespace app;

namespace {

constexpr unsigned kLaunches = 20'000;

struct Counters {
  Counters() {
    OK(cuMemAlloc(&at, 256));
    OK(cuMemsetD8(at, 0, 256));
  }
  ~Counters() { OK(cuMemFree(at)); }
  CUdeviceptr at = 0;
};

void launch_many(const Kernels& kernels, CUstream stream, CUdeviceptr counter, unsigned count) {
  const CUfunction function = kernels.function("add");
  unsigned one = 1, items = 1;
  void* parameters[] = {&counter, &one, &items};
  for (unsigned i = 0; i < count; ++i) OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
}

// Another stream's work is done while the first one waits.
void use_another_stream(const Kernels& kernels, CUdeviceptr counter) {
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  launch_many(kernels, stream, counter, 10);
  OK(cuStreamSynchronize(stream));
  OK(cuStreamDestroy(stream));
}

}  // namespace

SCENARIO(launches_behind_a_host_function) {
  Device device;
  Kernels kernels;
  Counters counters;
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  std::atomic<bool> open{false};
  OK(cuLaunchHostFunc(stream, [](void* flag) { static_cast<std::atomic<bool>*>(flag)->wait(false); }, &open));
  launch_many(kernels, stream, counters.at, kLaunches);
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  use_another_stream(kernels, counters.at + 4);
  open = true;
  open.notify_all();
  OK(cuStreamSynchronize(stream));
  const auto seen = download<unsigned>(counters.at, 2);
  EXPECT(seen[0] == kLaunches && seen[1] == 10);
  OK(cuStreamDestroy(stream));
}

// Arguments: bytes of the copy.
SCENARIO(launches_behind_a_large_copy) {
  const size_t bytes = arguments.empty() ? 64u << 20 : std::stoull(arguments[0]);
  Device device;
  Kernels kernels;
  Counters counters;
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUdeviceptr memory = 0;
  uint8_t* pinned = nullptr;
  OK(cuMemAlloc(&memory, bytes));
  OK(cuMemAllocHost(reinterpret_cast<void**>(&pinned), bytes));
  const auto data = pattern(bytes, 5);
  std::memcpy(pinned, data.data(), bytes);
  OK(cuMemcpyHtoDAsync(memory, pinned, bytes, stream));
  launch_many(kernels, stream, counters.at, kLaunches);
  use_another_stream(kernels, counters.at + 4);
  OK(cuStreamSynchronize(stream));
  std::memset(pinned, 0, bytes);
  OK(cuMemcpyDtoHAsync(pinned, memory, bytes, stream));
  launch_many(kernels, stream, counters.at, kLaunches);
  use_another_stream(kernels, counters.at + 4);
  OK(cuStreamSynchronize(stream));
  EXPECT(std::memcmp(pinned, data.data(), bytes) == 0);
  const auto seen = download<unsigned>(counters.at, 2);
  EXPECT(seen[0] == 2 * kLaunches && seen[1] == 20);
  OK(cuMemFreeHost(pinned));
  OK(cuMemFree(memory));
  OK(cuStreamDestroy(stream));
}

// More data than staging memory holds, for a stream that waits: other copies on the same connections pass.
SCENARIO(copies_behind_a_host_function) {
  constexpr size_t kBytes = 24u << 20, kCopies = 6;
  Device device;
  CUstream held = nullptr, other = nullptr;
  OK(cuStreamCreate(&held, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  CUdeviceptr memory = 0;
  uint8_t* pinned = nullptr;
  OK(cuMemAlloc(&memory, (kCopies + 1) * kBytes));
  OK(cuMemAllocHost(reinterpret_cast<void**>(&pinned), (kCopies + 1) * kBytes));
  const auto data = pattern((kCopies + 1) * kBytes, 6);
  std::memcpy(pinned, data.data(), data.size());
  std::atomic<bool> open{false};
  OK(cuLaunchHostFunc(held, [](void* flag) { static_cast<std::atomic<bool>*>(flag)->wait(false); }, &open));
  for (size_t i = 0; i < kCopies; ++i) OK(cuMemcpyHtoDAsync(memory + i * kBytes, pinned + i * kBytes, kBytes, held));
  OK(cuMemcpyHtoDAsync(memory + kCopies * kBytes, pinned + kCopies * kBytes, kBytes, other));
  OK(cuStreamSynchronize(other));
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(held));
  open = true;
  open.notify_all();
  OK(cuStreamSynchronize(held));
  EXPECT(download<uint8_t>(memory, data.size()) == data);
  OK(cuMemFreeHost(pinned));
  OK(cuMemFree(memory));
}

SCENARIO(one_of_64_streams_waits) {
  Device device;
  Kernels kernels;
  Counters counters;
  std::vector<CUstream> streams(64);
  for (CUstream& stream : streams) OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  std::atomic<bool> open{false};
  OK(cuLaunchHostFunc(streams[0], [](void* flag) { static_cast<std::atomic<bool>*>(flag)->wait(false); }, &open));
  for (unsigned round = 0; round < 20; ++round) {
    for (const CUstream stream : streams) launch_many(kernels, stream, counters.at, 1);
    for (size_t i = 1; i < streams.size(); ++i) OK(cuStreamSynchronize(streams[i]));
    use_another_stream(kernels, counters.at + 4);
  }
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(streams[0]));
  open = true;
  open.notify_all();
  OK(cuCtxSynchronize());
  EXPECT(download<unsigned>(counters.at + 4, 1)[0] == 200);
  for (const CUstream stream : streams) OK(cuStreamDestroy(stream));
}
