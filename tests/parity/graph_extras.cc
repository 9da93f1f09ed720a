// Nodes changed by the functions for all node types, child graphs replaced in executable graphs, memory
// nodes, and DOT output.
#include <cstdio>
#include <string>

#include "tests/parity/graph_bench.h"

namespace parity {
namespace {

void any_node() {
  Bench bench;
  CUgraph graph = nullptr;
  CUgraphNode zero = nullptr, kernel = nullptr;
  CUgraphExec exec = nullptr;
  const auto fill = fill_of(bench.words, 5, kCount);
  CUDA_MEMSET_NODE_PARAMS read_fill{};
  cuGraphCreate(&graph, 0);
  SHOW(cuGraphAddMemsetNode(&zero, graph, nullptr, 0, &fill, bench.context));
  SHOW(cuGraphAddKernelNode(&kernel, graph, &zero, 1, &bench.kernel));
  CUgraphNodeParams any{};
  any.type = CU_GRAPH_NODE_TYPE_MEMSET;
  any.memset.dst = bench.words, any.memset.value = 50, any.memset.elementSize = 4, any.memset.width = kCount,
  any.memset.height = 1;
  any.memset.ctx = bench.context;
  REQUIRE(CUDA_SUCCESS, cuGraphNodeSetParams(zero, &any));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuGraphNodeSetParams(kernel, &any));  // the types differ
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuGraphNodeSetParams(zero, nullptr));
  SHOW_VALUE(cuGraphMemsetNodeGetParams(zero, &read_fill), "%u", read_fill.value);
  SHOW(cuGraphInstantiate(&exec, graph, 0));
  bench.run("changed in the graph", exec);
  EXPECT(bench.word(0) == 53);
  any.memset.value = 60;
  REQUIRE(CUDA_SUCCESS, cuGraphExecNodeSetParams(exec, zero, &any));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuGraphExecNodeSetParams(exec, kernel, &any));
  bench.run("changed as an executable", exec);
  EXPECT(bench.word(0) == 63);
  REQUIRE(CUDA_SUCCESS, cuGraphMemsetNodeGetParams(zero, &read_fill));
  EXPECT(read_fill.value == 50);  // the node in the graph is unchanged
  SHOW(cuGraphExecDestroy(exec));
  SHOW(cuGraphDestroy(graph));
}

// Replaces the child graph with cuGraphExecNodeSetParams.
void any_of_child(Bench& bench, CUgraphExec exec, CUgraphNode node, CUgraph other) {
  CUgraphNodeParams any{};
  any.type = CU_GRAPH_NODE_TYPE_GRAPH;
  any.graph.graph = other;
  REQUIRE(CUDA_SUCCESS, cuGraphExecNodeSetParams(exec, node, &any));
  bench.run("the same child", exec);
  EXPECT(bench.word(0) == 83);
}

// Rejected: the node would contain a copy, which changes through the child's handle would not reach.
void moved_child() {
#if CUDA_VERSION >= 12090
  CUgraph graph = nullptr, child = nullptr, other = nullptr;
  CUgraphNode node = nullptr;
  for (CUgraph* const one : {&graph, &child, &other}) cuGraphCreate(one, 0);
  CUgraphNodeParams clone{}, move{};
  clone.type = move.type = CU_GRAPH_NODE_TYPE_GRAPH;
  clone.graph.graph = other;
  move.graph.graph = child;
  move.graph.ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
  REQUIRE(CUDA_SUCCESS, cuGraphAddNode_v2(&node, graph, nullptr, nullptr, 0, &clone));
  if (SHOW(cuGraphAddNode_v2(&node, graph, nullptr, nullptr, 0, &move)) != CUDA_SUCCESS)
    cuGraphDestroy(child);
  for (const CUgraph one : {other, graph}) cuGraphDestroy(one);
#endif
}

void another_child() {
  Bench bench;
  CUgraph graph = nullptr, child = nullptr, other = nullptr;
  CUgraphNode inner = nullptr, node = nullptr;
  CUgraphExec exec = nullptr;
  cuGraphCreate(&graph, 0);
  cuGraphCreate(&child, 0);
  cuGraphCreate(&other, 0);
  cuGraphAddKernelNode(&inner, child, nullptr, 0, &bench.kernel);
  SHOW(cuGraphAddChildGraphNode(&node, graph, nullptr, 0, child));
  SHOW(cuGraphInstantiate(&exec, graph, 0));
  bench.run("a child", exec);
  bench.value = 40;
  cuGraphAddKernelNode(&inner, other, nullptr, 0, &bench.kernel);
  REQUIRE(CUDA_SUCCESS, cuGraphExecChildGraphNodeSetParams(exec, node, other));
  REQUIRE(CUDA_ERROR_INVALID_VALUE, cuGraphExecChildGraphNodeSetParams(exec, node, nullptr));
  REQUIRE(CUDA_ERROR_INVALID_VALUE,
          cuGraphExecChildGraphNodeSetParams(exec, inner, other));  // not a child graph node
  bench.run("another child", exec);
  EXPECT(bench.word(0) == 43);
  any_of_child(bench, exec, node, other);
  cuGraphAddEmptyNode(&inner, other, nullptr, 0);
  REQUIRE(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
          cuGraphExecChildGraphNodeSetParams(exec, node, other));  // more nodes than before
  SHOW(cuGraphExecDestroy(exec));
  for (const CUgraph one : {graph, child, other}) SHOW(cuGraphDestroy(one));
}

