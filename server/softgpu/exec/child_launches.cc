#include "server/softgpu/exec/child_launches.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "server/softgpu/exec/abi.h"

namespace gpupool::softgpu {
namespace {

constexpr uint64_t kTailStream = 3, kLastBuiltinStream = 4;  // cudaStreamTailLaunch, cudaStreamFireAndForget
constexpr uint64_t kFirstHandle = 0x1000;                    // bit 0 of a handle is its Kind
constexpr size_t kMaxHandles = 65536;
constexpr uint64_t kMaxParameterBytes = 32764;

void set_shape(GridRequest& request, const ChildLaunches::Shape& shape) {
  std::copy_n(shape.grid, 3, request.grid_dim);
  std::copy_n(shape.block, 3, request.block_dim);
  request.dynamic_shared_bytes = shape.shared_bytes;
}

RuntimeError check(const KernelServices& services, uint64_t kernel, const GridRequest& request,
                   uint32_t* parameter_bytes) {
  const auto bytes = services.parameter_bytes(kernel);
  if (!bytes) return RuntimeError::invalid_function;
  *parameter_bytes = *bytes;
  return services.fits(kernel, request) ? RuntimeError::success : RuntimeError::invalid_configuration;
}

}  // namespace

ChildLaunches::~ChildLaunches() {
  for (const auto& [address, launch] : buffers_) softgpu_free(nullptr, address);
}

RuntimeError ChildLaunches::buffer(uint64_t bytes, uint64_t* address) try {
  *address = 0;
  if (bytes > kMaxParameterBytes) return RuntimeError::invalid_value;
  const std::lock_guard lock(mutex_);
  if (full()) return RuntimeError::too_many_pending;
  Launch launch;
  launch.request.params.resize(bytes);
  const uint64_t memory = softgpu_malloc(nullptr, std::max<uint64_t>(bytes, 1));
  if (memory == 0) return RuntimeError::out_of_memory;
  buffers_.emplace(memory, std::move(launch));
  *address = memory;
  return RuntimeError::success;
} catch (const std::bad_alloc&) {
  return RuntimeError::out_of_memory;
}

RuntimeError ChildLaunches::buffer(const KernelServices& services, uint64_t kernel, const Shape& shape,
                                   uint64_t* address) {
  *address = 0;
  GridRequest request;
  set_shape(request, shape);
  uint32_t bytes = 0;
  if (const RuntimeError error = check(services, kernel, request, &bytes); error != RuntimeError::success)
    return error;
  if (const RuntimeError error = buffer(bytes, address); error != RuntimeError::success) return error;
  const std::lock_guard lock(mutex_);
  Launch& launch = buffers_[*address];
  launch.kernel = kernel;
  set_shape(launch.request, shape);
  return RuntimeError::success;
}

RuntimeError ChildLaunches::put(Launch launch, uint64_t stream) {
  (stream == kTailStream ? tail_ : launched_).push_back(std::move(launch));
  return RuntimeError::success;
}

RuntimeError ChildLaunches::launch(uint64_t address, uint64_t stream) try {
  const std::lock_guard lock(mutex_);
  if (!knows_locked(Kind::stream, stream)) return RuntimeError::invalid_handle;
  const auto found = buffers_.find(address);
  if (found == buffers_.end() || found->second.kernel == 0) return RuntimeError::invalid_value;
  GridRequest& request = found->second.request;
  std::memcpy(request.params.data(), reinterpret_cast<const void*>(address), request.params.size());
  put(std::move(found->second), stream);
  buffers_.erase(found);
  softgpu_free(nullptr, address);
  return RuntimeError::success;
} catch (const std::bad_alloc&) {
  return RuntimeError::out_of_memory;
}

RuntimeError ChildLaunches::launch(const KernelServices& services, uint64_t kernel, const Shape& shape,
                                   uint64_t address, uint64_t stream) try {
  GridRequest request;
  set_shape(request, shape);
  uint32_t bytes = 0;
  if (const RuntimeError error = check(services, kernel, request, &bytes); error != RuntimeError::success)
    return error;
  {
    const std::lock_guard lock(mutex_);
    const auto found = buffers_.find(address);
    if (found == buffers_.end() || found->second.request.params.size() < bytes)
      return RuntimeError::invalid_value;
    found->second.kernel = kernel;
    found->second.request.params.resize(bytes);
    set_shape(found->second.request, shape);
  }
  return launch(address, stream);
} catch (const std::bad_alloc&) {
  return RuntimeError::out_of_memory;
}

RuntimeError ChildLaunches::launch(GridRequest request, uint64_t stream) try {
  const std::lock_guard lock(mutex_);
  if (!knows_locked(Kind::stream, stream)) return RuntimeError::invalid_handle;
  if (full()) return RuntimeError::too_many_pending;
  return put({0, std::move(request)}, stream);
} catch (const std::bad_alloc&) {
  return RuntimeError::out_of_memory;
}

std::optional<ChildLaunches::Launch> ChildLaunches::next() {
  const std::lock_guard lock(mutex_);
  auto& from = launched_.empty() ? tail_ : launched_;
  if (from.empty()) return std::nullopt;
  Launch launch = std::move(from.front());
  from.pop_front();
  return launch;
}

RuntimeError ChildLaunches::create(Kind kind, uint64_t* handle) try {
  const std::lock_guard lock(mutex_);
  if (handles_.size() >= kMaxHandles) return RuntimeError::out_of_memory;
  *handle = kFirstHandle + 2 * ++last_handle_ + static_cast<uint64_t>(kind);
  handles_.insert(*handle);
  return RuntimeError::success;
} catch (const std::bad_alloc&) {
  return RuntimeError::out_of_memory;
}

RuntimeError ChildLaunches::destroy(Kind kind, uint64_t handle) {
  const std::lock_guard lock(mutex_);
  const bool known = handle % 2 == static_cast<uint64_t>(kind) && handles_.erase(handle) != 0;
  return known ? RuntimeError::success : RuntimeError::invalid_handle;
}

bool ChildLaunches::knows_locked(Kind kind, uint64_t handle) const {
  if (kind == Kind::stream && handle <= kLastBuiltinStream) return true;
  return handle % 2 == static_cast<uint64_t>(kind) && handles_.contains(handle);
}

bool ChildLaunches::knows(Kind kind, uint64_t handle) {
  const std::lock_guard lock(mutex_);
  return knows_locked(kind, handle);
}

}  // namespace gpupool::softgpu
