// CUDA graphs, as frameworks use them: captured, built by hand, updated; with host memory and host functions in them.
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "tests/e2e/apps/scenario.h"

using namespace app;

namespace {

constexpr unsigned kCount = 1000;

struct Streams {
  Streams() {
    OK(cuStreamCreate(&one, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&two, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
    OK(cuMemAlloc(&a, kCount * 4));
    OK(cuMemAlloc(&b, kCount * 4));
    OK(cuMemsetD32(a, 0, kCount));
    OK(cuMemsetD32(b, 0, kCount));
    OK(cuCtxSynchronize());
  }
  CUstream one = nullptr, two = nullptr;
  CUevent fork = nullptr, join = nullptr;
  CUdeviceptr a = 0, b = 0;
};

CUgraphExec executable(CUgraph graph) {
  CUgraphExec exec = nullptr;
  OK(cuGraphInstantiate(&exec, graph, 0));
  OK(cuGraphDestroy(graph));
  return exec;
}

CUgraph end_capture(CUstream stream) {
  CUgraph graph = nullptr;
  OK(cuStreamEndCapture(stream, &graph));
  return graph;
}

size_t node_count(CUgraph graph) {
  size_t count = 0;
  OK(cuGraphGetNodes(graph, nullptr, &count));
  return count;
}

void run(CUgraphExec exec, CUstream stream, int times = 1) {
  for (int i = 0; i < times; ++i) OK(cuGraphLaunch(exec, stream));
  OK(cuStreamSynchronize(stream));
}

void CUDA_CB add_one(void* counter) { static_cast<std::atomic<int>*>(counter)->fetch_add(1); }

}  // namespace

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
  EXPECT(download<unsigned>(s.a, 1)[0] == 0);  // nothing has run
  const CUgraphExec exec = executable(graph);
  run(exec, s.one, 20);
  auto a = download<unsigned>(s.a, kCount), b = download<unsigned>(s.b, kCount);
  EXPECT(a[0] == 20 && a[99] == 20 && a[100] == 7 && a[109] == 7 && a[110] == 20 && b[0] == 30 && b[100] == 18 && b[999] == 30);
  // In another stream, with other work around it.
  OK(kernels.launch("add", 4, 256, s.two, s.a, 100u, kCount));
  OK(cuGraphUpload(exec, s.two));
  OK(cuGraphLaunch(exec, s.two));
  OK(kernels.launch("add", 4, 256, s.two, s.b, 1000u, kCount));
  OK(cuStreamSynchronize(s.two));
  a = download<unsigned>(s.a, kCount), b = download<unsigned>(s.b, kCount);
  EXPECT(a[0] == 121 && a[100] == 7 && b[0] == 1131 && b[100] == 1118);
  // The null stream, and many launches that nobody waits for.
  for (int i = 0; i < 300; ++i) OK(cuGraphLaunch(exec, nullptr));
  OK(cuCtxSynchronize());
  EXPECT(download<unsigned>(s.a, 1)[0] == 421);
  OK(cuGraphExecDestroy(exec));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(exec, s.one));
}