void memory_nodes() {
  Bench bench;
  CUgraph graph = nullptr;
  CUgraphNode alloc = nullptr, fill = nullptr, copy = nullptr, gone = nullptr;
  CUgraphExec exec = nullptr;
  CUDA_MEM_ALLOC_NODE_PARAMS memory{}, read{};
  memory.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  memory.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  memory.bytesize = 4096;
  CUdeviceptr freed = 0;
  cuuint64_t used = 0;
  cuGraphCreate(&graph, 0);
  SHOW(cuGraphAddMemAllocNode(&alloc, graph, nullptr, 0, &memory));
  SHOW(cuGraphAddMemAllocNode(&gone, graph, nullptr, 0, nullptr));
  const auto value = fill_of(memory.dptr, 77, 16);
  const auto box = copy_of(bench.words, memory.dptr, 16);
  SHOW(cuGraphAddMemsetNode(&fill, graph, &alloc, 1, &value, bench.context));
  SHOW(cuGraphAddMemcpyNode(&copy, graph, &fill, 1, &box, bench.context));
  SHOW(cuGraphAddMemFreeNode(&gone, graph, &copy, 1, memory.dptr));
  SHOW(cuGraphAddMemFreeNode(&gone, graph, &copy, 1, kWildAddress));
  SHOW_VALUE(cuGraphMemAllocNodeGetParams(alloc, &read), "%zu %d", read.bytesize, read.dptr == memory.dptr);
  SHOW(cuGraphMemAllocNodeGetParams(fill, &read));
  SHOW_VALUE(cuGraphMemFreeNodeGetParams(gone, &freed), "%d", freed == memory.dptr);
  SHOW(cuGraphInstantiate(&exec, graph, 0));
  bench.run("memory of a graph", exec);
  EXPECT(bench.word(0) == 77);
  SHOW(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &used));
  std::printf("it has used memory: %d\n", used >= 4096);
  SHOW(cuDeviceGetGraphMemAttribute(0, static_cast<CUgraphMem_attribute>(77), &used));
  SHOW(cuGraphExecDestroy(exec));
  SHOW(cuGraphDestroy(graph));
  SHOW(cuDeviceGraphMemTrim(0));
  SHOW(cuDeviceGraphMemTrim(9));
  used = 0;
  SHOW(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &used));
  SHOW_VALUE(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used), "%llu",
             static_cast<unsigned long long>(used));
  used = 1;
  SHOW(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &used));
}

// Each library draws graphs differently; checks only what all of them print.
void picture() {
  Bench bench;
  CUgraph graph = nullptr;
  CUgraphNode first = nullptr, second = nullptr;
  cuGraphCreate(&graph, 0);
  cuGraphAddKernelNode(&first, graph, nullptr, 0, &bench.kernel);
  cuGraphAddEmptyNode(&second, graph, &first, 1);
  const std::string path = temporary_file("graph.dot");
  SHOW(cuGraphDebugDotPrint(graph, path.c_str(), 0));
  const std::string text = content_of(path);
  SHOW(cuGraphDebugDotPrint(graph, path.c_str(), CU_GRAPH_DEBUG_DOT_FLAGS_KERNEL_NODE_PARAMS));
  std::printf("more about a kernel: %d\n", content_of(path).size() > text.size());
  std::printf("a graph: %d, an edge: %d, a kernel's name: %d\n", text.find("digraph") != std::string::npos,
              text.find("->") != std::string::npos, text.find("add") != std::string::npos);
  SHOW(cuGraphDebugDotPrint(graph, "/no/such/folder/graph.dot", 0));
  SHOW(cuGraphDebugDotPrint(nullptr, path.c_str(), 0));
  SHOW(cuGraphDestroy(graph));
  std::remove(path.c_str());
}

}  // namespace

void graph_extras() {
  any_node();
  another_child();
  moved_child();
  memory_nodes();
  picture();
}

}  // namespace parity
