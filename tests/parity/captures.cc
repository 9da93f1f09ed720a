// Stream capture and graph queries for which programs depend on the driver's exact behaviour.
#include "tests/parity/show.h"

namespace parity {
namespace {

// A stream forks from `first` and is destroyed during the capture: its work is in the graph if it was joined.
void destroyed_while_capturing(CUstream first, CUdeviceptr words, bool join) {
  CUstream second = nullptr;
  CUevent event = nullptr;
  CUgraph graph = nullptr;
  size_t count = 0;
  cuStreamCreate(&second, CU_STREAM_NON_BLOCKING);
  cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  REQUIRE(CUDA_SUCCESS, cuStreamBeginCapture(first, CU_STREAM_CAPTURE_MODE_GLOBAL));
  REQUIRE(CUDA_SUCCESS, cuEventRecord(event, first));
  REQUIRE(CUDA_SUCCESS, cuStreamWaitEvent(second, event, 0));
  REQUIRE(CUDA_SUCCESS, cuMemsetD8Async(words, 1, 4, second));
  REQUIRE(CUDA_SUCCESS, cuEventRecord(event, second));
  if (join) REQUIRE(CUDA_SUCCESS, cuStreamWaitEvent(first, event, 0));
  REQUIRE(CUDA_SUCCESS, cuStreamDestroy(second));
  REQUIRE(CUDA_SUCCESS, cuMemsetD8Async(words, 2, 4, first));
  REQUIRE(join ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(first, &graph));
  if (join) {
    SHOW_VALUE(cuGraphGetNodes(graph, nullptr, &count), "%zu", count);
    cuGraphDestroy(graph);
  }
  cuEventDestroy(event);
}

// A capture into an existing graph need not return the graph.
void end_without_a_graph(CUstream stream, CUdeviceptr words) {
  CUgraph graph = nullptr;
  size_t count = 0;
  cuGraphCreate(&graph, 0);
  REQUIRE(CUDA_SUCCESS,
          cuStreamBeginCaptureToGraph(stream, graph, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
  REQUIRE(CUDA_SUCCESS, cuMemsetD8Async(words, 0, 4, stream));
  REQUIRE(CUDA_SUCCESS, cuStreamEndCapture(stream, nullptr));
  REQUIRE(CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture(stream, nullptr));
  SHOW_VALUE(cuGraphGetNodes(graph, nullptr, &count), "%zu", count);
  // A failed capture does not destroy the program's graph.
  REQUIRE(CUDA_SUCCESS,
          cuStreamBeginCaptureToGraph(stream, graph, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
  REQUIRE(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamSynchronize(stream));
  REQUIRE(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, nullptr));
  REQUIRE(CUDA_SUCCESS, cuGraphDestroy(graph));
}

// Passes the parameter list that cuGraphKernelNodeGetParams returned to cuGraphKernelNodeSetParams
// repeatedly, with other values.
void lent_parameters(CUfunction add, CUdeviceptr words, CUstream stream) {
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CUgraphExec exec = nullptr;
  unsigned value = 3, threads = 4, seen = 0;
  void* parameters[] = {&words, &value, &threads};
  CUDA_KERNEL_NODE_PARAMS kernel{};
  kernel.func = add;
  kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = kernel.blockDimY = kernel.blockDimZ = 1;
  kernel.blockDimX = 4;
  kernel.kernelParams = parameters;
  cuGraphCreate(&graph, 0);
  REQUIRE(CUDA_SUCCESS, cuGraphAddKernelNode(&node, graph, nullptr, 0, &kernel));
  CUDA_KERNEL_NODE_PARAMS lent{};
  REQUIRE(CUDA_SUCCESS, cuGraphKernelNodeGetParams(node, &lent));
  for (unsigned round = 10; round < 400; round += 10) {
    value = round;
    lent.kernelParams[1] = &value;
    if (cuGraphKernelNodeSetParams(node, &lent) != CUDA_SUCCESS) std::printf("round %u failed\n", round);
  }
  CUDA_KERNEL_NODE_PARAMS again{};
  REQUIRE(CUDA_SUCCESS, cuGraphKernelNodeGetParams(node, &again));
  std::printf("the node has %u, from the same list: %d\n", *static_cast<unsigned*>(again.kernelParams[1]),
              again.kernelParams == lent.kernelParams);
  REQUIRE(CUDA_SUCCESS, cuGraphInstantiate(&exec, graph, 0));
  cuMemsetD8(words, 0, 16);
  REQUIRE(CUDA_SUCCESS, cuGraphLaunch(exec, stream));
  cuStreamSynchronize(stream);
  cuMemcpyDtoH(&seen, words, sizeof seen);
  std::printf("added: %u\n", seen);
  cuGraphExecDestroy(exec);
  cuGraphDestroy(graph);
}

// NVIDIA's driver rejects a list with room for no entries.
void getters_without_room() {
  CUgraph graph = nullptr;
  CUgraphNode a = nullptr, b = nullptr, list[2] = {};
  size_t count = 0;
  cuGraphCreate(&graph, 0);
  cuGraphAddEmptyNode(&a, graph, nullptr, 0);
  cuGraphAddEmptyNode(&b, graph, &a, 1);
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuGraphGetNodes(graph, list, &count));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuGraphGetRootNodes(graph, list, &count));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuGraphGetEdges(graph, list, list, nullptr, &count));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuGraphNodeGetDependencies(b, list, nullptr, &count));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuGraphNodeGetDependentNodes(a, list, nullptr, &count));
  cuGraphDestroy(graph);
}

}  // namespace

void captures() {
  CUstream stream = nullptr;
  CUmodule module = nullptr;
  CUfunction add = nullptr;
  CUdeviceptr words = 0;
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  cuModuleLoadData(&module, kernels_ptx);
  cuModuleGetFunction(&add, module, "add");
  cuMemAlloc(&words, 4096);
  destroyed_while_capturing(stream, words, true);
  destroyed_while_capturing(stream, words, false);
  end_without_a_graph(stream, words);
  lent_parameters(add, words, stream);
  getters_without_room();
}

}  // namespace parity
