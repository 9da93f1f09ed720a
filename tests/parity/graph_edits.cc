// Graph nodes whose parameters are read and changed, in the graph and in the executable graph. Prints the
// results of each run.
#include "tests/parity/graph_bench.h"

namespace parity {
namespace {

void add_to(void* number) {
  ++*static_cast<int*>(number);
}
void add_ten(void* number) {
  *static_cast<int*>(number) += 10;
}

void plain_nodes() {
  Bench bench;
  CUgraph graph = nullptr;
  CUgraphNode zero = nullptr, kernel = nullptr, copy = nullptr, host = nullptr;
  CUgraphExec exec = nullptr;
  int calls = 0, others = 0;
  auto fill = fill_of(bench.words, 5, kCount);
  auto box = copy_of(bench.words, bench.words + 4, 4);
  CUDA_HOST_NODE_PARAMS function{add_to, &calls}, read_function{};
  cuGraphCreate(&graph, 0);
  SHOW(cuGraphAddMemsetNode(&zero, graph, nullptr, 0, &fill, bench.context));
  SHOW(cuGraphAddKernelNode(&kernel, graph, &zero, 1, &bench.kernel));
  SHOW(cuGraphAddMemcpyNode(&copy, graph, &kernel, 1, &box, bench.context));
  SHOW(cuGraphAddHostNode(&host, graph, &copy, 1, &function));
  CUDA_MEMSET_NODE_PARAMS read_fill{};
  SHOW_VALUE(cuGraphMemsetNodeGetParams(zero, &read_fill), "%u %zu %d", read_fill.value, read_fill.width,
             read_fill.dst == bench.words);
  SHOW(cuGraphMemsetNodeGetParams(kernel, &read_fill));
  fill.value = 100;
  SHOW(cuGraphMemsetNodeSetParams(zero, &fill));
  SHOW(cuGraphMemsetNodeSetParams(zero, nullptr));
  CUDA_MEMCPY3D read_box{};
  SHOW_VALUE(cuGraphMemcpyNodeGetParams(copy, &read_box), "%zu %d", read_box.WidthInBytes,
             read_box.dstDevice == bench.words);
  box.dstDevice = bench.words + 4, box.srcDevice = bench.words + 8 * kCount;
  SHOW(cuGraphMemcpyNodeSetParams(copy, &box));
  SHOW(cuGraphMemcpyNodeSetParams(zero, &box));
  SHOW_VALUE(cuGraphHostNodeGetParams(host, &read_function), "%d %d", read_function.fn == add_to,
             read_function.userData == &calls);
  function.userData = &others;
  SHOW(cuGraphHostNodeSetParams(host, &function));
  SHOW(cuGraphHostNodeSetParams(host, nullptr));
  bench.value = 7;
  SHOW(cuGraphKernelNodeSetParams(kernel, &bench.kernel));
  SHOW(cuGraphKernelNodeSetParams(zero, &bench.kernel));
  CUDA_GRAPH_INSTANTIATE_PARAMS wishes{};
  wishes.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
  wishes.hUploadStream = bench.stream;
  SHOW_VALUE(cuGraphInstantiateWithParams(&exec, graph, &wishes), "%d %d", wishes.result_out,
             wishes.hErrNode_out == nullptr);
  SHOW(cuGraphInstantiateWithParams(&exec, graph, nullptr));
  bench.run("changed before it was made executable", exec);
  std::printf("called: %d %d\n", calls, others);
  fill.value = 1000;
  SHOW(cuGraphExecMemsetNodeSetParams(exec, zero, &fill, bench.context));
  SHOW(cuGraphExecMemsetNodeSetParams(exec, kernel, &fill, bench.context));
  box.srcDevice = bench.words;
  SHOW(cuGraphExecMemcpyNodeSetParams(exec, copy, &box, bench.context));
  function.fn = add_ten;
  SHOW(cuGraphExecHostNodeSetParams(exec, host, &function));
  SHOW(cuGraphExecHostNodeSetParams(exec, zero, &function));
  bench.run("changed as an executable", exec);
  std::printf("called: %d %d\n", calls, others);
  SHOW(cuGraphExecDestroy(exec));
  SHOW(cuGraphDestroy(graph));
}

void attributes_of_kernels() {
  Bench bench;
  CUgraph graph = nullptr;
  CUgraphNode first = nullptr, second = nullptr;
  CUkernelNodeAttrValue value{}, read{};
  cuGraphCreate(&graph, 0);
  cuGraphAddKernelNode(&first, graph, nullptr, 0, &bench.kernel);
  cuGraphAddKernelNode(&second, graph, &first, 1, &bench.kernel);
  value.cooperative = 1;
  SHOW(cuGraphKernelNodeSetAttribute(first, CU_KERNEL_NODE_ATTRIBUTE_COOPERATIVE, &value));
  SHOW_VALUE(cuGraphKernelNodeGetAttribute(first, CU_KERNEL_NODE_ATTRIBUTE_COOPERATIVE, &read), "%d",
             read.cooperative);
  SHOW_VALUE(cuGraphKernelNodeGetAttribute(second, CU_KERNEL_NODE_ATTRIBUTE_COOPERATIVE, &read), "%d",
             read.cooperative);
  SHOW(cuGraphKernelNodeCopyAttributes(second, first));
  SHOW_VALUE(cuGraphKernelNodeGetAttribute(second, CU_KERNEL_NODE_ATTRIBUTE_COOPERATIVE, &read), "%d",
             read.cooperative);
  SHOW(cuGraphKernelNodeSetAttribute(first, CU_KERNEL_NODE_ATTRIBUTE_COOPERATIVE, nullptr));
  SHOW(cuGraphKernelNodeGetAttribute(nullptr, CU_KERNEL_NODE_ATTRIBUTE_COOPERATIVE, &read));
  CUgraphExec exec = nullptr;
  SHOW(cuGraphInstantiate(&exec, graph, 0));
  bench.run("two cooperative kernels", exec);
  SHOW(cuGraphExecDestroy(exec));
  SHOW(cuGraphDestroy(graph));
}

void children_and_clones() {
  Bench bench;
  CUgraph graph = nullptr, child = nullptr, embedded = nullptr, clone = nullptr;
  CUgraphNode inner = nullptr, node = nullptr, found = nullptr, nodes[2] = {};
  CUgraphExec exec = nullptr;
  size_t count = 0;
  cuGraphCreate(&graph, 0);
  cuGraphCreate(&child, 0);
  cuGraphAddKernelNode(&inner, child, nullptr, 0, &bench.kernel);
  SHOW(cuGraphAddChildGraphNode(&node, graph, nullptr, 0, child));
  SHOW(cuGraphChildGraphNodeGetGraph(node, &embedded));
  SHOW_VALUE(cuGraphGetNodes(embedded, nullptr, &count), "%zu %d", count, embedded != child);
  SHOW(cuGraphChildGraphNodeGetGraph(inner, &embedded));
  SHOW(cuGraphInstantiate(&exec, graph, 0));
  bench.run("a child", exec);
  SHOW(cuGraphClone(&clone, graph));
  SHOW(cuGraphNodeFindInClone(&found, node, clone));
  count = 2;
  SHOW_VALUE(cuGraphGetNodes(clone, nodes, &count), "%zu %d", count, nodes[0] == found);
  SHOW(cuGraphNodeFindInClone(&found, node, graph));
  SHOW(cuGraphNodeFindInClone(nullptr, node, clone));
  SHOW(cuGraphExecDestroy(exec));
  for (const CUgraph one : {graph, child, clone}) SHOW(cuGraphDestroy(one));
}

void event_nodes() {
  Bench bench;
  CUgraph graph = nullptr;
  CUgraphNode record = nullptr, wait = nullptr;
  CUgraphExec exec = nullptr;
  CUevent first = nullptr, second = nullptr, told = nullptr;
  cuEventCreate(&first, CU_EVENT_DISABLE_TIMING);
  cuEventCreate(&second, CU_EVENT_DISABLE_TIMING);
  cuGraphCreate(&graph, 0);
  SHOW(cuGraphAddEventRecordNode(&record, graph, nullptr, 0, first));
  SHOW(cuGraphAddEventWaitNode(&wait, graph, &record, 1, first));
  SHOW_VALUE(cuGraphEventRecordNodeGetEvent(record, &told), "%d", told == first);
  SHOW_VALUE(cuGraphEventWaitNodeGetEvent(wait, &told), "%d", told == first);
  SHOW(cuGraphEventRecordNodeGetEvent(wait, &told));
  SHOW(cuGraphEventRecordNodeSetEvent(record, second));
  SHOW(cuGraphEventWaitNodeSetEvent(wait, second));
  SHOW(cuGraphEventWaitNodeSetEvent(wait, nullptr));
  SHOW_VALUE(cuGraphEventRecordNodeGetEvent(record, &told), "%d", told == second);
  SHOW(cuGraphInstantiate(&exec, graph, 0));
  SHOW(cuGraphExecEventRecordNodeSetEvent(exec, record, first));
  SHOW(cuGraphExecEventWaitNodeSetEvent(exec, wait, first));
  SHOW(cuGraphExecEventWaitNodeSetEvent(exec, record, first));
  SHOW(cuGraphLaunch(exec, bench.stream));
  SHOW(cuEventSynchronize(first));
  SHOW(cuGraphExecDestroy(exec));
  SHOW(cuGraphDestroy(graph));
  cuEventDestroy(first);
  cuEventDestroy(second);
}

void memory_operation_nodes() {
  Bench bench;
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CUgraphExec exec = nullptr;
  CUstreamBatchMemOpParams operations[2] = {};
  for (unsigned i = 0; i < 2; ++i) {
    operations[i].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    operations[i].writeValue.address = bench.words + 4 * i;
    operations[i].writeValue.value = 11 + i;
  }
  CUDA_BATCH_MEM_OP_NODE_PARAMS params{bench.context, 2, operations, 0}, read{};
  cuGraphCreate(&graph, 0);
  SHOW(cuGraphAddBatchMemOpNode(&node, graph, nullptr, 0, &params));
  SHOW(cuGraphAddBatchMemOpNode(&node, graph, nullptr, 0, nullptr));
  SHOW_VALUE(cuGraphBatchMemOpNodeGetParams(node, &read), "%u %u", read.count,
             read.paramArray[1].writeValue.value);
  operations[1].writeValue.value = 30;
  SHOW(cuGraphBatchMemOpNodeSetParams(node, &params));
  SHOW(cuGraphInstantiate(&exec, graph, 0));
  bench.run("writes", exec);
  operations[0].writeValue.value = 50;
  SHOW(cuGraphExecBatchMemOpNodeSetParams(exec, node, &params));
  SHOW(cuGraphExecBatchMemOpNodeSetParams(exec, node, nullptr));
  bench.run("other writes", exec);
  SHOW(cuGraphExecDestroy(exec));
  SHOW(cuGraphDestroy(graph));
}

}  // namespace

void graph_edits() {
  plain_nodes();
  attributes_of_kernels();
  children_and_clones();
  event_nodes();
  memory_operation_nodes();
}

}  // namespace parity
