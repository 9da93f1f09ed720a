// More work than a queue of the driver holds, behind work that only the client can let continue: nothing
// hangs, and other streams proceed. Directly on a device the launch that finds the queue full would block;
// through poold it must not.
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
  for (unsigned i = 0; i < count; ++i)
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
}

// A host function that returns after release() was called.
struct Latch {
  void hold(CUstream stream) {
    OK(cuLaunchHostFunc(
        stream, [](void* flag) { static_cast<std::atomic<bool>*>(flag)->wait(false); }, &open));
  }
  void release() {
    open = true;
    open.notify_all();
  }
  std::atomic<bool> open{false};
};

// A pinned buffer and device memory of the same size.
struct Buffers {
  explicit Buffers(size_t bytes, unsigned seed = 7) : bytes(bytes), data(pattern(bytes, seed)) {
    OK(cuMemAlloc(&memory, bytes));
    OK(cuMemAllocHost(reinterpret_cast<void**>(&pinned), bytes));
    std::memcpy(pinned, data.data(), bytes);
  }
  ~Buffers() {
    OK(cuMemFreeHost(pinned));
    OK(cuMemFree(memory));
  }
  bool arrived() const { return download<uint8_t>(memory, bytes) == data; }

  const size_t bytes;
  const std::vector<uint8_t> data;
  CUdeviceptr memory = 0;
  uint8_t* pinned = nullptr;
};

struct Streams {
  Streams() {
    for (CUstream* stream : {&first, &second}) OK(cuStreamCreate(stream, CU_STREAM_NON_BLOCKING));
  }
  ~Streams() {
    for (const CUstream stream : {first, second}) OK(cuStreamDestroy(stream));
  }
  CUstream first = nullptr, second = nullptr;
};

// Completes work in another stream while the first one is held.
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
  OK(cuLaunchHostFunc(
      stream, [](void* flag) { static_cast<std::atomic<bool>*>(flag)->wait(false); }, &open));
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

// [bytes of the copy]
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

// More data for a held stream than staging memory holds: other copies on the same connections pass it.
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
  OK(cuLaunchHostFunc(
      held, [](void* flag) { static_cast<std::atomic<bool>*>(flag)->wait(false); }, &open));
  for (size_t i = 0; i < kCopies; ++i)
    OK(cuMemcpyHtoDAsync(memory + i * kBytes, pinned + i * kBytes, kBytes, held));
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
  OK(cuLaunchHostFunc(
      streams[0], [](void* flag) { static_cast<std::atomic<bool>*>(flag)->wait(false); }, &open));
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

// The device waits for a value that another stream writes after a copy, whose data is sent after that of the
// waiting stream.
SCENARIO(copies_of_a_stream_that_waits_for_a_value) {
  Device device;
  Counters counters;
  Streams streams;
  Buffers large(64u << 20), small(1u << 20, 8);
  OK(cuStreamWaitValue32(streams.first, counters.at, 1, CU_STREAM_WAIT_VALUE_GEQ));
  OK(cuMemcpyHtoDAsync(large.memory, large.pinned, large.bytes, streams.first));
  OK(cuMemcpyHtoDAsync(small.memory, small.pinned, small.bytes, streams.second));
  OK(cuStreamWriteValue32(streams.second, counters.at, 1, 0));
  OK(cuStreamSynchronize(streams.second));
  OK(cuStreamSynchronize(streams.first));
  EXPECT(large.arrived() && small.arrived());
}

// A copy is sent late because an earlier copy writes its pinned memory. Another stream waits for it with more
// data than the server buffers.
SCENARIO(copies_behind_a_late_copy) {
  Device device;
  Streams streams;
  Buffers there(8u << 20), back(8u << 20, 9), large(64u << 20, 10);
  CUevent event = nullptr;
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  OK(cuMemcpyHtoD(there.memory, there.data.data(), there.bytes));
  OK(cuMemcpyDtoHAsync(back.pinned, there.memory, there.bytes, streams.first));
  OK(cuMemcpyHtoDAsync(back.memory, back.pinned, back.bytes, streams.first));
  OK(cuEventRecord(event, streams.first));
  OK(cuStreamWaitEvent(streams.second, event, 0));
  for (int i = 0; i < 8; ++i) OK(cuMemcpyHtoDAsync(large.memory, large.pinned, large.bytes, streams.second));
  OK(cuStreamSynchronize(streams.second));
  EXPECT(large.arrived());
  EXPECT(download<uint8_t>(back.memory, back.bytes) == there.data);
  OK(cuEventDestroy(event));
}

// A graph that records an event is queued behind all held commands, but must not hold the copy that releases
// them.
SCENARIO(a_graph_with_an_event_behind_a_late_copy) {
  Device device;
  Streams streams;
  Buffers buffers(1u << 20);
  Latch latch;
  CUevent event = nullptr;
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CUgraphExec executable = nullptr;
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  OK(cuGraphCreate(&graph, 0));
  OK(cuGraphAddEventRecordNode(&node, graph, nullptr, 0, event));
  OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
  latch.hold(streams.first);
  OK(cuMemcpyHtoDAsync(buffers.memory, buffers.pinned, buffers.bytes, streams.first));
  OK(cuGraphLaunch(executable, streams.second));
  latch.release();
  OK(cuStreamSynchronize(streams.first));
  OK(cuStreamSynchronize(streams.second));
  OK(cuEventQuery(event));
  EXPECT(buffers.arrived());
  OK(cuGraphExecDestroy(executable));
  OK(cuGraphDestroy(graph));
  OK(cuEventDestroy(event));
}

