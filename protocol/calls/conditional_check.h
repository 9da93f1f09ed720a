// Checks how many bodies a conditional node may have, for the client library and softgpu. Pure; any thread.
#pragma once
#include "protocol/driver/cuda_header.h"

namespace gpupool::cuda {

// `type` is a CUgraphConditionalNodeType, as a number because older headers lack some.
constexpr bool may_have_bodies(unsigned type, unsigned bodies) {
  switch (type) {
    case 0: return bodies == 1 || (bodies == 2 && CUDA_VERSION >= 12080);  // CU_GRAPH_COND_TYPE_IF
    case 1: return bodies == 1;                                            // _WHILE
    case 2: return CUDA_VERSION >= 12080 && bodies != 0;                   // _SWITCH
    default: return false;
  }
}

}  // namespace gpupool::cuda
