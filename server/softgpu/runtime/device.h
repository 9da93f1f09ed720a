// One softgpu device as this process sees it: its properties, memory heap, executor, primary context and
// memory pools.
//
// cuInit creates it; it is never destroyed. The executor's threads start with the first kernel. Thread-safe.
#pragma once
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "protocol/driver/cuda_header.h"
#include "server/softgpu/exec/grid.h"
#include "server/softgpu/memory/device_heap.h"
#include "server/softgpu/memory/shared_device.h"
#include "server/softgpu/runtime/config.h"
#include "server/softgpu/runtime/context.h"
#include "server/softgpu/runtime/mem_pool.h"

namespace gpupool::softgpu {

// Limits that the device reports as attributes, and that launches and arrays are checked against.
namespace limits {
constexpr int kMaxGridX = 2147483647, kMaxGridY = 65535, kMaxGridZ = 65535;
constexpr int kMaxBlockX = 1024, kMaxBlockY = 1024, kMaxBlockZ = 64;
constexpr int kMaxThreads = 1024;  // per block
constexpr int kThreadsPerMultiprocessor = 2048;
constexpr int kBlocksPerMultiprocessor = 32;
constexpr int kRegisters = 65536;          // per block and per multiprocessor
constexpr int kSharedPerBlock = 48 << 10;  // bytes
constexpr int kSharedPerBlockOptIn = 227 << 10;
constexpr int kSharedPerMultiprocessor = 228 << 10;
constexpr int kReservedSharedPerBlock = 1 << 10;
constexpr int kParameterBytes = 32764;
// Arrays, textures and surfaces: texels and layers, but pitches and alignments in bytes.
constexpr int kTexture1d = 131072, kTexture2dWidth = 131072, kTexture2dHeight = 65536, kTexture3d = 16384;
constexpr int kTexture3dOther = 8192, kTexture3dOtherDepth = 32768;
constexpr int kLayeredWidth = 32768, kLayers = 2048, kGather = 32768, kCubeWidth = 32768, kCubeLayers = 2046;
constexpr int kSurface1d = 32768, kMipmappedWidth = 32768;
constexpr int kLinear1d = 1 << 28, kLinear2dWidth = 131072, kLinear2dHeight = 65000, kLinear2dPitch = 2097120;
constexpr int kTextureAlignment = 512, kTexturePitchAlignment = 32;
constexpr int kLeastPriority = 0, kGreatestPriority = -5;  // of streams; lower numbers come first
}  // namespace limits

// Derived from the host name, the instance and the ordinal, so it is the same in every process.
CUuuid device_uuid(const Config& config, int ordinal);

// The highest CUdevice_attribute of CUDA 13.0's cuda.h.
constexpr int kNewestAttribute = 147;

class Device {
 public:
  // `index` is the CUdevice that programs use, `ordinal` the device's number in the instance. They differ
  // under CUDA_VISIBLE_DEVICES.
  Device(const Config& config, int index, int ordinal, std::shared_ptr<SharedDevice> shared);

  int index() const { return index_; }
  const std::string& name() const { return name_; }
  const CUuuid& uuid() const { return uuid_; }
  struct PciId {
    int domain, bus, device;
  };
  PciId pci() const { return pci_; }
  int capability_major() const { return config_.capability_major; }
  // True if captured launches make programmatic edges (believed).
  bool has_programmatic_edges() const { return capability_major() >= 9; }
  int capability_minor() const { return config_.capability_minor; }
  uint32_t compute_capability() const {
    return static_cast<uint32_t>(config_.capability_major * 10 + config_.capability_minor);
  }
  int multiprocessors() const { return multiprocessors_; }
  // Returns 0 for features that softgpu lacks, nullopt for numbers that are not attributes.
  std::optional<int> attribute(CUdevice_attribute attribute) const;

  SharedDevice& shared() { return *shared_; }
  DeviceHeap& heap() { return heap_; }
  GridExecutor& executor();

  // Allocates from the heap. If it is full, frees what the memory pools cache and retries once. Returns an
  // address, or nullopt if the device is out of memory.
  std::optional<uint64_t> allocate(uint64_t size);
  // Allocates memory without an address, with the same retry. CUDA_ERROR_OUT_OF_MEMORY if the device is full.
  CUresult create_physical(uint64_t size, std::shared_ptr<Memory>* memory);
  // Device memory that a context reserves for itself, and for local memory of `bytes_per_thread`, in bytes.
  // An 80 GiB GPU's values, scaled to this device's memory (rule context_memory).
  uint64_t context_bytes() const;
  uint64_t local_memory_bytes(uint32_t bytes_per_thread) const;

  Context& primary() { return *primary_; }
  std::mutex primary_mutex;  // guards primary_retained and the primary context's activation
  unsigned primary_retained = 0;

  const Ref<MemoryPool>& default_pool() const { return default_pool_; }
  // The current pool (cuDeviceSetMemPool).
  Ref<MemoryPool> pool() const;
  void set_pool(Ref<MemoryPool> pool);

 private:
  const Config config_;
  const int index_;
  const int multiprocessors_;
  const std::string name_;
  CUuuid uuid_;
  PciId pci_;
  const std::shared_ptr<SharedDevice> shared_;
  DeviceHeap heap_;
  std::once_flag executor_once_;
  std::unique_ptr<GridExecutor> executor_;
  Ref<Context> primary_;
  Ref<MemoryPool> default_pool_;
  mutable std::mutex pool_mutex_;
  Ref<MemoryPool> pool_;
};

}  // namespace gpupool::softgpu
