// CUDA graphs built node by node, modified and updated; their memory nodes; captures that must fail.
#include <thread>

#include "tests/e2e/apps/graphs.h"

using namespace app;
using namespace app::graphs;

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
  CUgraphNode inner = nullptr, inner_copy = nullptr, fill = nullptr, middle = nullptr, last = nullptr,
              host = nullptr, empty = nullptr;
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
  EXPECT(calls == 1 && seen[0] == 42 && seen[9] == 42 && seen[10] == 0 && seen[20] == 42 && seen[100] == 0 &&
         seen[200] == 42 && seen[300] == 0);

  // Changes of the executable graph; all other nodes keep their parameters.
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

  // The graph itself has not changed, and neither has its clone.
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

// A graph's host function waits for a thread that calls graph functions, also on that graph: none of these
// calls may wait for the launch.
SCENARIO(graph_calls_beside_a_host_function) {
  Device device;
  Streams s;
  struct Latch {
    std::atomic<bool> entered{false}, open{false};
    std::atomic<int> calls{0};
  } latch;
  const CUDA_HOST_NODE_PARAMS waiting{[](void* user) {
                                        auto& latch = *static_cast<Latch*>(user);
                                        latch.entered = true;
                                        latch.entered.notify_all();
                                        latch.open.wait(false);
                                        ++latch.calls;
                                      },
                                      &latch};
  CUgraph graph = nullptr, other = nullptr;
  CUgraphNode host = nullptr, fill = nullptr;
  CUDA_MEMSET_NODE_PARAMS params{};
  params.dst = s.a;
  params.value = 1;
  params.elementSize = 4;
  params.width = kCount;
  params.height = 1;
  OK(cuGraphCreate(&graph, 0));
  OK(cuGraphAddHostNode(&host, graph, nullptr, 0, &waiting));
  OK(cuGraphAddMemsetNode(&fill, graph, &host, 1, &params, device.context));
  CUgraphExec exec = nullptr, made = nullptr;
  OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  OK(cuGraphLaunch(exec, s.one));
  latch.entered.wait(false);
  OK(cuGraphClone(&other, graph));
  OK(cuGraphInstantiateWithFlags(&made, other, 0));
  params.value = 2;
  OK(cuGraphExecMemsetNodeSetParams(exec, fill, &params, device.context));
  OK(cuGraphExecHostNodeSetParams(exec, host, &waiting));
  OK(cuGraphMemsetNodeSetParams(fill, &params));
  CUgraphExecUpdateResultInfo info{};
  OK(cuGraphExecUpdate(exec, graph, &info));
  EXPECT(info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS);
  OK(cuGraphLaunch(exec, s.one));
  OK(cuGraphExecDestroy(made));
  OK(cuGraphDestroy(other));
  EXPECT(latch.calls == 0);
  latch.open = true;
  latch.open.notify_all();
  OK(cuStreamSynchronize(s.one));
  EXPECT(latch.calls == 2 && download<unsigned>(s.a, 1)[0] == 2);
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(graph));
}

SCENARIO(captures_that_fail) {
  Device device;
  Kernels kernels;
  Streams s;
  CUgraph graph = nullptr;
  CUstreamCaptureStatus status{};
  GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL));
  GIVES(CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture(s.one, &graph));
  // Synchronizing a capturing stream.
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
  // Querying an event that was recorded in a capture.
  OK(cuStreamBeginCapture(s.one, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuEventRecord(s.fork, s.one));
  GIVES(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(s.fork));
  GIVES(CUDA_ERROR_CAPTURED_EVENT, cuEventSynchronize(s.fork));
  // A forked stream that did not join again.
  OK(cuStreamWaitEvent(s.two, s.fork, 0));
  OK(cuMemsetD32Async(s.a, 0, 1, s.two));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(s.one, &graph));
  OK(cuStreamSynchronize(s.one));
  OK(cuStreamSynchronize(s.two));
  // Ending the capture in another stream than its origin, and waiting for an event from outside.
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
  // Ending the capture in another thread.
  OK(cuStreamBeginCapture(s.one, CU_STREAM_CAPTURE_MODE_GLOBAL));
  std::thread([&] {
    OK(cuCtxSetCurrent(device.context));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, cuStreamEndCapture(s.one, &graph));
  }).join();
  OK(cuGraphDestroy(end_capture(s.one)));
  // Destroying the stream; the event recorded in it is then invalid.
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
  // The program must free the memory before the next launch.
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

// Calls that are not captured and are not allowed during a capture.
SCENARIO(calls_beside_a_capture) {
  Device device;
  Kernels kernels;
  Streams s;
  CUgraph graph = nullptr;
  CUdeviceptr memory = 0;
  CUstream blocking = nullptr;
  OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  const auto begin = [&](CUstream stream, CUstreamCaptureMode mode) {
    OK(cuStreamBeginCapture(stream, mode));
  };
  const auto is_invalid = [&](CUstream stream) {
    GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
  };
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
  // The null stream would have to wait for the captured work.
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

// XLA connects the kernels of its command buffers with programmatic edges.
SCENARIO(graph_with_programmatic_edges) {
#if CUDA_VERSION >= 12030
  Device device;
  Kernels kernels;
  Streams s;
  CUgraph graph = nullptr;
  CUgraphNode before = nullptr;
  OK(cuGraphCreate(&graph, 0));
  unsigned amount = 1, count = kCount;
  void* parameters[] = {&s.a, &amount, &count};
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_KERNEL;
  params.kernel.func = kernels.function("add");
  params.kernel.gridDimX = 4;
  params.kernel.blockDimX = 256;
  params.kernel.gridDimY = params.kernel.gridDimZ = params.kernel.blockDimY = params.kernel.blockDimZ = 1;
  params.kernel.kernelParams = parameters;
  CUgraphEdgeData edge{};
  edge.type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
  edge.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
  for (amount = 1; amount <= 8; ++amount) {
    OK(cuGraphAddNode_v2(&before, graph, before ? &before : nullptr, before ? &edge : nullptr, before ? 1 : 0,
                         &params));
  }
  EXPECT(node_count(graph) == 8);
  CUgraphNode from = nullptr;
  CUgraphEdgeData kept{};
  size_t edges = 1;
  OK(cuGraphNodeGetDependencies_v2(before, &from, &kept, &edges));
  EXPECT(edges == 1 && kept.type == edge.type && kept.from_port == edge.from_port);
  const CUgraphExec exec = executable(graph);
  run(exec, s.one, 2);
  EXPECT(download<unsigned>(s.a, kCount) == std::vector<unsigned>(kCount, 2 * 36));
  OK(cuGraphExecDestroy(exec));
#endif
}
