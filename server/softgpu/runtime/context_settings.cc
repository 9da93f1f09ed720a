// Limits and peer access of contexts (context.h).
#include "server/softgpu/exec/grid.h"
#include "server/softgpu/runtime/context.h"
#include "server/softgpu/runtime/device.h"
#include "server/softgpu/runtime/runtime.h"

namespace gpupool::softgpu {
namespace {

constexpr size_t kStackBytes = 1024, kPrintfBytes = 1 << 20, kHeapBytes = 8 << 20;

}  // namespace

void Context::reset_settings() {
  limits_.fill(0);
  limits_[CU_LIMIT_STACK_SIZE] = kStackBytes;
  limits_[CU_LIMIT_PRINTF_FIFO_SIZE] = kPrintfBytes;
  limits_[CU_LIMIT_MALLOC_HEAP_SIZE] = kHeapBytes;
  limits_[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
  limits_[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
  limits_[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
  stack_bytes_ = kStackBytes;
  local_bytes_ = kStackBytes;
  cache_config = CU_FUNC_CACHE_PREFER_NONE;
  shared_config = CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE;
  peers_.clear();
}

CUresult Context::limit(CUlimit limit, size_t* value) const {
  if (static_cast<unsigned>(limit) >= CU_LIMIT_MAX) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  std::lock_guard guard(root_->mutex_);
  *value = root_->limits_[limit];
  return CUDA_SUCCESS;
}

CUresult Context::set_limit(CUlimit limit, size_t value) {
  if (root_ != this) return root_->set_limit(limit, value);
  if (runtime().config().rules.enforces(Rule::synchronising_calls)) synchronize_locked();
  std::lock_guard guard(mutex_);
  switch (limit) {
    case CU_LIMIT_STACK_SIZE:
      if (value > 512 << 10) return CUDA_ERROR_INVALID_VALUE;
      value = (value + 15) & ~size_t{15};
      break;
    case CU_LIMIT_MAX_L2_FETCH_GRANULARITY:
      if (value > 128) return CUDA_ERROR_INVALID_VALUE;
      break;
    case CU_LIMIT_PRINTF_FIFO_SIZE:
    case CU_LIMIT_MALLOC_HEAP_SIZE:
    case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH:
    case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT:
    case CU_LIMIT_PERSISTING_L2_CACHE_SIZE: break;
    default: return CUDA_ERROR_UNSUPPORTED_LIMIT;
  }
  if (limit == CU_LIMIT_STACK_SIZE) {
    if (const CUresult result = take_local_memory(static_cast<uint32_t>(value)); result != CUDA_SUCCESS)
      return result;
    stack_bytes_ = static_cast<uint32_t>(value);
  }
  if (limit == CU_LIMIT_PRINTF_FIFO_SIZE || limit == CU_LIMIT_MALLOC_HEAP_SIZE) {
    const bool is_heap = limit == CU_LIMIT_MALLOC_HEAP_SIZE;
    std::shared_ptr<Memory> memory;
    if (const CUresult result = take_for_limit(value, is_heap ? kHeapBytes : kPrintfBytes, &memory);
        result != CUDA_SUCCESS)
      return result;
    if (is_heap && !set_kernel_heap_bytes(value)) return CUDA_ERROR_INVALID_VALUE;
    if (!is_heap) set_printf_fifo_bytes(value);
    (is_heap ? heap_memory_ : printf_memory_) = std::move(memory);
  }
  limits_[limit] = value;
  return CUDA_SUCCESS;
}

// Takes memory for what exceeds the default; the context's own memory includes the default.
CUresult Context::take_for_limit(size_t value, size_t at_first, std::shared_ptr<Memory>* memory) {
  if (value <= at_first || !runtime().config().rules.enforces(Rule::context_memory)) return CUDA_SUCCESS;
  return device_.create_physical(value - at_first, memory);
}

CUresult Context::reserve_local_memory(uint32_t bytes) {
  if (root_ != this) return root_->reserve_local_memory(bytes);
  if (bytes <= local_bytes_.load(std::memory_order_relaxed)) [[likely]]
    return CUDA_SUCCESS;
  if (runtime().config().rules.enforces(Rule::lazy_loading)) synchronize_locked();
  std::lock_guard guard(mutex_);
  return take_local_memory(bytes);
}

CUresult Context::take_local_memory(uint32_t bytes) {
  if (bytes <= local_bytes_) return CUDA_SUCCESS;
  if (runtime().config().rules.enforces(Rule::context_memory)) {
    local_memory_.reset();
    if (const CUresult result = device_.create_physical(device_.local_memory_bytes(bytes), &local_memory_);
        result != CUDA_SUCCESS)
      return result;
  }
  local_bytes_ = bytes;
  return CUDA_SUCCESS;
}

CUresult Context::enable_peer(Context& peer) {
  if (&peer.device() == &device_) return CUDA_ERROR_INVALID_DEVICE;
  std::lock_guard guard(root_->mutex_);
  return root_->peers_.insert(peer.root().handle()).second ? CUDA_SUCCESS
                                                           : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

CUresult Context::disable_peer(Context& peer) {
  std::lock_guard guard(root_->mutex_);
  return root_->peers_.erase(peer.root().handle()) != 0 ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}

bool Context::has_peer(uint64_t handle) const {
  std::lock_guard guard(root_->mutex_);
  return root_->peers_.contains(handle);
}

}  // namespace gpupool::softgpu
