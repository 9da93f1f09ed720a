#include "server/softgpu/exec/child_launches.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "server/softgpu/exec/block_run.h"
#include "server/softgpu/exec/grid_state.h"

namespace gpupool::softgpu {
namespace {

constexpr uint32_t kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kTooManyPending = 69, kNotSupported = 801;  // cudaError_t
constexpr uint64_t kTailStream = 3;  // cudaStreamTailLaunch

}  // namespace

ChildLaunches::~ChildLaunches() {
  for (const auto& [address, launch] : buffers_) softgpu_free(nullptr, address);
}

uint64_t ChildLaunches::buffer(const ChildKernels& kernels, uint64_t kernel, const uint32_t* grid, const uint32_t* block,
                               uint32_t shared_bytes) try {
  const auto bytes = kernels.parameter_bytes(kernel);
  if (!bytes) return 0;
  const std::lock_guard lock(mutex_);
  if (buffers_.size() + launched_.size() + tail_.size() >= kMost) return 0;
  const uint64_t address = softgpu_malloc(nullptr, std::max(*bytes, 1u));
  if (address == 0) return 0;
  Launch& launch = buffers_[address];
  launch.kernel = kernel;
  launch.request.params.resize(*bytes);
  std::copy_n(grid, 3, launch.request.grid_dim);
  std::copy_n(block, 3, launch.request.block_dim);
  launch.request.dynamic_shared_bytes = shared_bytes;
  return address;
} catch (const std::bad_alloc&) {
  return 0;
}

uint32_t ChildLaunches::launch(uint64_t buffer, uint64_t stream) try {
  if (buffer == 0) return kTooManyPending;
  const std::lock_guard lock(mutex_);
  const auto found = buffers_.find(buffer);
  if (found == buffers_.end()) return kInvalidValue;
  GridRequest& request = found->second.request;
  std::memcpy(request.params.data(), reinterpret_cast<const void*>(buffer), request.params.size());
  (stream == kTailStream ? tail_ : launched_).push_back(std::move(found->second));
  buffers_.erase(found);
  softgpu_free(nullptr, buffer);
  return kSuccess;
} catch (const std::bad_alloc&) {
  return kOutOfMemory;
}

std::optional<ChildLaunches::Launch> ChildLaunches::next() {
  const std::lock_guard lock(mutex_);
  auto& from = launched_.empty() ? tail_ : launched_;
  if (from.empty()) return std::nullopt;
  Launch launch = std::move(from.front());
  from.pop_front();
  return launch;
}

extern "C" uint64_t softgpu_launch_buffer(ThreadContext* thread, uint64_t kernel, const uint32_t* grid, const uint32_t* block,
                                          uint32_t shared_bytes) {
  Grid& parent = BlockRun::of(thread).grid();
  if (!parent.children) return 0;
  return parent.children->buffer(*parent.request.children, kernel, grid, block, shared_bytes);
}

extern "C" uint32_t softgpu_launch_device(ThreadContext* thread, uint64_t buffer, uint64_t stream) {
  Grid& parent = BlockRun::of(thread).grid();
  return parent.children ? parent.children->launch(buffer, stream) : kNotSupported;
}

}  // namespace gpupool::softgpu
