// Function's implementation of KernelServices (exec/kernel_services.h), for kernels that call the CUDA device
// runtime.
#include <algorithm>

#include "server/softgpu/runtime/device.h"
#include "server/softgpu/runtime/module.h"
#include "server/softgpu/runtime/runtime.h"

namespace gpupool::softgpu {

std::optional<uint32_t> Function::parameter_bytes(uint64_t kernel) const {
  const KernelInfo* const info = program_->kernel_at(kernel);
  return info == nullptr ? std::nullopt : std::optional(info->parameter_bytes);
}

bool Function::fits(uint64_t kernel, const GridRequest& request) const {
  const KernelInfo* const info = program_->kernel_at(kernel);
  if (info == nullptr || info->needs_cluster || info->blocks_are_clusters) return false;
  const uint64_t threads = uint64_t{request.block_dim[0]} * request.block_dim[1] * request.block_dim[2];
  const auto most_shared = static_cast<uint32_t>(max_dynamic_shared(*info, FunctionSettings()));
  if (threads == 0 || threads > info->max_threads || request.dynamic_shared_bytes > most_shared) return false;
  for (size_t d = 0; d < 3; ++d) {
    if (request.grid_dim[d] == 0 || request.grid_dim[d] > (d == 0 ? INT32_MAX : 65535)) return false;
    if (info->required_block[0] != 0 && std::max(info->required_block[d], 1u) != request.block_dim[d])
      return false;
    if (info->required_cluster[d] != 0 && request.grid_dim[d] % info->required_cluster[d] != 0) return false;
  }
  return true;
}

bool Function::prepare(uint64_t kernel, GridRequest& request) const {
  const KernelInfo* const info = program_->kernel_at(kernel);
  if (info == nullptr) return false;
  auto code = program_->code(*info);
  if (!std::holds_alternative<KernelCode>(code)) return false;
  request.code = std::get<KernelCode>(code);
  request.kernel_name = info->name;
  request.static_shared_bytes = info->static_shared_bytes;
  request.local_bytes = info->local_bytes;
  request.stack_bytes = context_->stack_bytes();
  request.module_data = data_address_;
  for (size_t d = 0; d < 3; ++d) request.cluster_dim[d] = info->required_cluster[d];
  return true;
}

std::optional<int> Function::kernel_attribute(uint64_t kernel, int attribute) const {
  const KernelInfo* const info = program_->kernel_at(kernel);
  int value = 0;
  if (info == nullptr ||
      softgpu::kernel_attribute(*info, FunctionSettings(), context_->device().compute_capability(),
                                static_cast<CUfunction_attribute>(attribute), &value) != CUDA_SUCCESS) {
    return std::nullopt;
  }
  return value;
}

std::optional<int> Function::blocks_per_multiprocessor(uint64_t kernel, int threads,
                                                       uint64_t dynamic_shared) const {
  const KernelInfo* const info = program_->kernel_at(kernel);
  if (info == nullptr) return std::nullopt;
  return softgpu::blocks_per_multiprocessor(*info, FunctionSettings(), threads, dynamic_shared);
}

int Function::device() const {
  return context_->device().index();
}

int Function::device_count() const {
  return static_cast<int>(runtime().devices().size());
}

std::optional<int> Function::device_attribute(int device, int attribute) const {
  return runtime().devices()[static_cast<size_t>(device)]->attribute(
      static_cast<CUdevice_attribute>(attribute));
}

std::optional<uint64_t> Function::limit(int limit) const {
  size_t value = 0;
  if (context_->limit(static_cast<CUlimit>(limit), &value) != CUDA_SUCCESS) return std::nullopt;
  return value;
}

int Function::version() const {
  return CUDA_VERSION;
}

}  // namespace gpupool::softgpu
