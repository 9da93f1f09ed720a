// Memory nodes of graphs, added by hand and captured, and DOT output.
#include <unistd.h>

#include <fstream>
#include <initializer_list>
#include <sstream>
#include <string>

#include "tests/parity/show.h"

namespace parity {
namespace {

CUDA_MEM_ALLOC_NODE_PARAMS allocation(size_t bytes) {
  CUDA_MEM_ALLOC_NODE_PARAMS params{};
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  params.bytesize = bytes;
  return params;
}

void show_use() {
  for (const int attribute : {CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH}) {
    cuuint64_t bytes = 0;
    const CUresult result =
        cuDeviceGetGraphMemAttribute(0, static_cast<CUgraphMem_attribute>(attribute), &bytes);
    std::printf("graph memory %d: %s %llu\n", attribute, name_of(result),
                static_cast<unsigned long long>(bytes));
  }
}

void by_hand(CUstream stream) {
  CUgraph graph = nullptr, other = nullptr;
  CUgraphNode alloc = nullptr, fill = nullptr, free = nullptr, child = nullptr;
  CUgraphExec exec = nullptr;
  CUcontext context = nullptr;
  CUdeviceptr told = 0;
  cuCtxGetCurrent(&context);
  cuGraphCreate(&graph, 0);
  cuGraphCreate(&other, 0);
  auto params = allocation(1 << 20);
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemAllocNode(&alloc, graph, nullptr, 0, nullptr));
  auto nothing = allocation(0);
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemAllocNode(&alloc, graph, nullptr, 0, &nothing));
  REQUIRE(CUDA_SUCCESS, cuGraphAddMemAllocNode(&alloc, graph, nullptr, 0, &params));
  CUDA_MEMSET_NODE_PARAMS bytes{params.dptr, 0, 7, 1, 64, 1};
  REQUIRE(CUDA_SUCCESS, cuGraphAddMemsetNode(&fill, graph, &alloc, 1, &bytes, context));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemFreeNode(&free, graph, &fill, 1, params.dptr + 512));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemFreeNode(&free, graph, &fill, 1, kWildAddress));
  REQUIRE(CUDA_SUCCESS, cuGraphAddMemFreeNode(&free, graph, &fill, 1, params.dptr));
  CUDA_MEM_ALLOC_NODE_PARAMS back{};
  SHOW_VALUE(cuGraphMemAllocNodeGetParams(alloc, &back), "%zu %d", back.bytesize, back.dptr == params.dptr);
  SHOW_VALUE(cuGraphMemFreeNodeGetParams(free, &told), "%d", told == params.dptr);
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuGraphMemAllocNodeGetParams(free, &back));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuGraphMemFreeNodeGetParams(alloc, &told));
  REQUIRE(CUDA_ERROR_NOT_SUPPORTED, cuGraphAddChildGraphNode(&child, other, nullptr, 0, graph));
  REQUIRE(CUDA_SUCCESS, cuGraphInstantiate(&exec, graph, 0));
  for (int launch = 0; launch < 3; ++launch) REQUIRE(CUDA_SUCCESS, cuGraphLaunch(exec, stream));
  REQUIRE(CUDA_SUCCESS, cuStreamSynchronize(stream));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuMemFree(params.dptr));
  show_use();
  cuGraphExecDestroy(exec);
  cuGraphDestroy(graph);
  cuGraphDestroy(other);
}

// The program owns the memory that a launch allocated until it frees it; another launch before that is
// rejected.
void captured(CUstream stream) {
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  CUdeviceptr words = 0;
  unsigned down[4] = {}, up[4] = {5, 6, 7, 8};
  cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  REQUIRE(CUDA_SUCCESS, cuMemAllocAsync(&words, 1 << 20, stream));
  REQUIRE(CUDA_SUCCESS, cuMemcpyHtoDAsync(words, up, sizeof up, stream));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(kWildAddress, stream));
  REQUIRE(CUDA_SUCCESS, cuStreamEndCapture(stream, &graph));
  REQUIRE(CUDA_SUCCESS, cuGraphInstantiate(&exec, graph, 0));
  REQUIRE(CUDA_SUCCESS, cuGraphDestroy(graph));
  for (unsigned launch = 0; launch < 2; ++launch) {
    up[0] = 50 + launch;
    REQUIRE(CUDA_SUCCESS, cuGraphLaunch(exec, stream));
    REQUIRE(CUDA_SUCCESS, cuMemcpyDtoHAsync(down, words, sizeof down, stream));
    REQUIRE(CUDA_SUCCESS, cuStreamSynchronize(stream));
    std::printf("launch %u: %u %u\n", launch, down[0], down[3]);
    REQUIRE(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(exec, stream));
    REQUIRE(CUDA_SUCCESS, launch == 0 ? cuMemFreeAsync(words, stream) : cuMemFree(words));
  }
  REQUIRE(CUDA_SUCCESS, cuGraphExecDestroy(exec));
  REQUIRE(CUDA_SUCCESS, cuStreamSynchronize(stream));
  show_use();
}

