// Helpers shared by the graph scenarios.
#pragma once
#include <atomic>

#include "tests/e2e/apps/scenario.h"

namespace app::graphs {

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

inline CUgraphExec executable(CUgraph graph) {
  CUgraphExec exec = nullptr;
  OK(cuGraphInstantiate(&exec, graph, 0));
  OK(cuGraphDestroy(graph));
  return exec;
}

inline CUgraph end_capture(CUstream stream) {
  CUgraph graph = nullptr;
  OK(cuStreamEndCapture(stream, &graph));
  return graph;
}

inline size_t node_count(CUgraph graph) {
  size_t count = 0;
  OK(cuGraphGetNodes(graph, nullptr, &count));
  return count;
}

inline void run(CUgraphExec exec, CUstream stream, int times = 1) {
  for (int i = 0; i < times; ++i) OK(cuGraphLaunch(exec, stream));
  OK(cuStreamSynchronize(stream));
}

inline void CUDA_CB add_one(void* counter) {
  static_cast<std::atomic<int>*>(counter)->fetch_add(1);
}

}  // namespace app::graphs
