// Edges with data: programmatic edges added by the program, and edges made by captured launches.
#include <vector>

#include "tests/parity/show.h"

namespace parity {
namespace {

constexpr unsigned kWords = 256;

CUgraphEdgeData edge_data(unsigned char port, unsigned char type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC) {
  CUgraphEdgeData data{};
  data.from_port = port;
  data.type = type;
  return data;
}

struct Work {
  Work() {
    cuModuleLoadData(&module, kernels_ptx);
    cuModuleGetFunction(&add, module, "add");
    cuMemAlloc(&words, kWords * 4);
    cuMemAlloc(&others, kWords * 4);
    cuStreamCreate(&first, CU_STREAM_NON_BLOCKING);
    cuStreamCreate(&second, CU_STREAM_NON_BLOCKING);
    cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  }
  CUgraphNodeParams kernel() {
    CUgraphNodeParams params{};
    params.type = CU_GRAPH_NODE_TYPE_KERNEL;
    params.kernel.func = add;
    params.kernel.gridDimX = params.kernel.gridDimY = params.kernel.gridDimZ = params.kernel.blockDimY =
        params.kernel.blockDimZ = 1;
    params.kernel.blockDimX = kWords;
    params.kernel.kernelParams = parameters;
    return params;
  }
  CUresult launch(CUstream stream, std::vector<CUlaunchAttribute> attributes = {}, bool on_others = false) {
    void* mine[] = {on_others ? &others : &words, &one, &count};
    CUlaunchConfig config{};
    config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
    config.blockDimX = kWords;
    config.hStream = stream;
    config.attrs = attributes.data();
    config.numAttrs = static_cast<unsigned>(attributes.size());
    return cuLaunchKernelEx(&config, add, mine, nullptr);
  }
  CUlaunchAttribute serialized() {
    CUlaunchAttribute attribute{};
    attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = 1;
    return attribute;
  }
  CUlaunchAttribute records(int trigger_at_block_start, CUevent which) {
    CUlaunchAttribute attribute{};
    attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT;
    attribute.value.programmaticEvent = {which, 0, trigger_at_block_start};
    return attribute;
  }
  void run(CUgraph graph, unsigned times) {
    CUgraphExec exec = nullptr;
    unsigned seen = 0;
    cuMemsetD32(words, 0, kWords);
    REQUIRE(CUDA_SUCCESS, cuGraphInstantiate(&exec, graph, 0));
    REQUIRE(CUDA_SUCCESS, cuGraphLaunch(exec, first));
    cuStreamSynchronize(first);
    cuMemcpyDtoH(&seen, words + 4 * (kWords - 1), sizeof seen);
    EXPECT(seen == times);
    cuGraphExecDestroy(exec);
  }

