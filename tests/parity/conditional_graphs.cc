// Graphs with conditional nodes, whose kernels decide which bodies run and how often.
#include <cstring>
#include <vector>

#include "tests/parity/show.h"

namespace parity {
#if CUDA_VERSION >= 12080
namespace {

// count_down decrements a counter and sets the condition to the new value. put adds a value. decide sets the
// condition to a value from memory.
const char kKernels[] =
    ".version 8.0\n.target sm_70\n.address_size 64\n"
    ".extern .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value);\n"
    ".visible .entry count_down(.param .u64 condition, .param .u64 left) {\n"
    "  .reg .b32 %r<3>; .reg .b64 %d<3>;\n"
    "  ld.param.u64 %d1, [condition];\n  ld.param.u64 %d2, [left];\n"
    "  ld.global.u32 %r1, [%d2];\n  sub.u32 %r2, %r1, 1;\n  st.global.u32 [%d2], %r2;\n"
    "  { .param .b64 h; .param .b32 v; st.param.b64 [h], %d1; st.param.b32 [v], %r2; call.uni "
    "cudaGraphSetConditional, (h, v); }\n"
    "  ret;\n}\n"
    ".visible .entry put(.param .u64 at, .param .u32 value) {\n"
    "  .reg .b32 %r<3>; .reg .b64 %d<2>;\n"
    "  ld.param.u64 %d1, [at];\n  ld.param.u32 %r1, [value];\n"
    "  ld.global.u32 %r2, [%d1];\n  add.u32 %r2, %r2, %r1;\n  st.global.u32 [%d1], %r2;\n  ret;\n}\n"
    ".visible .entry decide(.param .u64 condition, .param .u64 from) {\n"
    "  .reg .b32 %r<2>; .reg .b64 %d<3>;\n"
    "  ld.param.u64 %d1, [condition];\n  ld.param.u64 %d2, [from];\n  ld.global.u32 %r1, [%d2];\n"
    "  { .param .b64 h; .param .b32 v; st.param.b64 [h], %d1; st.param.b32 [v], %r1; call.uni "
    "cudaGraphSetConditional, (h, v); }\n"
    "  ret;\n}\n";

CUmodule module = nullptr;

// NVIDIA's driver needs a context for a condition.
CUcontext current() {
  CUcontext context = nullptr;
  cuCtxGetCurrent(&context);
  return context;
}

template <class... A>
CUgraphNode add_kernel(CUgraph graph, const char* name, std::vector<CUgraphNode> before, A... arguments) {
  CUfunction function = nullptr;
  CUgraphNode node = nullptr;
  SHOW(cuModuleGetFunction(&function, module, name));
  void* parameters[] = {&arguments...};
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_KERNEL;
  params.kernel.func = function;
  params.kernel.gridDimX = params.kernel.gridDimY = params.kernel.gridDimZ = 1;
  params.kernel.blockDimX = params.kernel.blockDimY = params.kernel.blockDimZ = 1;
  params.kernel.kernelParams = parameters;
  SHOW(cuGraphAddNode_v2(&node, graph, before.data(), nullptr, before.size(), &params));
  return node;
}

CUresult add_conditional(CUgraph graph, std::vector<CUgraphNode> before, CUgraphConditionalHandle condition,
                         CUgraphConditionalNodeType type, unsigned size, CUgraph* bodies, CUgraphNode* node) {
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  params.conditional.handle = condition;
  params.conditional.type = type;
  params.conditional.size = size;
  params.conditional.ctx = current();
  const CUresult result = cuGraphAddNode_v2(node, graph, before.data(), nullptr, before.size(), &params);
  for (unsigned i = 0; result == CUDA_SUCCESS && i < size; ++i) bodies[i] = params.conditional.phGraph_out[i];
  return result;
}

void show_launch(const char* what, CUgraphExec exec, CUdeviceptr at, std::vector<unsigned> values) {
  const size_t bytes = values.size() * sizeof(unsigned);
  std::printf("%s\n", what);
  SHOW(cuMemcpyHtoD(at, values.data(), bytes));
  SHOW(cuGraphLaunch(exec, nullptr));
  SHOW(cuCtxSynchronize());
  SHOW(cuMemcpyDtoH(values.data(), at, bytes));
  for (const unsigned value : values) std::printf(" %u", value);
  std::printf("\n");
}

void loop(CUdeviceptr at) {
  CUgraph graph = nullptr, body = nullptr, copy = nullptr, other = nullptr;
  CUgraphNode node = nullptr;
  CUgraphExec exec = nullptr;
  CUgraphConditionalHandle condition = 0;
  SHOW(cuGraphCreate(&graph, 0));
  SHOW(cuGraphConditionalHandleCreate(nullptr, graph, current(), 1, CU_GRAPH_COND_ASSIGN_DEFAULT));
  SHOW(cuGraphConditionalHandleCreate(&condition, nullptr, current(), 1, CU_GRAPH_COND_ASSIGN_DEFAULT));
  SHOW(cuGraphConditionalHandleCreate(&condition, graph, current(), 1, 2));
  SHOW(cuGraphConditionalHandleCreate(&condition, graph, current(), 1, CU_GRAPH_COND_ASSIGN_DEFAULT));
  SHOW(add_conditional(graph, {}, 12345, CU_GRAPH_COND_TYPE_WHILE, 1, &body, &node));
  SHOW(add_conditional(graph, {}, condition, CU_GRAPH_COND_TYPE_WHILE, 2, &body, &node));
  SHOW(add_conditional(graph, {}, condition, CU_GRAPH_COND_TYPE_IF, 3, &body, &node));
  SHOW(add_conditional(graph, {}, condition, CU_GRAPH_COND_TYPE_SWITCH, 0, &body, &node));
  SHOW(add_conditional(graph, {}, condition, static_cast<CUgraphConditionalNodeType>(7), 1, &body, &node));
  const CUgraphNode first = add_kernel(graph, "put", {}, at + 4, 1000u);
  SHOW(add_conditional(graph, {first}, condition, CU_GRAPH_COND_TYPE_WHILE, 1, &body, &node));
  CUgraphNodeType type{};
  SHOW_VALUE(cuGraphNodeGetType(node, &type), "%d", type);
  const CUgraphNode inner = add_kernel(body, "put", {}, at + 4, 1u);
  (void)add_kernel(body, "count_down", {inner}, condition, at);
  (void)add_kernel(graph, "put", {node}, at + 8, 5u);
  SHOW(cuGraphClone(&copy, graph));
  SHOW(cuGraphCreate(&other, 0));
  SHOW(cuGraphAddChildGraphNode(&node, other, nullptr, 0, graph));
  SHOW(cuGraphDestroy(other));
  if (SHOW(cuGraphInstantiateWithFlags(&exec, graph, 0)) == CUDA_SUCCESS) {
    show_launch("ten rounds", exec, at, {10, 0, 0});
    show_launch("once more, five", exec, at, {5, 7, 0});
    SHOW(cuGraphExecDestroy(exec));
  }
  SHOW(cuGraphDestroy(graph));
}

void decisions(CUdeviceptr at) {
  CUgraph graph = nullptr, either[2] = {}, choice[3] = {}, nested = nullptr;
  CUgraphNode node = nullptr;
  CUgraphExec exec = nullptr;
  CUgraphConditionalHandle first = 0, second = 0, third = 0;
  SHOW(cuGraphCreate(&graph, 0));
  SHOW(cuGraphConditionalHandleCreate(&first, graph, current(), 0, 0));
  SHOW(cuGraphConditionalHandleCreate(&second, graph, current(), 0, 0));
  CUgraphNode last = add_kernel(graph, "decide", {}, first, at);
  SHOW(add_conditional(graph, {last}, first, CU_GRAPH_COND_TYPE_IF, 2, either, &node));
  (void)add_kernel(either[0], "put", {}, at + 8, 1u);
  (void)add_kernel(either[1], "put", {}, at + 8, 2u);
  last = add_kernel(graph, "decide", {node}, second, at + 4);
  SHOW(add_conditional(graph, {last}, second, CU_GRAPH_COND_TYPE_SWITCH, 3, choice, &node));
  for (unsigned i = 0; i < 2; ++i) (void)add_kernel(choice[i], "put", {}, at + 12, 10 * (i + 1));
  // The third body has a nested conditional node, with a condition of that body.
  SHOW(cuGraphConditionalHandleCreate(&third, choice[2], current(), 1, CU_GRAPH_COND_ASSIGN_DEFAULT));
  SHOW(add_conditional(choice[2], {}, third, CU_GRAPH_COND_TYPE_WHILE, 1, &nested, &node));
  last = add_kernel(nested, "put", {}, at + 12, 100u);
  (void)add_kernel(nested, "count_down", {last}, third, at + 16);
  if (SHOW(cuGraphInstantiateWithFlags(&exec, graph, 0)) == CUDA_SUCCESS) {
    show_launch("yes and first", exec, at, {1, 0, 0, 0, 0});
    show_launch("no and second", exec, at, {0, 1, 0, 0, 0});
    show_launch("yes and third, four times", exec, at, {77, 2, 0, 0, 4});
    show_launch("none", exec, at, {0, 3, 0, 0, 0});
    CUgraphExecUpdateResultInfo info{};
    SHOW_VALUE(cuGraphExecUpdate(exec, graph, &info), "%d", info.result);
    show_launch("updated by itself", exec, at, {1, 1, 0, 0, 0});
    SHOW(cuGraphExecDestroy(exec));
  }
  // A node type that is not allowed in a body.
  const CUDA_HOST_NODE_PARAMS host{[](void*) {}, nullptr};
  SHOW(cuGraphAddHostNode(&node, either[0], nullptr, 0, &host));
  SHOW(cuGraphInstantiateWithFlags(&exec, graph, 0));
  SHOW(cuGraphDestroy(graph));
}

}  // namespace

void conditional_graphs() {
  CUdeviceptr at = 0;
  SHOW(cuModuleLoadData(&module, kKernels));
  SHOW(cuMemAlloc(&at, 4096));
  loop(at);
  decisions(at);
  SHOW(cuMemFree(at));
  SHOW(cuModuleUnload(module));
}
#else
void conditional_graphs() {}
#endif
}  // namespace parity