SCENARIO(captured_cooperative_kernel) {
  Device device;
  Kernels kernels;
  Streams s;
  unsigned value = 3, count = kCount;
  void* parameters[] = {&s.a, &value, &count};
  OK(cuStreamBeginCapture(s.one, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  OK(cuLaunchCooperativeKernel(kernels.function("add"), 4, 1, 1, 256, 1, 1, 0, s.one, parameters));
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
  CUlaunchConfig config{};
  config.gridDimX = 4;
  config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  config.blockDimX = 256;
  config.hStream = s.one;
  config.attrs = &attribute;
  config.numAttrs = 1;
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
  run(executable(graph), s.one, 5);
  EXPECT(download<unsigned>(s.a, kCount)[999] == 30);
}

// Memory of the host is read and written when a launch gets there, whatever it holds then.
SCENARIO(graph_with_host_memory) {
  Device device;
  Kernels kernels;
  Streams s;
  const bool large = arguments.size() == 1 && arguments[0] == "large";
  const unsigned count = large ? 1'500'000 : kCount;
  CUdeviceptr values = 0;
  unsigned *up = nullptr, *down = nullptr;
  std::vector<unsigned> pageable_up(count), pageable_down(count);
  OK(cuMemAlloc(&values, count * 4));
  OK(cuMemAllocHost(reinterpret_cast<void**>(&up), count * 4));
  OK(cuMemAllocHost(reinterpret_cast<void**>(&down), count * 4));
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
    for (unsigned i = 0; i < count; ++i) EXPECT(down[i] == i * round + 5 && pageable_down[i] == i + round + 7);
  }
  // Launches in a row, beside a stream that is busy with copies of its own.
  for (int i = 0; i < 20; ++i) {
    OK(cuGraphLaunch(exec, s.one));
    OK(cuMemcpyHtoDAsync(s.b, up, kCount * 4, s.two));
    OK(cuMemcpyDtoHAsync(up, s.b, kCount * 4, s.two));
  }
  OK(cuCtxSynchronize());
  EXPECT(calls == 23);
  // Gone while launches are under way: they end as if it were not.
  for (int i = 0; i < 5; ++i) OK(cuGraphLaunch(exec, s.one));
  OK(cuGraphExecDestroy(exec));
  OK(cuCtxSynchronize());
  EXPECT(calls == 28);
}

// What a host function writes is what the copy behind it takes.
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
  OK(cuLaunchHostFunc(s.one, [](void* user) {
    auto& shared = *static_cast<Shared*>(user);
    ++shared.next;
    for (unsigned i = 0; i < kCount; ++i) shared.pinned[i] = shared.next * 100;
  }, &shared));
  OK(cuMemcpyHtoDAsync(s.a, shared.pinned, kCount * 4, s.one));
  OK(kernels.launch("add", 4, 256, s.one, s.a, 1u, kCount));
  OK(cuMemcpyDtoHAsync(shared.pinned, s.a, kCount * 4, s.one));
  OK(cuLaunchHostFunc(s.one, [](void* user) {
    auto& shared = *static_cast<Shared*>(user);
    shared.seen.push_back(shared.pinned[kCount - 1]);
  }, &shared));
  const CUgraphExec exec = executable(end_capture(s.one));
  run(exec, s.one, 10);
  EXPECT(shared.seen.size() == 10);
  for (unsigned i = 0; i < 10; ++i) EXPECT(shared.seen[i] == (i + 1) * 100 + 1);
}

