// The fake driver's graphs: nodes are executed one after the other in the order in which they were added.
#include <algorithm>
#include <map>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "tests/server/worker/fake_driver.h"

namespace gpupool::worker::test {
namespace {

constexpr uint64_t kFakeCondition = 0xc0d1;

using Work = std::function<CUresult(CUstream)>;

struct FakeGraph;
struct FakeNode {
  Work work;
  std::vector<std::unique_ptr<FakeGraph>> bodies;
  std::vector<CUgraph> lent;
};
struct FakeGraph {
  std::vector<std::unique_ptr<FakeNode>> nodes;
};
struct FakeExecutable {
  std::vector<std::pair<CUgraphNode, Work>> nodes;
  std::map<CUgraphNode, bool> disabled;
};

template <class T>
T real(const char* name) {
  return reinterpret_cast<T>(driver().symbol(name));
}
FakeGraph& graph_of(CUgraph graph) {
  return *reinterpret_cast<FakeGraph*>(graph);
}
FakeExecutable& executable_of(CUgraphExec executable) {
  return *reinterpret_cast<FakeExecutable*>(executable);
}

CUresult create_graph(CUgraph* graph, unsigned) {
  auto* const made = new FakeGraph;
  *graph = reinterpret_cast<CUgraph>(made);
  return driver().locked([&] { return driver().graphs.insert(made), CUDA_SUCCESS; });
}
CUresult destroy_graph(CUgraph graph) {
  const bool known = driver().locked([&] { return driver().graphs.erase(graph) == 1; });
  if (!known) return CUDA_ERROR_INVALID_VALUE;
  delete &graph_of(graph);
  return CUDA_SUCCESS;
}
// A real driver does not check that dependencies are nodes of the same graph; this one counts misuse.
CUresult add(CUgraphNode* node, CUgraph graph, const CUgraphNode* before, size_t count, Work work) {
  auto& nodes = graph_of(graph).nodes;
  driver().locked([&] { return driver().node_dependencies.push_back(count), 0; });
  for (size_t i = 0; i < count; ++i) {
    const bool known = std::any_of(nodes.begin(), nodes.end(), [&](const auto& own) {
      return reinterpret_cast<CUgraphNode>(own.get()) == before[i];
    });
    driver().misused += !known;
  }
  nodes.push_back(std::make_unique<FakeNode>());
  nodes.back()->work = std::move(work);
  *node = reinterpret_cast<CUgraphNode>(nodes.back().get());
  return CUDA_SUCCESS;
}

Work kernel_work(const CUDA_KERNEL_NODE_PARAMS* params) {
  const auto* const extra = params->extra;
  std::vector<std::byte> bytes;
  if (extra)
    bytes.assign(static_cast<std::byte*>(extra[1]),
                 static_cast<std::byte*>(extra[1]) + *static_cast<size_t*>(extra[3]));
  return [function = params->func ? params->func : reinterpret_cast<CUfunction>(params->kern),
          grid = params->gridDimX, bytes](CUstream stream) mutable {
    size_t size = bytes.size();
    void* packed[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, bytes.data(), CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                      CU_LAUNCH_PARAM_END};
    return real<decltype(&cuLaunchKernel)>("cuLaunchKernel")(function, grid, 1, 1, 1, 1, 1, 0, stream,
                                                             nullptr, size ? packed : nullptr);
  };
}
Work fill_work(const CUDA_MEMSET_NODE_PARAMS* params) {
  return [params = *params](CUstream stream) {
    return real<decltype(&cuMemsetD8Async)>("cuMemsetD8Async")(
        params.dst, static_cast<unsigned char>(params.value), params.width, stream);
  };
}
Work host_work(const CUDA_HOST_NODE_PARAMS* params) {
  driver().locked([] { return ++driver().host_nodes; });
  return [params = *params](CUstream stream) {
    return real<decltype(&cuLaunchHostFunc)>("cuLaunchHostFunc")(stream, params.fn, params.userData);
  };
}
Work record_work(CUevent event) {
  return [event](CUstream stream) { return real<decltype(&cuEventRecord)>("cuEventRecord")(event, stream); };
}
Work wait_work(CUevent event) {
  return [event](CUstream stream) {
    return real<decltype(&cuStreamWaitEvent)>("cuStreamWaitEvent")(stream, event, 0);
  };
}

CUresult add_kernel(CUgraphNode* node, CUgraph graph, const CUgraphNode* before, size_t count,
                    const CUDA_KERNEL_NODE_PARAMS* params) {
  return add(node, graph, before, count, kernel_work(params));
}
CUresult add_fill(CUgraphNode* node, CUgraph graph, const CUgraphNode* before, size_t count,
                  const CUDA_MEMSET_NODE_PARAMS* params, CUcontext) {
  return add(node, graph, before, count, fill_work(params));
}
CUresult add_copy(CUgraphNode* node, CUgraph graph, const CUgraphNode* before, size_t count,
                  const CUDA_MEMCPY3D*, CUcontext) {
  return add(node, graph, before, count, [](CUstream) { return CUDA_SUCCESS; });
}
CUresult add_host(CUgraphNode* node, CUgraph graph, const CUgraphNode* before, size_t count,
                  const CUDA_HOST_NODE_PARAMS* params) {
  return add(node, graph, before, count, host_work(params));
}
CUresult add_empty(CUgraphNode* node, CUgraph graph, const CUgraphNode* before, size_t count) {
  return add(node, graph, before, count, [](CUstream) { return CUDA_SUCCESS; });
}
CUresult add_record(CUgraphNode* node, CUgraph graph, const CUgraphNode* before, size_t count,
                    CUevent event) {
  return add(node, graph, before, count, record_work(event));
}
CUresult add_wait(CUgraphNode* node, CUgraph graph, const CUgraphNode* before, size_t count, CUevent event) {
  return add(node, graph, before, count, wait_work(event));
}
CUresult create_condition(CUgraphConditionalHandle* handle, CUgraph, CUcontext, unsigned, unsigned) {
  return *handle = kFakeCondition, CUDA_SUCCESS;
}
CUresult connect(CUgraph, const CUgraphNode* from, const CUgraphNode* to, const CUgraphEdgeData* data,
                 size_t count) {
  return driver().locked([&] {
    if (data && driver().refuses_edge_data) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i)
      driver().graph_edges.push_back({from[i], to[i], data ? data[i] : CUgraphEdgeData{}});
    return CUDA_SUCCESS;
  });
}
CUresult connect_fully(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  return connect(graph, from, to, nullptr, count);
}
// Conditional nodes; their bodies are never executed.
CUresult add_node(CUgraphNode* node, CUgraph graph, const CUgraphNode* before, const CUgraphEdgeData*,
                  size_t count, CUgraphNodeParams* params) {
  if (params->type != CU_GRAPH_NODE_TYPE_CONDITIONAL || params->conditional.handle != kFakeCondition)
    return CUDA_ERROR_INVALID_VALUE;
  (void)add(node, graph, before, count, [](CUstream) { return CUDA_SUCCESS; });
  FakeNode& made = *graph_of(graph).nodes.back();
  for (unsigned i = 0; i < params->conditional.size; ++i) {
    made.bodies.push_back(std::make_unique<FakeGraph>());
    made.lent.push_back(reinterpret_cast<CUgraph>(made.bodies.back().get()));
  }
  params->conditional.phGraph_out = made.lent.data();
  return CUDA_SUCCESS;
}
CUresult instantiate(CUgraphExec* executable, CUgraph graph, unsigned long long) {
  auto* const made = new FakeExecutable;
  for (const auto& node : graph_of(graph).nodes)
    made->nodes.emplace_back(reinterpret_cast<CUgraphNode>(node.get()), node->work);
  *executable = reinterpret_cast<CUgraphExec>(made);
  return driver().locked([&] { return driver().executables.insert(made), CUDA_SUCCESS; });
}
CUresult destroy_executable(CUgraphExec executable) {
  const bool known = driver().locked([&] { return driver().executables.erase(executable) == 1; });
  if (!known) return CUDA_ERROR_INVALID_VALUE;
  delete &executable_of(executable);
  return CUDA_SUCCESS;
}
CUresult launch_graph(CUgraphExec handle, CUstream stream) {
  FakeExecutable& executable = executable_of(handle);
  const CUresult refused = driver().locked([&] {
    driver().graph_launches.push_back(executable.nodes.size());
    return std::exchange(driver().next_graph_launch, CUDA_SUCCESS);
  });
  if (refused != CUDA_SUCCESS) return refused;
  for (auto& [node, work] : executable.nodes) {
    if (executable.disabled[node]) continue;
    if (const CUresult result = work(stream); result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}
CUresult set(CUgraphExec handle, CUgraphNode node, Work work) {
  for (auto& [known, before] : executable_of(handle).nodes) {
    if (known == node) before = work;
  }
  return CUDA_SUCCESS;
}
CUresult set_kernel(CUgraphExec executable, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* params) {
  return set(executable, node, kernel_work(params));
}
CUresult set_fill(CUgraphExec executable, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* params,
                  CUcontext) {
  return set(executable, node, fill_work(params));
}
CUresult set_host(CUgraphExec executable, CUgraphNode node, const CUDA_HOST_NODE_PARAMS* params) {
  return set(executable, node, host_work(params));
}
CUresult enable(CUgraphExec executable, CUgraphNode node, unsigned enabled) {
  executable_of(executable).disabled[node] = enabled == 0;
  return CUDA_SUCCESS;
}
CUresult update(CUgraphExec handle, CUgraph graph, CUgraphExecUpdateResultInfo* info) {
  auto& nodes = executable_of(handle).nodes;
  if (nodes.size() != graph_of(graph).nodes.size() ||
      driver().locked([&] { return driver().refused_updates.contains(nodes.size()); })) {
    info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  }
  for (size_t i = 0; i < nodes.size(); ++i) nodes[i].second = graph_of(graph).nodes[i]->work;
  info->result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
  return CUDA_SUCCESS;
}

const std::unordered_map<std::string_view, void*> kGraphSymbols = {
    FAKE(cuGraphCreate, create_graph),
    FAKE(cuGraphDestroy, destroy_graph),
    FAKE(cuGraphAddKernelNode_v2, add_kernel),
    FAKE(cuGraphAddMemsetNode, add_fill),
    FAKE(cuGraphAddMemcpyNode, add_copy),
    FAKE(cuGraphAddHostNode, add_host),
    FAKE(cuGraphAddEmptyNode, add_empty),
    FAKE(cuGraphConditionalHandleCreate, create_condition),
    FAKE(cuGraphAddNode_v2, add_node),
    FAKE(cuGraphAddDependencies_v2, connect),
    FAKE(cuGraphAddDependencies, connect_fully),
    FAKE(cuGraphAddEventRecordNode, add_record),
    FAKE(cuGraphAddEventWaitNode, add_wait),
    FAKE(cuGraphInstantiateWithFlags, instantiate),
    FAKE(cuGraphExecDestroy, destroy_executable),
    FAKE(cuGraphLaunch, launch_graph),
    FAKE(cuGraphExecKernelNodeSetParams_v2, set_kernel),
    FAKE(cuGraphExecMemsetNodeSetParams, set_fill),
    FAKE(cuGraphExecHostNodeSetParams, set_host),
    FAKE(cuGraphNodeSetEnabled, enable),
    FAKE(cuGraphExecUpdate_v2, update),
};

}  // namespace

void* fake_graph_symbol(std::string_view name) {
  const auto found = kGraphSymbols.find(name);
  return found == kGraphSymbols.end() ? nullptr : found->second;
}

}  // namespace gpupool::worker::test
