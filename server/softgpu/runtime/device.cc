#include "server/softgpu/runtime/device.h"

#include <algorithm>

#include "server/softgpu/runtime/identity.h"
#include "server/softgpu/runtime/runtime.h"

namespace gpupool::softgpu {

Device::Device(const Config& config, int index, int ordinal, std::shared_ptr<SharedDevice> shared)
    : config_(config),
      index_(index),
      multiprocessors_(softgpu::multiprocessors(config)),
      name_(kDeviceName),
      uuid_(device_uuid(config, ordinal)),
      shared_(std::move(shared)),
      heap_(shared_) {
  const PciAddress pci = device_pci(config, ordinal);
  pci_ = {pci.domain, pci.bus, pci.slot};
  primary_ = make_ref<Context>(*this, true, 0u);
  primary_->set_handle(runtime().handles().add(primary_));
  default_pool_ = make_ref<MemoryPool>(*this);
  default_pool_->handle = runtime().handles().add(default_pool_);
  pool_ = default_pool_;
}

GridExecutor& Device::executor() {
  std::call_once(executor_once_,
                 [this] { executor_ = GridExecutor::create(config_.threads, &shared_->turns()); });
  return *executor_;
}

std::optional<uint64_t> Device::allocate(uint64_t size) {
  if (const auto address = heap_.allocate(size)) return address;
  if (!runtime().free_cached_memory(*this)) return std::nullopt;
  return heap_.allocate(size);
}

CUresult Device::create_physical(uint64_t size, std::shared_ptr<Memory>* memory) {
  *memory = shared_->allocate(size);
  if (*memory == nullptr && runtime().free_cached_memory(*this)) *memory = shared_->allocate(size);
  return *memory == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

namespace {

// An 80 GiB H100's values (believed): 512 MiB per context, local memory for 132 multiprocessors.
constexpr uint64_t kScaleBytes = 80ull << 30;
constexpr uint64_t kScaleContextBytes = 512ull << 20, kScaleThreads = 132 * limits::kThreadsPerMultiprocessor;

uint64_t scaled(uint64_t bytes, uint64_t memory_bytes) {
  return round_up(static_cast<uint64_t>(static_cast<double>(bytes) * static_cast<double>(memory_bytes) /
                                        static_cast<double>(kScaleBytes)),
                  page_bytes());
}

}  // namespace

uint64_t Device::context_bytes() const {
  return config_.context_bytes != 0 ? config_.context_bytes
                                    : scaled(kScaleContextBytes, shared_->total_bytes());
}

uint64_t Device::local_memory_bytes(uint32_t bytes_per_thread) const {
  const uint64_t threads = static_cast<uint64_t>(multiprocessors_) * limits::kThreadsPerMultiprocessor;
  return std::min(scaled(kScaleThreads * bytes_per_thread, shared_->total_bytes()),
                  round_up(threads * bytes_per_thread, page_bytes()));
}

Ref<MemoryPool> Device::pool() const {
  std::lock_guard guard(pool_mutex_);
  return pool_;
}

void Device::set_pool(Ref<MemoryPool> pool) {
  std::lock_guard guard(pool_mutex_);
  pool_ = std::move(pool);
}

}  // namespace gpupool::softgpu