// Two executable graphs of one graph, each with its own turn in the host, at the same time.
SCENARIO(graphs_beside_each_other) {
  Device device;
  Kernels kernels;
  Streams s;
  std::atomic<int> calls{0};
  unsigned* pinned = nullptr;
  OK(cuMemAllocHost(reinterpret_cast<void**>(&pinned), kCount * 4));
  std::memset(pinned, 0, kCount * 4);
  OK(cuStreamBeginCapture(s.one, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuEventRecord(s.fork, s.one));
  OK(cuStreamWaitEvent(s.two, s.fork, 0));
  OK(cuLaunchHostFunc(s.one, add_one, &calls));
  OK(cuMemcpyHtoDAsync(s.a, pinned, kCount * 4, s.two));
  OK(cuLaunchHostFunc(s.two, add_one, &calls));
  OK(cuEventRecord(s.join, s.two));
  OK(cuStreamWaitEvent(s.one, s.join, 0));
  const CUgraph graph = end_capture(s.one);
  CUgraphExec first = nullptr, second = nullptr;
  OK(cuGraphInstantiate(&first, graph, 0));
  OK(cuGraphInstantiate(&second, graph, 0));
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
  OK(cuGraphLaunch(second, s.one));
  OK(cuStreamSynchronize(s.one));
  EXPECT(calls == 202);
}

SCENARIO(graph_by_hand) {
  Device device;
  Kernels kernels;
  Streams s;
  CUgraph graph = nullptr, child = nullptr;
  OK(cuGraphCreate(&graph, 0));
  OK(cuGraphCreate(&child, 0));
  CUDA_KERNEL_NODE_PARAMS kernel{};
  unsigned value = 2, count = kCount;
  void* parameters[] = {&s.a, &value, &count};
  kernel.func = kernels.function("add");
  kernel.gridDimX = 4;
  kernel.gridDimY = kernel.gridDimZ = kernel.blockDimY = kernel.blockDimZ = 1;
  kernel.blockDimX = 256;
  kernel.kernelParams = parameters;
  CUgraphNode inner = nullptr, inner_copy = nullptr, fill = nullptr, middle = nullptr, last = nullptr, host = nullptr, empty = nullptr;
  OK(cuGraphAddKernelNode(&inner, child, nullptr, 0, &kernel));
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = s.a;
  copy.dstDevice = s.b;
  copy.WidthInBytes = 40;
  copy.Height = 5;
  copy.Depth = 2;
  copy.srcPitch = copy.dstPitch = 80;
  copy.srcHeight = copy.dstHeight = 10;
  OK(cuGraphAddMemcpyNode(&inner_copy, child, &inner, 1, &copy, device.context));
  CUDA_MEMSET_NODE_PARAMS zero{};
  zero.dst = s.a;
  zero.elementSize = 4;
  zero.width = kCount;
  zero.height = 1;
  zero.value = 40;
  OK(cuGraphAddMemsetNode(&fill, graph, nullptr, 0, &zero, device.context));
  OK(cuGraphAddChildGraphNode(&middle, graph, &fill, 1, child));
  std::vector<unsigned> seen(kCount);
  CUDA_MEMCPY3D out{};
  out.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  out.srcDevice = s.b;
  out.dstMemoryType = CU_MEMORYTYPE_HOST;
  out.dstHost = seen.data();
  out.WidthInBytes = kCount * 4;
  out.Height = out.Depth = 1;
  OK(cuGraphAddMemcpyNode(&last, graph, &middle, 1, &out, device.context));
  std::atomic<int> calls{0};
  CUDA_HOST_NODE_PARAMS call{add_one, &calls};
  OK(cuGraphAddHostNode(&host, graph, &last, 1, &call));
  OK(cuGraphAddEmptyNode(&empty, graph, nullptr, 0));
  OK(cuGraphAddDependencies(graph, &host, &empty, nullptr, 1));
  CUgraphExec exec = nullptr;
  OK(cuGraphInstantiate(&exec, graph, 0));
  run(exec, s.one);
  EXPECT(calls == 1 && seen[0] == 42 && seen[9] == 42 && seen[10] == 0 && seen[20] == 42 && seen[100] == 0 && seen[200] == 42 && seen[300] == 0);

  // Changes to what is executable: it keeps what the graph was otherwise.
  value = 5;
  CUgraph embedded = nullptr;
  OK(cuGraphChildGraphNodeGetGraph(middle, &embedded));
  size_t one = 1;
  CUgraphNode embedded_kernel = nullptr;
  OK(cuGraphGetNodes(embedded, &embedded_kernel, &one));
  zero.value = 100;
  OK(cuGraphExecMemsetNodeSetParams(exec, fill, &zero, device.context));
  OK(cuGraphExecKernelNodeSetParams(exec, embedded_kernel, &kernel));
  std::vector<unsigned> elsewhere(kCount);
  out.dstHost = elsewhere.data();
  OK(cuGraphExecMemcpyNodeSetParams(exec, last, &out, device.context));
  std::atomic<int> other_calls{0};
  call.userData = &other_calls;
  OK(cuGraphExecHostNodeSetParams(exec, host, &call));
  run(exec, s.one);
  EXPECT(seen[0] == 42 && elsewhere[0] == 105 && elsewhere[10] == 0 && calls == 1 && other_calls == 1);
  GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphExecMemsetNodeSetParams(exec, last, &zero, device.context));
  OK(cuGraphNodeSetEnabled(exec, fill, 0));
  run(exec, s.one);
  EXPECT(elsewhere[0] == 110);
  unsigned enabled = 7;
  OK(cuGraphNodeGetEnabled(exec, fill, &enabled));
  EXPECT(enabled == 0);
  OK(cuGraphNodeSetEnabled(exec, last, 0));
  run(exec, s.one);
  EXPECT(elsewhere[0] == 110 && download<unsigned>(s.b, 1)[0] == 115 && other_calls == 3);

  // The graph itself is still what it was, and so is a clone of it.
  CUgraph clone = nullptr;
  OK(cuGraphClone(&clone, graph));
  CUgraphNode twin = nullptr;
  OK(cuGraphNodeFindInClone(&twin, fill, clone));
  CUDA_MEMSET_NODE_PARAMS read{};
  OK(cuGraphMemsetNodeGetParams(twin, &read));
  EXPECT(read.value == 40 && read.dst == s.a);
  OK(cuGraphDestroy(graph));
  OK(cuGraphDestroy(child));
  run(executable(clone), s.one);
  EXPECT(seen[0] == 42 && calls == 2);
}

