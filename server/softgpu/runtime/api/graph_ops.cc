// Checks the parameters of graph nodes and makes the nodes' operations.
#include <algorithm>

#include "server/softgpu/runtime/api/copy.h"
#include "server/softgpu/runtime/api/graph.h"
#include "server/softgpu/runtime/api/launch.h"

namespace gpupool::softgpu::api {

CUresult make_kernel_op(const CUDA_KERNEL_NODE_PARAMS_v1* kernel, uint64_t handle, Ref<Op>* op) {
  Ref<Context> context = current_context();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  // A function runs in its own context, whichever context is current (CUDA_KERNEL_NODE_PARAMS: "ctx is
  // ignored if func is set").
  if (const Ref<Function> function = runtime().handles().find<Function>(handle);
      function && &function->context() != &context->root()) {
    context = Ref<Context>::share(&function->context());
  }
  const LaunchShape shape{{kernel->gridDimX, kernel->gridDimY, kernel->gridDimZ},
                          {kernel->blockDimX, kernel->blockDimY, kernel->blockDimZ},
                          kernel->sharedMemBytes,
                          false};
  return make_launch(*context, handle, shape, kernel->kernelParams, kernel->extra, op);
}

CUresult make_copy_op(const CUDA_MEMCPY3D* copy, Ref<Op>* op) {
  Transfer transfer;
  Side destination, source;
  CUresult result = describe_copy(copy, &transfer, &destination, &source);
  if (result == CUDA_SUCCESS) result = check_transfer(transfer, destination, source, std::nullopt);
  if (result == CUDA_SUCCESS) *op = make_ref<TransferOp>(transfer);
  return result;
}

CUresult make_fill_op(const CUDA_MEMSET_NODE_PARAMS* fill, Ref<Op>* op) {
  if (fill == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t element = fill->elementSize;
  if ((element != 1 && element != 2 && element != 4) || fill->dst % element != 0)
    return CUDA_ERROR_INVALID_VALUE;
  uint64_t bytes;
  if (__builtin_mul_overflow(fill->width * element, std::max<uint64_t>(fill->height, 1), &bytes) ||
      fill->width > SIZE_MAX / 4 || (fill->height > 1 && fill->pitch > SIZE_MAX / fill->height)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Transfer transfer = Transfer::fill(fill->dst, fill->value, fill->elementSize, fill->width);
  transfer.height = std::max<uint64_t>(fill->height, 1);
  transfer.destination_pitch = fill->pitch;
  const CUresult result = check_transfer(transfer, Side::device, Side::device, std::nullopt);
  if (result == CUDA_SUCCESS) *op = make_ref<TransferOp>(transfer);
  return result;
}

CUresult make_host_op(const CUDA_HOST_NODE_PARAMS* host, Ref<Op>* op) {
  if (host == nullptr || host->fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *op = make_ref<HostFunctionOp>(host->fn, host->userData);
  return CUDA_SUCCESS;
}

Ref<Op> with_cooperation(const Ref<Op>& kernel, bool cooperative) {
  const auto& grid = static_cast<const GridOp&>(*kernel);
  GridRequest request = grid.request();
  request.cooperative = cooperative;
  return make_ref<GridOp>(Ref<Function>::share(const_cast<Function*>(&grid.function())), std::move(request),
                          grid.kernel());
}

CUresult copy_kernel_attributes(const Op& from, Ref<Op>* kernel) {
  const auto& source = static_cast<const GridOp&>(from);
  const auto& grid = static_cast<const GridOp&>(**kernel);
  GridRequest request = grid.request();
  request.cooperative = source.request().cooperative;
  uint32_t cluster[3] = {0, 0, 0};  // the function's own
  const auto own = required_cluster(source.function().kernel(), source.function().settings());
  for (size_t d = 0; d < 3; ++d) {
    const uint32_t size = source.request().cluster_dim[d];
    if (size != static_cast<uint32_t>(own[d])) std::copy_n(source.request().cluster_dim, 3, cluster);
    request.cluster_dim[d] = 0;
  }
  if (const CUresult result = choose_cluster(grid.function(), cluster, &request); result != CUDA_SUCCESS)
    return result;
  *kernel = make_ref<GridOp>(Ref<Function>::share(const_cast<Function*>(&grid.function())),
                             std::move(request), grid.kernel());
  return CUDA_SUCCESS;
}

}  // namespace gpupool::softgpu::api