  CUmodule module = nullptr;
  CUfunction add = nullptr;
  CUdeviceptr words = 0, others = 0;
  CUstream first = nullptr, second = nullptr;
  CUevent event = nullptr;
  unsigned one = 1, count = kWords;
  void* parameters[3] = {&words, &one, &count};
};

// Prints all edges; nodes are numbered in the order in which they were added.
void show_edges(CUgraph graph) {
  std::vector<CUgraphNode> nodes(16), from(16), to(16);
  std::vector<CUgraphEdgeData> data(16);
  size_t node_count = nodes.size(), edge_count = from.size(), all = 0;
  cuGraphGetNodes(graph, nodes.data(), &node_count);
  const auto number = [&](CUgraphNode node) {
    size_t at = 0;
    while (at < node_count && nodes[at] != node) ++at;
    return at;
  };
  REQUIRE(CUDA_SUCCESS, cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &all));
  REQUIRE(CUDA_SUCCESS, cuGraphGetEdges(graph, from.data(), to.data(), data.data(), &edge_count));
  EXPECT(all == edge_count);
  for (size_t i = 0; i < edge_count; ++i) {
    std::printf("%zu -> %zu: port %u to %u, type %u\n", number(from[i]), number(to[i]), data[i].from_port,
                data[i].to_port, data[i].type);
  }
}

void edges_by_hand(Work& work) {
  CUgraph graph = nullptr, clone = nullptr;
  CUgraphNode a = nullptr, b = nullptr, c = nullptr, plain = nullptr, list[4] = {}, others[4] = {};
  CUgraphNodeParams params = work.kernel(), empty{};
  empty.type = CU_GRAPH_NODE_TYPE_EMPTY;
  CUgraphEdgeData programmatic = edge_data(CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC),
                  at_start = edge_data(CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER), data[4] = {};
  cuGraphCreate(&graph, 0);
  REQUIRE(CUDA_SUCCESS, cuGraphAddNode(&a, graph, nullptr, nullptr, 0, &params));
  REQUIRE(CUDA_SUCCESS, cuGraphAddNode(&b, graph, &a, &programmatic, 1, &params));
  REQUIRE(CUDA_SUCCESS, cuGraphAddNode(&c, graph, &b, nullptr, 1, &params));
  REQUIRE(CUDA_SUCCESS, cuGraphAddDependencies(graph, &a, &c, &at_start, 1));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(graph, &a, &c, nullptr, 1));
  show_edges(graph);
  size_t count = 4;
  REQUIRE(CUDA_ERROR_LOSSY_QUERY, cuGraphGetEdges(graph, list, others, nullptr, &count));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuGraphGetEdges(graph, nullptr, nullptr, data, &count));
  REQUIRE(CUDA_ERROR_LOSSY_QUERY, cuGraphNodeGetDependencies(b, list, nullptr, &count));
  SHOW_VALUE(cuGraphNodeGetDependencies(c, nullptr, nullptr, &count), "%zu", count);
  count = 4;
  SHOW_VALUE(cuGraphNodeGetDependencies(c, list, data, &count), "%zu: %u %u", count, data[0].from_port,
             data[1].from_port);
  count = 4;
  REQUIRE(CUDA_SUCCESS, cuGraphNodeGetDependentNodes(b, list, nullptr, &count));
  REQUIRE(CUDA_ERROR_LOSSY_QUERY, cuGraphNodeGetDependentNodes(a, list, nullptr, &count));
  count = 4;
  SHOW_VALUE(cuGraphNodeGetDependentNodes(a, list, data, &count), "%zu: %u %u", count, data[0].from_port,
             data[1].from_port);
  // Undefined data, or data that is invalid between these nodes.
  REQUIRE(CUDA_SUCCESS, cuGraphAddNode(&plain, graph, &c, nullptr, 1, &empty));
  CUgraphNode refused = nullptr;
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuGraphAddNode(&refused, graph, &a, &programmatic, 1, &empty));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuGraphAddNode(&refused, graph, &plain, &programmatic, 1, &params));
  CUgraphEdgeData wrong = edge_data(3);
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuGraphAddNode(&refused, graph, &a, &wrong, 1, &params));
  wrong = edge_data(CU_GRAPH_KERNEL_NODE_PORT_DEFAULT);
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuGraphAddNode(&refused, graph, &a, &wrong, 1, &params));
  wrong = edge_data(CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, CU_GRAPH_DEPENDENCY_TYPE_DEFAULT);
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuGraphAddNode(&refused, graph, &a, &wrong, 1, &params));
  // A clone keeps the data, and the data identifies the edge to remove.
  REQUIRE(CUDA_SUCCESS, cuGraphClone(&clone, graph));
  show_edges(clone);
  work.run(graph, 3);
  SHOW_UNLESS_GUARDED(cuGraphRemoveDependencies(graph, &a, &b, nullptr, 1));
  REQUIRE(CUDA_SUCCESS, cuGraphRemoveDependencies(graph, &a, &b, &programmatic, 1));
  REQUIRE(CUDA_SUCCESS, cuGraphAddDependencies(graph, &a, &b, nullptr, 1));
  show_edges(graph);
  // Graphs that differ in edge data differ in topology.
  CUgraphExec exec = nullptr;
  CUgraphExecUpdateResultInfo info{};
  REQUIRE(CUDA_SUCCESS, cuGraphInstantiate(&exec, clone, 0));
  REQUIRE(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate(exec, graph, &info));
  REQUIRE(CUDA_SUCCESS, cuGraphExecUpdate(exec, clone, &info));
  cuGraphExecDestroy(exec);
  cuGraphDestroy(clone);
  cuGraphDestroy(graph);
}

// Kernels after kernels and after another node, and work after them.
void captured_serialization(Work& work) {
  CUgraph graph = nullptr;
  REQUIRE(CUDA_SUCCESS, cuStreamBeginCapture(work.first, CU_STREAM_CAPTURE_MODE_GLOBAL));
  REQUIRE(CUDA_SUCCESS, cuMemsetD32Async(work.words, 0, kWords, work.first));
  REQUIRE(CUDA_SUCCESS, work.launch(work.first, {work.serialized()}));
  REQUIRE(CUDA_SUCCESS, work.launch(work.first, {work.serialized()}));
  REQUIRE(CUDA_SUCCESS, work.launch(work.first, {work.serialized()}));
  REQUIRE(CUDA_SUCCESS, work.launch(work.first));
  REQUIRE(CUDA_SUCCESS, cuEventRecord(work.event, work.first));
  REQUIRE(CUDA_SUCCESS, cuStreamWaitEvent(work.second, work.event, 0));
  REQUIRE(CUDA_SUCCESS,
          work.launch(work.second, {work.serialized()}));  // waits for the whole kernel because of the event
  REQUIRE(CUDA_SUCCESS, cuEventRecord(work.event, work.second));
  REQUIRE(CUDA_SUCCESS, cuStreamWaitEvent(work.first, work.event, 0));
  REQUIRE(CUDA_SUCCESS, cuStreamEndCapture(work.first, &graph));
  show_edges(graph);
  CUgraphNode nodes[8] = {};
  size_t count = 8;
  cuGraphGetNodes(graph, nodes, &count);
  const CUlaunchAttribute attribute = work.serialized();
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuGraphKernelNodeSetAttribute(nodes[1], attribute.id, &attribute.value));
  work.run(graph, 5);
  cuGraphDestroy(graph);
}