SCENARIO(graph_update) {
  Device device;
  Kernels kernels;
  Streams s;
  unsigned* pinned[2] = {};
  for (auto& memory : pinned) OK(cuMemAllocHost(reinterpret_cast<void**>(&memory), kCount * 4));
  std::atomic<int> calls[2] = {};
  const auto capture = [&](unsigned value, int which, bool more) {
    OK(cuStreamBeginCapture(s.one, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(kernels.launch("add", 4, 256, s.one, which ? s.b : s.a, value, kCount));
    OK(cuMemcpyDtoHAsync(pinned[which], which ? s.b : s.a, kCount * 4, s.one));
    OK(cuLaunchHostFunc(s.one, add_one, &calls[which]));
    if (more) OK(cuMemsetD8Async(s.a, 0, 1, s.one));
    return end_capture(s.one);
  };
  const CUgraph first = capture(1, 0, false);
  CUgraphExec exec = nullptr;
  OK(cuGraphInstantiate(&exec, first, 0));
  run(exec, s.one);
  EXPECT(pinned[0][0] == 1 && calls[0] == 1);
  CUgraphExecUpdateResultInfo info{};
  for (unsigned round = 0; round < 100; ++round) {
    const CUgraph next = capture(round, 1, false);
    OK(cuGraphExecUpdate(exec, next, &info));
    EXPECT(info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS);
    OK(cuGraphDestroy(next));
    OK(cuGraphLaunch(exec, s.one));
  }
  OK(cuStreamSynchronize(s.one));
  EXPECT(pinned[1][0] == 4950 && pinned[0][0] == 1 && calls[0] == 1 && calls[1] == 100);
  const CUgraph other = capture(1, 1, true);
  GIVES(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate(exec, other, &info));
  EXPECT(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
  run(exec, s.one);
  EXPECT(pinned[1][0] == 5049 && calls[1] == 101);
  OK(cuGraphDestroy(other));
  OK(cuGraphDestroy(first));
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

SCENARIO(captures_that_fail) {
  Device device;
  Kernels kernels;
  Streams s;
  CUgraph graph = nullptr;
  CUstreamCaptureStatus status{};
  GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL));
  GIVES(CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture(s.one, &graph));
  // Waited for.
  OK(cuStreamBeginCapture(s.one, CU_STREAM_CAPTURE_MODE_GLOBAL));
  GIVES(CUDA_ERROR_ILLEGAL_STATE, cuStreamBeginCapture(s.one, CU_STREAM_CAPTURE_MODE_GLOBAL));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamSynchronize(s.one));
  OK(cuStreamIsCapturing(s.one, &status));
  EXPECT(status == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, kernels.launch("add", 4, 256, s.one, s.a, 1u, kCount));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(s.one, &graph));
  EXPECT(graph == nullptr);
  OK(cuStreamIsCapturing(s.one, &status));
  EXPECT(status == CU_STREAM_CAPTURE_STATUS_NONE);
  // Looked at.
  OK(cuStreamBeginCapture(s.one, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuEventRecord(s.fork, s.one));
  GIVES(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(s.fork));
  GIVES(CUDA_ERROR_CAPTURED_EVENT, cuEventSynchronize(s.fork));
  // A stream that took part and did not come back.
  OK(cuStreamWaitEvent(s.two, s.fork, 0));
  OK(cuMemsetD32Async(s.a, 0, 1, s.two));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(s.one, &graph));
  OK(cuStreamSynchronize(s.one));
  OK(cuStreamSynchronize(s.two));
  // By another stream than it began with; with work from outside.
  OK(cuStreamBeginCapture(s.one, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuEventRecord(s.fork, s.one));
  OK(cuStreamWaitEvent(s.two, s.fork, 0));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, cuStreamEndCapture(s.two, &graph));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(s.one, &graph));
  CUevent ordinary = nullptr;
  OK(cuEventCreate(&ordinary, 0));
  OK(cuStreamBeginCapture(s.one, CU_STREAM_CAPTURE_MODE_GLOBAL));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cuStreamWaitEvent(s.one, ordinary, 0));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(s.one, &graph));
  // By another thread.
  OK(cuStreamBeginCapture(s.one, CU_STREAM_CAPTURE_MODE_GLOBAL));
  std::thread([&] {
    OK(cuCtxSetCurrent(device.context));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, cuStreamEndCapture(s.one, &graph));
  }).join();
  OK(cuGraphDestroy(end_capture(s.one)));
  // The stream is gone; what was recorded in it is nothing any more.
  OK(cuStreamBeginCapture(s.one, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuStreamDestroy(s.one));
  OK(cuEventRecord(s.fork, s.two));
  OK(cuEventSynchronize(s.fork));
  OK(cuCtxSynchronize());
}

