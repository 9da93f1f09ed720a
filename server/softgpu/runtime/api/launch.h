// Checking a launch and making the operation for it; used by plain launches and by graphs.
#pragma once
#include <cstdint>

#include "protocol/cuda/cuda_header.h"
#include "server/softgpu/runtime/library.h"
#include "server/softgpu/runtime/stream.h"

namespace gpupool::softgpu::api {

struct LaunchShape {
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t shared_bytes;  // dynamic
  bool cooperative;
  uint32_t cluster[3] = {0, 0, 0};  // zeros: the launch names none
};

// Copies the parameters. `handle`: a function's or a kernel's.
CUresult make_launch(Context& context, uint64_t handle, const LaunchShape& shape, void** parameters,
                     void** extra, Ref<Op>* op);

// Checks a cluster (zeros: the launch names none, the kernel may) and puts its size into `request`, whose grid is set.
CUresult choose_cluster(const Function& function, const uint32_t (&cluster)[3], GridRequest* request);

CUresult read_launch_attributes(const CUlaunchAttribute* attributes, unsigned count, LaunchShape* shape);

}  // namespace gpupool::softgpu::api