// CUDA returns immediately, so the program may let the function's launch continue afterwards.
SCENARIO(attributes_of_a_function_whose_launch_waits) {
  Device device;
  Kernels kernels;
  Counters counters;
  Streams streams;
  Latch latch;
  latch.hold(streams.first);
  launch_many(kernels, streams.first, counters.at, 1);
  for (const int percent : {10, 50})
    OK(cuFuncSetAttribute(kernels.function("add"), CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
                          percent));
  latch.release();
  OK(cuStreamSynchronize(streams.first));
  EXPECT(download<unsigned>(counters.at, 1)[0] == 1);
}

extern "C" CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void* from, size_t bytes);
extern "C" CUresult cuStreamWaitValue32_v2_ptsz(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                                unsigned flags);

// A synchronous copy in a thread's own stream blocks only that thread.
SCENARIO(a_synchronous_copy_on_a_stream_that_waits_for_a_value) {
  Device device;
  Counters counters;
  Streams streams;
  Buffers buffers(1u << 20);
  CUcontext context = nullptr;
  OK(cuCtxGetCurrent(&context));
  std::atomic<bool> waits{false};
  std::thread other([&] {
    OK(cuCtxSetCurrent(context));
    OK(cuStreamWaitValue32_v2_ptsz(nullptr, counters.at, 1, CU_STREAM_WAIT_VALUE_GEQ));
    waits = true;
    waits.notify_all();
    OK(cuMemcpyHtoD_v2_ptds(buffers.memory, buffers.data.data(), buffers.bytes));
  });
  waits.wait(false);
  OK(cuStreamWriteValue32(streams.second, counters.at, 1, 0));
  OK(cuStreamSynchronize(streams.second));
  other.join();
  EXPECT(buffers.arrived());
}

// The graph's host function waits for calls that the program makes after another stream's wait for an event
// of the graph.
SCENARIO(launches_behind_an_event_of_a_graph) {
  constexpr unsigned kBehind = 2'000;
  Device device;
  Kernels kernels;
  Counters counters;
  Streams streams;
  const CUstream one = streams.first, two = streams.second;
  CUevent early = nullptr, late = nullptr;
  OK(cuEventCreate(&early, CU_EVENT_DISABLE_TIMING));
  OK(cuEventCreate(&late, CU_EVENT_DISABLE_TIMING));
  Latch latch;
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  OK(cuStreamBeginCapture(one, CU_STREAM_CAPTURE_MODE_RELAXED));
  launch_many(kernels, one, counters.at, 1);
  OK(cuEventRecordWithFlags(early, one, CU_EVENT_RECORD_EXTERNAL));
  latch.hold(one);
  launch_many(kernels, one, counters.at, 1);
  OK(cuEventRecordWithFlags(late, one, CU_EVENT_RECORD_EXTERNAL));
  OK(cuStreamEndCapture(one, &graph));
  OK(cuGraphInstantiate(&exec, graph, 0));
  for (unsigned round = 1; round <= 3; ++round) {
    latch.open = false;
    OK(cuGraphLaunch(exec, one));
    // Work before the graph's host function has completed, and other streams can continue after its event.
    OK(cuStreamWaitEvent(two, early, 0));
    launch_many(kernels, two, counters.at + 4, kBehind);
    OK(cuStreamSynchronize(two));
    OK(cuEventQuery(early));
    OK(cuStreamWaitEvent(two, late, 0));
    launch_many(kernels, two, counters.at + 4, kBehind);
    launch_many(kernels, one, counters.at, kBehind);
    use_another_stream(kernels, counters.at + 8);
    GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(late));
    GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(two));
    latch.release();
    OK(cuStreamSynchronize(two));
    OK(cuStreamSynchronize(one));
    const auto seen = download<unsigned>(counters.at, 3);
    EXPECT(seen[0] == round * (kBehind + 2) && seen[1] == round * 2 * kBehind && seen[2] == round * 10);
  }
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(graph));
  for (const CUevent event : {early, late}) OK(cuEventDestroy(event));
}

// Copies in a graph, and the program's synchronous copies, which come after them in the null stream.
SCENARIO(synchronous_copies_behind_a_graph_that_copies) {
  constexpr unsigned kRounds = 20;
  const std::vector<unsigned> sizes{1'000, 2'000'000};
  Device device;
  Kernels kernels;
  Counters counters;
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
  for (const unsigned count : sizes) {
    CUdeviceptr memory = 0, other = 0;
    unsigned* pinned = nullptr;
    OK(cuMemAlloc(&memory, count * 4));
    OK(cuMemAlloc(&other, count * 4));
    OK(cuMemAllocHost(reinterpret_cast<void**>(&pinned), count * 4));
    std::memset(pinned, 0, count * 4);
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemcpyHtoDAsync(memory, pinned, count * 4, stream));
    OK(kernels.launch("add", (count + 255) / 256, 256, stream, memory, 1u, count));
    OK(cuMemcpyDtoHAsync(pinned, memory, count * 4, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiate(&exec, graph, 0));
    for (unsigned round = 0; round < kRounds; ++round) {
      const std::vector<unsigned> data(count, round);
      OK(cuGraphLaunch(exec, stream));
      OK(cuGraphLaunch(exec, stream));
      OK(cuMemcpyHtoD(other, data.data(), count * 4));
      EXPECT(pinned[0] == 2 * round + 2 && pinned[count - 1] == 2 * round + 2);
      EXPECT(download<unsigned>(other, count) == data);
    }
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuMemFreeHost(pinned));
    OK(cuMemFree(memory));
    OK(cuMemFree(other));
  }
  OK(cuStreamDestroy(stream));
}