SCENARIO(graph_memory_nodes) {
  Device device;
  Kernels kernels;
  Streams s;
  size_t before = 0, during = 0, after = 0, total = 0;
  OK(cuMemGetInfo(&before, &total));
  CUdeviceptr inside = 0, kept = 0;
  constexpr size_t kBytes = 32u << 20;
  unsigned* down = nullptr;
  OK(cuMemAllocHost(reinterpret_cast<void**>(&down), kCount * 4));
  OK(cuStreamBeginCapture(s.one, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuMemAllocAsync(&inside, kBytes, s.one));
  OK(cuMemsetD32Async(inside, 6, kCount, s.one));
  OK(cuMemAllocAsync(&kept, kBytes, s.one));
  OK(cuMemcpyDtoDAsync(kept, inside, kCount * 4, s.one));
  OK(kernels.launch("add", 4, 256, s.one, kept, 1u, kCount));
  OK(cuMemFreeAsync(inside, s.one));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(s.a, s.one));
  const CUgraph graph = end_capture(s.one);
  EXPECT(node_count(graph) == 6);
  CUgraph clone = nullptr;
  GIVES(CUDA_ERROR_NOT_SUPPORTED, cuGraphClone(&clone, graph));
  const CUgraphExec exec = executable(graph);
  OK(cuGraphLaunch(exec, s.one));
  OK(cuMemcpyDtoHAsync(down, kept, kCount * 4, s.one));
  OK(cuStreamSynchronize(s.one));
  EXPECT(down[0] == 7 && down[kCount - 1] == 7);
  OK(cuMemGetInfo(&during, &total));
  EXPECT(during + 2 * kBytes <= before);
  cuuint64_t used = 0;
  OK(cuDeviceGetGraphMemAttribute(device.device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used));
  EXPECT(used >= kBytes);
  // What the program has it must free before the next launch.
  GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(exec, s.one));
  OK(cuMemFreeAsync(kept, s.one));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(kept));
  OK(cuGraphLaunch(exec, s.one));
  OK(cuGraphExecDestroy(exec));
  OK(cuMemcpyDtoHAsync(down, kept, kCount * 4, s.one));
  OK(cuStreamSynchronize(s.one));
  EXPECT(down[5] == 7);
  OK(cuMemFree(kept));
  OK(cuCtxSynchronize());
  OK(cuMemGetInfo(&after, &total));
  EXPECT(after == before);
}

// Calls that are not captured and are not allowed beside a capture.
SCENARIO(calls_beside_a_capture) {
  Device device;
  Kernels kernels;
  Streams s;
  CUgraph graph = nullptr;
  CUdeviceptr memory = 0;
  CUstream blocking = nullptr;
  OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  const auto begin = [&](CUstream stream, CUstreamCaptureMode mode) { OK(cuStreamBeginCapture(stream, mode)); };
  const auto is_invalid = [&](CUstream stream) { GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph)); };
  begin(s.one, CU_STREAM_CAPTURE_MODE_GLOBAL);
  GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemAlloc(&memory, 64));
  is_invalid(s.one);
  begin(s.one, CU_STREAM_CAPTURE_MODE_GLOBAL);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  OK(cuThreadExchangeStreamCaptureMode(&mode));
  OK(cuMemAlloc(&memory, 64));
  OK(cuMemFree(memory));
  OK(cuThreadExchangeStreamCaptureMode(&mode));
  OK(cuGraphDestroy(end_capture(s.one)));
  begin(s.one, CU_STREAM_CAPTURE_MODE_RELAXED);
  OK(cuMemAlloc(&memory, 64));
  OK(cuMemFree(memory));
  OK(cuGraphDestroy(end_capture(s.one)));
  begin(s.one, CU_STREAM_CAPTURE_MODE_RELAXED);
  GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuCtxSynchronize());
  is_invalid(s.one);
  // The null stream would have to wait for what is captured.
  begin(blocking, CU_STREAM_CAPTURE_MODE_RELAXED);
  GIVES(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, kernels.launch("add", 4, 256, nullptr, s.a, 1u, kCount));
  is_invalid(blocking);
  begin(blocking, CU_STREAM_CAPTURE_MODE_RELAXED);
  unsigned value = 0;
  GIVES(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuMemcpyDtoH(&value, s.a, 4));
  is_invalid(blocking);
  begin(s.one, CU_STREAM_CAPTURE_MODE_RELAXED);
  OK(kernels.launch("add", 4, 256, nullptr, s.a, 1u, kCount));
  OK(kernels.launch("add", 4, 256, s.two, s.b, 1u, kCount));
  OK(cuStreamSynchronize(s.two));
  EXPECT(download<unsigned>(s.a, 1)[0] == 1);
  OK(cuGraphDestroy(end_capture(s.one)));
  OK(cuCtxSynchronize());
}

// Launches in a row that each call the host between two kernels, for so many milliseconds (first argument) with kernels of so many rounds
// (second); says how many were done.
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
  while (std::chrono::steady_clock::now() < end) run(exec, s.one, 4);
  std::printf("done %d\n", calls.load());
}
