// CUDA graphs as frameworks use them: captured, with host memory and host functions.
#include "tests/e2e/apps/graphs.h"

#include <sys/mman.h>

#include <chrono>
#include <climits>
#include <cstring>
#include <thread>

using namespace app;
using namespace app::graphs;

SCENARIO(captured_graph) {
  Device device;
  Kernels kernels;
  Streams s;
  OK(cuStreamBeginCapture(s.one, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(kernels.launch("add", 4, 256, s.one, s.a, 1u, kCount));
  OK(cuEventRecord(s.fork, s.one));
  OK(cuStreamWaitEvent(s.two, s.fork, 0));
  OK(cuMemcpyDtoDAsync(s.b, s.a, kCount * 4, s.two));
  OK(kernels.launch("add", 4, 256, s.two, s.b, 10u, kCount));
  OK(cuMemsetD32Async(s.a + 400, 7, 10, s.one));
  OK(cuEventRecord(s.join, s.two));
  OK(cuStreamWaitEvent(s.one, s.join, 0));
  CUstreamCaptureStatus status{};
  OK(cuStreamIsCapturing(s.two, &status));
  EXPECT(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  const CUgraph graph = end_capture(s.one);
  EXPECT(node_count(graph) == 4);
  size_t edges = 0;
  OK(cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
  EXPECT(edges == 3);
  EXPECT(download<unsigned>(s.a, 1)[0] == 0);  // the graph has not run
  const CUgraphExec exec = executable(graph);
  run(exec, s.one, 20);
  auto a = download<unsigned>(s.a, kCount), b = download<unsigned>(s.b, kCount);
  EXPECT(a[0] == 20 && a[99] == 20 && a[100] == 7 && a[109] == 7 && a[110] == 20 && b[0] == 30 &&
         b[100] == 18 && b[999] == 30);
  // In another stream, between other work.
  OK(kernels.launch("add", 4, 256, s.two, s.a, 100u, kCount));
  OK(cuGraphUpload(exec, s.two));
  OK(cuGraphLaunch(exec, s.two));
  OK(kernels.launch("add", 4, 256, s.two, s.b, 1000u, kCount));
  OK(cuStreamSynchronize(s.two));
  a = download<unsigned>(s.a, kCount), b = download<unsigned>(s.b, kCount);
  EXPECT(a[0] == 121 && a[100] == 7 && b[0] == 1131 && b[100] == 1118);
  // In the null stream, and many launches without waiting.
  for (int i = 0; i < 300; ++i) OK(cuGraphLaunch(exec, nullptr));
  OK(cuCtxSynchronize());
  EXPECT(download<unsigned>(s.a, 1)[0] == 421);
  OK(cuGraphExecDestroy(exec));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(exec, s.one));
}

SCENARIO(captured_launch_attributes) {
  Device device;
  Kernels kernels;
  Streams s;
  unsigned value = 3, count = kCount;
  void* parameters[] = {&s.a, &value, &count};
  OK(cuStreamBeginCapture(s.one, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  OK(cuLaunchCooperativeKernel(kernels.function("add"), 4, 1, 1, 256, 1, 1, 0, s.one, parameters));
  CUlaunchAttribute attributes[2] = {};
  attributes[0].id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
  attributes[1].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;  // libraries launch with it, but
                                                                             // nodes cannot have it
  attributes[1].value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig config{};
  config.gridDimX = 4;
  config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  config.blockDimX = 256;
  config.hStream = s.one;
  config.attrs = attributes;
  config.numAttrs = 2;
  OK(cuLaunchKernelEx(&config, kernels.function("add"), parameters, nullptr));
  const CUgraph graph = end_capture(s.one);
  CUgraphNode nodes[2] = {};
  size_t two = 2;
  OK(cuGraphGetNodes(graph, nodes, &two));
  CUkernelNodeAttrValue cooperative{};
  OK(cuGraphKernelNodeGetAttribute(nodes[0], CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &cooperative));
  EXPECT(cooperative.cooperative == 1);
  OK(cuGraphKernelNodeGetAttribute(nodes[1], CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &cooperative));
  EXPECT(cooperative.cooperative == 0);
  GIVES(CUDA_ERROR_INVALID_VALUE,
        cuGraphKernelNodeSetAttribute(nodes[1], attributes[1].id, &attributes[1].value));
  run(executable(graph), s.one, 5);
  EXPECT(download<unsigned>(s.a, kCount)[999] == 30);
}

// LLM decoders launch kernels that may start before the previous one ends, also in another stream.
SCENARIO(captured_programmatic_launches) {
  Device device;
  Kernels kernels;
  Streams s;
  const auto launch = [&](CUstream stream, CUdeviceptr words, unsigned value, CUlaunchAttribute attribute) {
    unsigned count = kCount;
    void* parameters[] = {&words, &value, &count};
    CUlaunchConfig config{};
    config.gridDimX = 4;
    config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
    config.blockDimX = 256;
    config.hStream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    OK(cuLaunchKernelEx(&config, kernels.function("add"), parameters, nullptr));
  };
  CUlaunchAttribute serialized{}, starts{}, completes{};
  serialized.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  serialized.value.programmaticStreamSerializationAllowed = 1;
  starts.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT;
  starts.value.programmaticEvent.event = s.fork;
  starts.value.programmaticEvent.triggerAtBlockStart = 1;
  completes.id = static_cast<CUlaunchAttributeID>(12);  // CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT
  completes.value = starts.value;
  completes.value.programmaticEvent.triggerAtBlockStart = 0;
  for (const bool by_completion : {false, true}) {
    OK(cuStreamBeginCapture(s.one, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(cuMemsetD32Async(s.a, 0, kCount, s.one));
    for (unsigned value = 1; value <= 8; ++value) launch(s.one, s.a, value, serialized);
    launch(s.one, s.a, 9, by_completion ? completes : starts);
    OK(cuStreamWaitEvent(s.two, s.fork, 0));
    launch(s.two, s.b, 10, serialized);  // may run concurrently with the previous kernel
    OK(cuEventRecord(s.join, s.two));
    OK(cuStreamWaitEvent(s.one, s.join, 0));
    const CUgraphExec exec = executable(end_capture(s.one));
    OK(cuMemsetD32(s.b, 0, kCount));
    run(exec, s.one, 3);
    EXPECT(download<unsigned>(s.a, kCount) == std::vector<unsigned>(kCount, 45));
    EXPECT(download<unsigned>(s.b, kCount) == std::vector<unsigned>(kCount, 30));
    OK(cuGraphExecDestroy(exec));
  }
}

// A launch reads and writes host memory when the graph's copy executes, with the contents of that time.
SCENARIO(graph_with_host_memory) {
  Device device;
  Kernels kernels;
  Streams s;
  const bool large = arguments.size() == 1 && arguments[0] == "large";
  const unsigned count = large ? 1'500'000 : kCount;
  CUdeviceptr values = 0;
  unsigned *up = nullptr, *down = nullptr, *beside = nullptr;
  std::vector<unsigned> pageable_up(count), pageable_down(count);
  OK(cuMemAlloc(&values, count * 4));
  OK(cuMemAllocHost(reinterpret_cast<void**>(&up), count * 4));
  OK(cuMemAllocHost(reinterpret_cast<void**>(&down), count * 4));
  OK(cuMemAllocHost(reinterpret_cast<void**>(&beside), kCount * 4));
  std::atomic<int> calls{0};
  OK(cuStreamBeginCapture(s.one, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuMemcpyHtoDAsync(values, up, count * 4, s.one));
  OK(kernels.launch("add", (count + 255) / 256, 256, s.one, values, 5u, count));
  OK(cuMemcpyDtoHAsync(down, values, count * 4, s.one));
  OK(cuLaunchHostFunc(s.one, add_one, &calls));
  OK(cuMemcpyAsync(values, reinterpret_cast<CUdeviceptr>(pageable_up.data()), count * 4, s.one));
  OK(kernels.launch("add", (count + 255) / 256, 256, s.one, values, 7u, count));
  OK(cuMemcpyDtoHAsync(pageable_down.data(), values, count * 4, s.one));
  const CUgraph graph = end_capture(s.one);
  EXPECT(node_count(graph) == 7);
  const CUgraphExec exec = executable(graph);
  EXPECT(calls == 0);
  for (unsigned round = 1; round <= 3; ++round) {
    for (unsigned i = 0; i < count; ++i) {
      up[i] = i * round;
      pageable_up[i] = i + round;
      down[i] = pageable_down[i] = 0;
    }
    OK(cuGraphLaunch(exec, round == 2 ? s.two : s.one));
    OK(cuCtxSynchronize());
    EXPECT(calls == static_cast<int>(round));
    for (unsigned i = 0; i < count; ++i)
      EXPECT(down[i] == i * round + 5 && pageable_down[i] == i + round + 7);
  }
  // Consecutive launches, concurrent with a stream's copies.
  for (int i = 0; i < 20; ++i) {
    OK(cuGraphLaunch(exec, s.one));
    OK(cuMemcpyHtoDAsync(s.b, beside, kCount * 4, s.two));
    OK(cuMemcpyDtoHAsync(beside, s.b, kCount * 4, s.two));
  }
  OK(cuCtxSynchronize());
  EXPECT(calls == 23);
  // Destroying the executable graph does not affect launches that are in progress.
  for (int i = 0; i < 5; ++i) OK(cuGraphLaunch(exec, s.one));
  OK(cuGraphExecDestroy(exec));
  OK(cuCtxSynchronize());
  EXPECT(calls == 28);
}

// A copy takes the data that the host function before it wrote.
SCENARIO(graph_host_functions_in_order) {
  Device device;
  Kernels kernels;
  Streams s;
  struct Shared {
    unsigned* pinned = nullptr;
    unsigned next = 0;
    std::vector<unsigned> seen;
  } shared;
  OK(cuMemAllocHost(reinterpret_cast<void**>(&shared.pinned), kCount * 4));
  OK(cuStreamBeginCapture(s.one, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuLaunchHostFunc(
      s.one,
      [](void* user) {
        auto& shared = *static_cast<Shared*>(user);
        ++shared.next;
        for (unsigned i = 0; i < kCount; ++i) shared.pinned[i] = shared.next * 100;
      },
      &shared));
  OK(cuMemcpyHtoDAsync(s.a, shared.pinned, kCount * 4, s.one));
  OK(kernels.launch("add", 4, 256, s.one, s.a, 1u, kCount));
  OK(cuMemcpyDtoHAsync(shared.pinned, s.a, kCount * 4, s.one));
  OK(cuLaunchHostFunc(
      s.one,
      [](void* user) {
        auto& shared = *static_cast<Shared*>(user);
        shared.seen.push_back(shared.pinned[kCount - 1]);
      },
      &shared));
  const CUgraphExec exec = executable(end_capture(s.one));
  run(exec, s.one, 10);
  EXPECT(shared.seen.size() == 10);
  for (unsigned i = 0; i < 10; ++i) EXPECT(shared.seen[i] == (i + 1) * 100 + 1);
}

// Two executable graphs run concurrently, each with its own host functions.
SCENARIO(graphs_beside_each_other) {
  Device device;
  Kernels kernels;
  Streams s;
  std::atomic<int> calls{0};
  unsigned* pinned = nullptr;
  OK(cuMemAllocHost(reinterpret_cast<void**>(&pinned), kCount * 4));
  std::memset(pinned, 0, kCount * 4);
  const auto capture_into = [&](CUdeviceptr target) {
    OK(cuStreamBeginCapture(s.one, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuEventRecord(s.fork, s.one));
    OK(cuStreamWaitEvent(s.two, s.fork, 0));
    OK(cuLaunchHostFunc(s.one, add_one, &calls));
    OK(cuMemcpyHtoDAsync(target, pinned, kCount * 4, s.two));
    OK(cuLaunchHostFunc(s.two, add_one, &calls));
    OK(cuEventRecord(s.join, s.two));
    OK(cuStreamWaitEvent(s.one, s.join, 0));
    return end_capture(s.one);
  };
  const CUgraph graph = capture_into(s.a), graph_beside = capture_into(s.b);
  CUgraphExec first = nullptr, second = nullptr;
  OK(cuGraphInstantiate(&first, graph, 0));
  OK(cuGraphInstantiate(&second, graph_beside, 0));
  std::thread other([&] {
    OK(cuCtxSetCurrent(device.context));
    for (int i = 0; i < 50; ++i) OK(cuGraphLaunch(second, s.two));
    OK(cuStreamSynchronize(s.two));
  });
  for (int i = 0; i < 50; ++i) OK(cuGraphLaunch(first, s.one));
  OK(cuStreamSynchronize(s.one));
  other.join();
  EXPECT(calls == 200);
  OK(cuGraphExecDestroy(first));
  OK(cuGraphDestroy(graph));
  OK(cuGraphDestroy(graph_beside));
  OK(cuGraphLaunch(second, s.one));
  OK(cuStreamSynchronize(s.one));
  EXPECT(calls == 202);
}

SCENARIO(graph_events) {
  Device device;
  Kernels kernels;
  Streams s;
  CUevent outside = nullptr, inside = nullptr;
  OK(cuEventCreate(&outside, CU_EVENT_DISABLE_TIMING));
  OK(cuEventCreate(&inside, CU_EVENT_DISABLE_TIMING));
  OK(cuStreamBeginCapture(s.one, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuStreamWaitEvent(s.one, outside, CU_EVENT_WAIT_EXTERNAL));
  OK(kernels.launch("add", 4, 256, s.one, s.a, 1u, kCount));
  OK(cuEventRecordWithFlags(inside, s.one, CU_EVENT_RECORD_EXTERNAL));
  const CUgraph graph = end_capture(s.one);
  EXPECT(node_count(graph) == 3);
  const CUgraphExec exec = executable(graph);
  for (int round = 0; round < 3; ++round) {
    OK(kernels.launch("burn", 1, 32, s.two, s.b, 200'000u));
    OK(kernels.launch("fill", 4, 256, s.two, s.a, 10u, kCount));
    OK(cuEventRecord(outside, s.two));
    OK(cuGraphLaunch(exec, s.one));
    OK(cuStreamWaitEvent(s.two, inside, 0));
    OK(kernels.launch("add", 4, 256, s.two, s.a, 100u, kCount));
    OK(cuStreamSynchronize(s.two));
    EXPECT(download<unsigned>(s.a, 1)[0] == 111);
  }
  OK(cuEventDestroy(outside));
  OK(cuEventDestroy(inside));
  OK(cuGraphExecDestroy(exec));
}

SCENARIO(graph_stream_memory_operations) {
  Device device;
  Streams s;
  OK(cuStreamBeginCapture(s.one, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuStreamWaitValue32(s.one, s.a, 5, CU_STREAM_WAIT_VALUE_EQ));
  OK(cuStreamWriteValue32(s.one, s.a + 4, 6, 0));
  const CUgraphExec exec = executable(end_capture(s.one));
  OK(cuGraphLaunch(exec, s.one));
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(s.one));
  OK(cuStreamWriteValue32(s.two, s.a, 5, 0));
  OK(cuStreamSynchronize(s.one));
  EXPECT(download<unsigned>(s.a, 2)[1] == 6);
}

// [milliseconds, kernel rounds, launches]: repeatedly launches a graph that calls a host function between two
// kernels, until the time has passed or enough launches are done; prints their number.
SCENARIO(keep_busy_with_graphs) {
  Device device;
  Kernels kernels;
  Streams s;
  const auto rounds = static_cast<unsigned>(std::stoul(arguments.at(1)));
  std::atomic<int> calls{0};
  OK(cuStreamBeginCapture(s.one, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(kernels.launch("burn", 1, 1, s.one, s.a, rounds));
  OK(cuLaunchHostFunc(s.one, add_one, &calls));
  OK(kernels.launch("burn", 1, 1, s.one, s.a, rounds));
  const CUgraphExec exec = executable(end_capture(s.one));
  run(exec, s.one);
  std::printf("working\n");
  std::fflush(stdout);
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(std::stoul(arguments.at(0)));
  const int most = arguments.size() > 2 ? std::stoi(arguments[2]) : INT_MAX;
  while (std::chrono::steady_clock::now() < end && calls.load() < most) run(exec, s.one, 4);
  std::printf("done %d\n", calls.load());
}

// The memory was unmapped after the node was made: only that copy fails.
SCENARIO(graph_copies_memory_that_is_gone) {
  Device device;
  CUstream stream = nullptr;
  CUdeviceptr words = 0;
  constexpr size_t kBytes = 1u << 20;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuMemAlloc(&words, kBytes));
  for (const bool up : {true, false}) {
    void* const memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(memory != MAP_FAILED);
    std::memset(memory, 7, kBytes);
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    if (up)
      OK(cuMemcpyHtoDAsync(words, memory, kBytes, stream));
    else
      OK(cuMemcpyDtoHAsync(memory, words, kBytes, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    EXPECT(::munmap(static_cast<char*>(memory) + kBytes / 2, kBytes / 2) == 0);
    OK(cuGraphLaunch(exec, stream));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamSynchronize(stream));
    OK(cuStreamSynchronize(stream));
    EXPECT(download<uint8_t>(words, 4)[3] == 7);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    EXPECT(::munmap(memory, kBytes / 2) == 0);
  }
  std::printf("the session goes on\n");
}