// Destroying the context frees the memory, also while the graph exists.
void goes_with_its_context() {
  constexpr size_t kBytes = 1 << 20;
  CUcontext before = nullptr, other = nullptr;
  CUdevice device = 0;
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  CUdeviceptr words = 0, later[4] = {};
  cuCtxGetCurrent(&before);
  cuCtxGetDevice(&device);
  REQUIRE(CUDA_SUCCESS, cuCtxCreate(&other, nullptr, 0, device));
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  REQUIRE(CUDA_SUCCESS, cuMemAllocAsync(&words, kBytes, stream));
  REQUIRE(CUDA_SUCCESS, cuStreamEndCapture(stream, &graph));
  REQUIRE(CUDA_SUCCESS, cuGraphInstantiate(&exec, graph, 0));
  REQUIRE(CUDA_SUCCESS, cuGraphLaunch(exec, stream));
  REQUIRE(CUDA_SUCCESS, cuStreamSynchronize(stream));
  REQUIRE(CUDA_SUCCESS, cuCtxDestroy(other));
  REQUIRE(CUDA_SUCCESS, cuCtxSetCurrent(before));
  for (CUdeviceptr& address : later) REQUIRE(CUDA_SUCCESS, cuMemAlloc(&address, kBytes));
  cuGraphDestroy(graph);
  for (const CUdeviceptr address : later) {
    REQUIRE(CUDA_SUCCESS, cuMemsetD8(address, 9, kBytes));
    REQUIRE(CUDA_SUCCESS, cuMemFree(address));
  }
  show_use();
}

// CUDA does not allow memory nodes in bodies of conditional nodes.
void in_a_conditional_body(CUstream stream) {
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CUgraphExec exec = nullptr;
  CUgraphConditionalHandle condition = 0;
  CUdeviceptr words = 0;
  cuGraphCreate(&graph, 0);
  cuGraphConditionalHandleCreate(&condition, graph, nullptr, 1, CU_GRAPH_COND_ASSIGN_DEFAULT);
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  params.conditional.handle = condition;
  params.conditional.type = CU_GRAPH_COND_TYPE_IF;
  params.conditional.size = 1;
  REQUIRE(CUDA_SUCCESS, cuGraphAddNode(&node, graph, nullptr, nullptr, 0, &params));
  const CUgraph body = params.conditional.phGraph_out[0];
  REQUIRE(CUDA_SUCCESS,
          cuStreamBeginCaptureToGraph(stream, body, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
  SHOW(cuMemAllocAsync(&words, 4096, stream));
  SHOW(cuStreamEndCapture(stream, nullptr));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiate(&exec, graph, 0));
  cuGraphDestroy(graph);
}

// Prints which words the DOT output contains, without the nodes' numbers.
void drawing(CUfunction add, CUdeviceptr words) {
  CUgraph graph = nullptr;
  CUgraphNode first = nullptr, second = nullptr;
  unsigned value = 1, threads = 1;
  void* parameters[] = {&words, &value, &threads};
  CUDA_KERNEL_NODE_PARAMS kernel{};
  kernel.func = add;
  kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = kernel.blockDimX = kernel.blockDimY =
      kernel.blockDimZ = 1;
  kernel.kernelParams = parameters;
  cuGraphCreate(&graph, 0);
  cuGraphAddEmptyNode(&first, graph, nullptr, 0);
  cuGraphAddKernelNode(&second, graph, &first, 1, &kernel);
  char path[] = "/tmp/gpupool-graph-XXXXXX";
  ::close(::mkstemp(path));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuGraphDebugDotPrint(graph, nullptr, 0));
  REQUIRE(CUDA_SUCCESS, cuGraphDebugDotPrint(graph, path, 0));
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  ::unlink(path);
  for (const char* word : {"digraph", "EMPTY", "KERNEL", "add", "->"})
    std::printf("%s: %d\n", word, text.str().find(word) != std::string::npos);
  SHOW(cuGraphDebugDotPrint(graph, "/nowhere/at/all", 0));
  cuGraphDestroy(graph);
}

}  // namespace

void graph_memory() {
  CUstream stream = nullptr;
  CUmodule module = nullptr;
  CUfunction add = nullptr;
  CUdeviceptr words = 0;
  cuuint64_t number = 0;
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  cuModuleLoadData(&module, kernels_ptx);
  cuModuleGetFunction(&add, module, "add");
  cuMemAlloc(&words, 4096);
  REQUIRE(CUDA_ERROR_INVALID_DEVICE,
          cuDeviceGetGraphMemAttribute(9, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &number));
  REQUIRE(CUDA_ERROR_INVALID_VALUE,
          cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, nullptr));
  REQUIRE(CUDA_ERROR_INVALID_VALUE,
          cuDeviceGetGraphMemAttribute(0, static_cast<CUgraphMem_attribute>(9), &number));
  show_use();
  by_hand(stream);
  captured(stream);
  REQUIRE(CUDA_ERROR_INVALID_VALUE,
          cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &number));
  REQUIRE(CUDA_SUCCESS, cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &number));
  REQUIRE(CUDA_SUCCESS, cuDeviceGraphMemTrim(0));
  REQUIRE(CUDA_ERROR_INVALID_DEVICE, cuDeviceGraphMemTrim(9));
  show_use();
  goes_with_its_context();
  in_a_conditional_body(stream);
  drawing(add, words);
}

}  // namespace parity
