#include <atomic>
#include <thread>

#include "tests/server/softgpu/runtime/fixture.h"
#include "tests/server/softgpu/runtime/kernels.h"

namespace {

struct GraphFixture : ContextFixture {
  GraphFixture() {
    REQUIRE_OK(cuModuleLoadData(&module, kKernels));
    REQUIRE_OK(cuModuleGetFunction(&count, module, "count"));
    REQUIRE_OK(cuModuleGetGlobal_v2(&counter, nullptr, module, "counter"));
    REQUIRE_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    REQUIRE_OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  }
  int counted() {
    int value = -1;
    REQUIRE_OK(cuMemcpyDtoH_v2(&value, counter, 4));
    return value;
  }
  CUmodule module = nullptr;
  CUfunction count = nullptr;
  CUdeviceptr counter = 0;
  CUstream stream = nullptr, other = nullptr;
};

void CUDA_CB count_call(void* counter) {
  static_cast<std::atomic<int>*>(counter)->fetch_add(1);
}

}  // namespace

TEST_CASE_METHOD(GraphFixture, "captures the work of two streams and launches it again") {
  CUevent fork = nullptr, join = nullptr;
  REQUIRE_OK(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
  REQUIRE_OK(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
  std::atomic<int> hosts{0};
  REQUIRE_OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  CUstreamCaptureStatus status;
  REQUIRE_OK(cuStreamIsCapturing(stream, &status));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  REQUIRE_OK(cuMemsetD32Async(counter, 0, 1, stream));
  REQUIRE_OK(cuEventRecord(fork, stream));
  REQUIRE_OK(cuStreamWaitEvent(other, fork, 0));
  REQUIRE_OK(cuLaunchKernel(count, 1, 1, 1, 32, 1, 1, 0, other, nullptr, nullptr));
  REQUIRE_OK(cuLaunchKernel(count, 2, 1, 1, 32, 1, 1, 0, stream, nullptr, nullptr));
  REQUIRE_OK(cuLaunchHostFunc(other, count_call, &hosts));
  REQUIRE_OK(cuEventRecord(join, other));
  REQUIRE_OK(cuStreamWaitEvent(stream, join, 0));
  REQUIRE_OK(cuLaunchKernel(count, 1, 1, 1, 4, 1, 1, 0, stream, nullptr, nullptr));
  CUgraph graph = nullptr;
  REQUIRE_OK(cuStreamEndCapture(stream, &graph));
  REQUIRE_OK(cuStreamIsCapturing(other, &status));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
  CHECK(hosts == 0);
  CHECK(counted() == 7);  // nothing has run
  size_t nodes = 0, roots = 0;
  REQUIRE_OK(cuGraphGetNodes(graph, nullptr, &nodes));
  REQUIRE_OK(cuGraphGetRootNodes(graph, nullptr, &roots));
  CHECK(nodes == 5);
  CHECK(roots == 1);
  CUgraphExec exec = nullptr;
  REQUIRE_OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  REQUIRE_OK(cuGraphDestroy(graph));
  for (int i = 0; i < 50; ++i) REQUIRE_OK(cuGraphLaunch(exec, stream));
  REQUIRE_OK(cuStreamSynchronize(stream));
  CHECK(counted() == 32 + 64 + 4);
  CHECK(hosts == 50);
  REQUIRE_OK(cuGraphExecDestroy(exec));
  CHECK(cuGraphLaunch(exec, stream) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE_METHOD(GraphFixture,
                 "a captured stream's dependency list stays valid when another stream is queried") {
  CUevent fork = nullptr, join = nullptr;
  REQUIRE_OK(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
  REQUIRE_OK(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
  REQUIRE_OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  REQUIRE_OK(cuMemsetD32Async(counter, 0, 1, stream));
  REQUIRE_OK(cuEventRecord(fork, stream));
  REQUIRE_OK(cuStreamWaitEvent(other, fork, 0));
  REQUIRE_OK(cuLaunchKernel(count, 1, 1, 1, 32, 1, 1, 0, other, nullptr, nullptr));
  CUstreamCaptureStatus status;
  const CUgraphNode *first = nullptr, *second = nullptr;
  size_t nodes = 0;
  REQUIRE_OK(cuStreamGetCaptureInfo_v2(stream, &status, nullptr, nullptr, &first, &nodes));
  REQUIRE(nodes == 1);
  const CUgraphNode fill = first[0];
  REQUIRE_OK(cuStreamGetCaptureInfo_v2(other, &status, nullptr, nullptr, &second, &nodes));
  REQUIRE(nodes == 1);
  CHECK(second[0] != fill);
  CHECK(first[0] == fill);
  REQUIRE_OK(cuEventRecord(join, other));
  REQUIRE_OK(cuStreamWaitEvent(stream, join, 0));
  CUgraph graph = nullptr;
  REQUIRE_OK(cuStreamEndCapture(stream, &graph));
  REQUIRE_OK(cuGraphDestroy(graph));
}

TEST_CASE_METHOD(GraphFixture, "rejects invalid captures") {
  CUgraph graph = nullptr;
  CHECK(cuStreamBeginCapture_v2(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL) ==
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_ILLEGAL_STATE);
  REQUIRE_OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(graph == nullptr);

  // A stream that joined the capture and was not joined back.
  CUevent fork = nullptr;
  REQUIRE_OK(cuEventCreate(&fork, 0));
  REQUIRE_OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  REQUIRE_OK(cuEventRecord(fork, stream));
  CHECK(cuEventQuery(fork) == CUDA_ERROR_CAPTURED_EVENT);
  REQUIRE_OK(cuStreamWaitEvent(other, fork, 0));
  REQUIRE_OK(cuMemsetD32Async(counter, 0, 1, other));
  CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  REQUIRE_OK(cuStreamSynchronize(stream));
  REQUIRE_OK(cuStreamSynchronize(other));

  REQUIRE_OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  REQUIRE_OK(cuStreamDestroy_v2(stream));
}

TEST_CASE_METHOD(GraphFixture, "cuEventQuery is rejected during a capture in global mode") {
  CUgraph graph = nullptr;
  CUevent event = nullptr;
  REQUIRE_OK(cuEventCreate(&event, 0));
  REQUIRE_OK(cuEventRecord(event, other));
  REQUIRE_OK(cuEventSynchronize(event));
  const auto query_elsewhere = [&] {
    CUresult result = CUDA_ERROR_UNKNOWN;
    std::thread([&] { result = cuEventQuery(event); }).join();
    return result;
  };
  REQUIRE_OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  REQUIRE_OK(cuThreadExchangeStreamCaptureMode(&mode));
  CHECK(cuEventQuery(event) == CUDA_SUCCESS);
  REQUIRE_OK(cuThreadExchangeStreamCaptureMode(&mode));
  CHECK(query_elsewhere() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

  REQUIRE_OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CHECK(query_elsewhere() == CUDA_SUCCESS);
  CHECK(cuEventQuery(event) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_CASE_METHOD(
    GraphFixture,
    "a kernel node keeps its cluster size when its parameters are set and passes it on when copied") {
  CUgraph graph = nullptr;
  REQUIRE_OK(cuGraphCreate(&graph, 0));
  CUDA_KERNEL_NODE_PARAMS kernel{};
  kernel.func = count;
  kernel.gridDimX = 4;
  kernel.gridDimY = kernel.gridDimZ = kernel.blockDimX = kernel.blockDimY = kernel.blockDimZ = 1;
  CUgraphNode node = nullptr, second = nullptr;
  REQUIRE_OK(cuGraphAddKernelNode_v2(&node, graph, nullptr, 0, &kernel));
  REQUIRE_OK(cuGraphAddKernelNode_v2(&second, graph, nullptr, 0, &kernel));
  const auto cluster_of = [](CUgraphNode of) {
    CUkernelNodeAttrValue value{};
    REQUIRE_OK(cuGraphKernelNodeGetAttribute(of, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &value));
    return value.clusterDim.x;
  };
  CUkernelNodeAttrValue pairs{};
  pairs.clusterDim.x = 2;
  pairs.clusterDim.y = pairs.clusterDim.z = 1;
  REQUIRE_OK(cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &pairs));
  kernel.blockDimX = 32;
  REQUIRE_OK(cuGraphKernelNodeSetParams_v2(node, &kernel));
  CHECK(cluster_of(node) == 2);
  kernel.gridDimX = 3;
  CHECK(cuGraphKernelNodeSetParams_v2(node, &kernel) == CUDA_ERROR_INVALID_CLUSTER_SIZE);
  CHECK(cluster_of(second) == 0);
  REQUIRE_OK(cuGraphKernelNodeCopyAttributes(second, node));
  CHECK(cluster_of(second) == 2);
  CUgraphExec exec = nullptr;
  REQUIRE_OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  CHECK(cuGraphExecKernelNodeSetParams_v2(exec, node, &kernel) == CUDA_ERROR_INVALID_CLUSTER_SIZE);
  REQUIRE_OK(cuGraphExecDestroy(exec));
  REQUIRE_OK(cuGraphDestroy(graph));
}

TEST_CASE_METHOD(GraphFixture, "builds a graph of nodes and changes it after instantiation") {
  CUgraph graph = nullptr, child = nullptr;
  REQUIRE_OK(cuGraphCreate(&graph, 0));
  REQUIRE_OK(cuGraphCreate(&child, 0));
  CUDA_KERNEL_NODE_PARAMS kernel{};
  kernel.func = count;
  kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = kernel.blockDimX = kernel.blockDimY =
      kernel.blockDimZ = 1;
  CUgraphNode inner = nullptr, fill = nullptr, middle = nullptr, last = nullptr;
  REQUIRE_OK(cuGraphAddKernelNode_v2(&inner, child, nullptr, 0, &kernel));
  CUDA_MEMSET_NODE_PARAMS zero{};
  zero.dst = counter;
  zero.elementSize = 4;
  zero.width = zero.height = 1;
  REQUIRE_OK(cuGraphAddMemsetNode(&fill, graph, nullptr, 0, &zero, context));
  REQUIRE_OK(cuGraphAddChildGraphNode(&middle, graph, &fill, 1, child));
  int seen = -1;
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = counter;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = &seen;
  copy.WidthInBytes = 4;
  copy.Height = copy.Depth = 1;
  REQUIRE_OK(cuGraphAddMemcpyNode(&last, graph, &middle, 1, &copy, context));
  CUgraphExec exec = nullptr;
  REQUIRE_OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  REQUIRE_OK(cuGraphLaunch(exec, stream));
  REQUIRE_OK(cuStreamSynchronize(stream));
  CHECK(seen == 1);
  zero.value = 100;
  REQUIRE_OK(cuGraphExecMemsetNodeSetParams(exec, fill, &zero, context));
  REQUIRE_OK(cuGraphLaunch(exec, stream));
  REQUIRE_OK(cuStreamSynchronize(stream));
  CHECK(seen == 101);
  REQUIRE_OK(cuGraphNodeSetEnabled(exec, fill, 0));
  REQUIRE_OK(cuGraphLaunch(exec, stream));
  REQUIRE_OK(cuStreamSynchronize(stream));
  CHECK(seen == 102);

  CHECK(cuGraphAddDependencies(graph, &last, &fill, 1) == CUDA_SUCCESS);  // a cycle
  CUgraphExec broken = nullptr;
  CHECK(cuGraphInstantiateWithFlags(&broken, graph, 0) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE_OK(cuGraphDestroyNode(last));
  CHECK(cuGraphDestroyNode(last) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE_OK(cuGraphDestroy(graph));
  REQUIRE_OK(cuGraphDestroy(child));
  CHECK(cuGraphDestroy(graph) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuGraphAddEmptyNode(&last, graph, nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
}
