#include "server/softgpu/runtime/device.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <thread>

#include "server/softgpu/runtime/runtime.h"

namespace gpupool::softgpu {
namespace {

// FNV-1a: identities must be the same in every process and on every run.
uint64_t stable_hash(std::string_view text, uint64_t seed) {
  uint64_t hash = 0xcbf29ce484222325ull ^ seed;
  for (const char character : text) hash = (hash ^ static_cast<unsigned char>(character)) * 0x100000001b3ull;
  return hash ^ hash >> 29;
}

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

std::string identity(const Config& config, int ordinal) {
  return host_name() + "/" + config.instance + "/" + std::to_string(ordinal);
}

}  // namespace

CUuuid device_uuid(const Config& config, int ordinal) {
  const uint64_t halves[2] = {stable_hash(identity(config, ordinal), 1),
                              stable_hash(identity(config, ordinal), 2)};
  CUuuid uuid;
  std::memcpy(uuid.bytes, halves, sizeof uuid.bytes);
  return uuid;
}

Device::Device(const Config& config, int index, int ordinal, std::shared_ptr<SharedDevice> shared)
    : config_(config),
      index_(index),
      multiprocessors_(static_cast<int>(config.threads != 0 ? config.threads : std::max(std::thread::hardware_concurrency(), 1u))),
      name_("softgpu (CPU)"),
      uuid_(device_uuid(config, ordinal)),
      shared_(std::move(shared)),
      heap_(shared_) {
  pci_ = {config.instance.empty() ? 0 : static_cast<int>(stable_hash(config.instance, 3) & 0xffff),
          ordinal + 1, 0};
  primary_ = make_ref<Context>(*this, true, 0u);
  primary_->set_handle(runtime().handles().add(primary_));
  default_pool_ = make_ref<MemoryPool>(*this);
  default_pool_->handle = runtime().handles().add(default_pool_);
  pool_ = default_pool_;
}

GridExecutor& Device::executor() {
  std::call_once(executor_once_, [this] { executor_ = GridExecutor::create(config_.threads, &shared_->turns()); });
  return *executor_;
}

std::optional<uint64_t> Device::allocate(uint64_t size) {
  if (const auto address = heap_.allocate(size)) return address;
  if (!runtime().empty_pools(*this)) return std::nullopt;
  return heap_.allocate(size);
}

CUresult Device::create_physical(uint64_t size, std::shared_ptr<Memory>* memory) {
  *memory = shared_->allocate(size);
  if (*memory == nullptr && runtime().empty_pools(*this)) *memory = shared_->allocate(size);
  return *memory == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
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
