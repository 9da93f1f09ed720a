// Checks launches and makes their operations, for kernel launches and for graphs. Any thread.
#pragma once
#include <cstdint>

#include "protocol/driver/cuda_header.h"
#include "server/softgpu/runtime/library.h"
#include "server/softgpu/runtime/stream.h"

namespace gpupool::softgpu::api {

struct LaunchShape {
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t shared_bytes;  // dynamic
  bool cooperative;
  uint32_t cluster[3] = {0, 0, 0};  // zeros: the launch does not set it
};

// Makes the operation of a launch; copies the parameters. `handle`: of a function or a library kernel.
CUresult make_launch(Context& context, uint64_t handle, const LaunchShape& shape, void** parameters,
                     void** extra, Ref<Op>* op);

// Checks a launch's cluster size (zeros: the kernel's, if it has one) and stores it in `request`, whose grid
// must be set. CUDA_ERROR_INVALID_CLUSTER_SIZE.
CUresult choose_cluster(const Function& function, const uint32_t (&cluster)[3], GridRequest* request);

CUresult read_launch_attributes(const CUlaunchAttribute* attributes, unsigned count, LaunchShape* shape);

}  // namespace gpupool::softgpu::api