void captured_event(Work& work, int trigger_at_block_start) {
  CUgraph graph = nullptr;
  CUstreamCaptureStatus status{};
  const CUgraphNode* nodes = nullptr;
  const CUgraphEdgeData* edges = nullptr;
  size_t count = 0;
  REQUIRE(CUDA_SUCCESS, cuStreamBeginCapture(work.first, CU_STREAM_CAPTURE_MODE_GLOBAL));
  REQUIRE(CUDA_ERROR_INVALID_HANDLE, work.launch(work.first, {work.records(0, wild<CUevent>())}));
  REQUIRE(CUDA_SUCCESS, work.launch(work.first, {work.records(trigger_at_block_start, work.event)}));
  REQUIRE(CUDA_SUCCESS, cuStreamWaitEvent(work.second, work.event, 0));
  REQUIRE(CUDA_ERROR_LOSSY_QUERY,
          cuStreamGetCaptureInfo(work.second, &status, nullptr, nullptr, &nodes, nullptr, &count));
  REQUIRE(CUDA_ERROR_INVALID_VALUE,
          cuStreamGetCaptureInfo(work.second, &status, nullptr, nullptr, nullptr, &edges, &count));
  SHOW_VALUE(cuStreamGetCaptureInfo(work.second, &status, nullptr, nullptr, &nodes, &edges, &count),
             "%zu: port %u, type %u", count, edges->from_port, edges->type);
  REQUIRE(CUDA_SUCCESS, work.launch(work.second, {}, true));  // may run concurrently
  REQUIRE(CUDA_SUCCESS, cuMemsetD32Async(work.others, 0, 1, work.second));
  REQUIRE(CUDA_SUCCESS, cuEventRecord(work.event, work.second));
  REQUIRE(CUDA_SUCCESS, cuStreamWaitEvent(work.first, work.event, 0));
  REQUIRE(CUDA_SUCCESS, cuStreamEndCapture(work.first, &graph));
  show_edges(graph);
  work.run(graph, 1);
  cuGraphDestroy(graph);
}

// Edge data that the program passes to a capture. A node that is no kernel treats a programmatic edge as a
// full dependency.
void given_dependencies(Work& work) {
  CUgraph graph = nullptr;
  CUgraphNode kernel = nullptr;
  CUgraphNodeParams params = work.kernel();
  CUgraphEdgeData programmatic = edge_data(CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC),
                  wrong = edge_data(CU_GRAPH_KERNEL_NODE_PORT_DEFAULT);
  cuGraphCreate(&graph, 0);
  REQUIRE(CUDA_SUCCESS, cuGraphAddNode(&kernel, graph, nullptr, nullptr, 0, &params));
  REQUIRE(CUDA_ERROR_INVALID_VALUE,
          cuStreamBeginCaptureToGraph(work.first, graph, &kernel, &wrong, 1, CU_STREAM_CAPTURE_MODE_RELAXED));
  REQUIRE(CUDA_SUCCESS, cuStreamBeginCaptureToGraph(work.first, graph, &kernel, &programmatic, 1,
                                                    CU_STREAM_CAPTURE_MODE_RELAXED));
  REQUIRE(CUDA_SUCCESS, work.launch(work.first));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuStreamUpdateCaptureDependencies(work.first, &kernel, &wrong, 1,
                                                                      CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
  REQUIRE(CUDA_SUCCESS, cuStreamUpdateCaptureDependencies(work.first, &kernel, &programmatic, 1,
                                                          CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
  REQUIRE(CUDA_SUCCESS, work.launch(work.first));
  REQUIRE(CUDA_SUCCESS, cuStreamUpdateCaptureDependencies(work.first, &kernel, &programmatic, 1,
                                                          CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
  REQUIRE(CUDA_SUCCESS, cuMemsetD32Async(work.words + 4, 0, 1, work.first));
  REQUIRE(CUDA_SUCCESS, cuStreamEndCapture(work.first, nullptr));
  show_edges(graph);
  work.run(graph, 3);
  cuGraphDestroy(graph);
}

}  // namespace

void graph_edges() {
  Work work;
  edges_by_hand(work);
  captured_serialization(work);
  captured_event(work, 0);
  captured_event(work, 1);
  given_dependencies(work);
  // Without a capture, the kernel records the event.
  REQUIRE(CUDA_SUCCESS, work.launch(work.first, {work.records(0, work.event)}));
  REQUIRE(CUDA_SUCCESS, cuEventSynchronize(work.event));
}

}  // namespace parity
