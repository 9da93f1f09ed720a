// softgpu's configuration, read from SOFTGPU_* and some CUDA_* environment variables. cuInit and softgpu's
// NVML read it once. Not while another thread calls setenv().
#pragma once
#include <cstdint>
#include <string>
#include <variant>

#include "server/softgpu/jit/convergence.h"
#include "server/softgpu/runtime/costs.h"
#include "server/softgpu/runtime/rules.h"

namespace gpupool::softgpu {

struct Config {
  int devices = 1;            // SOFTGPU_DEVICES
  uint64_t memory_bytes = 0;  // SOFTGPU_MEMORY, per device; default: half of the host's memory, at most 4 GiB
  int capability_major = 9;   // SOFTGPU_COMPUTE_CAPABILITY
  int capability_minor = 0;
  unsigned threads = 0;  // SOFTGPU_THREADS, per device and process; 0: one per core
  std::string instance;  // SOFTGPU_INSTANCE; processes of one instance share its devices
  bool log = false;      // SOFTGPU_LOG=1
  Convergence converge_warps = Convergence::found;  // SOFTGPU_CONVERGED_WARPS: 0, 1 or all
  std::string cache;  // SOFTGPU_CACHE: a folder, "off", or "fd:N"; empty: the user's cache folder
  uint64_t cache_bytes = 512ull << 20;  // SOFTGPU_CACHE_SIZE
  Rules rules;                          // SOFTGPU_RULES
  Costs costs;                          // SOFTGPU_COSTS
  uint32_t queue_entries = 1024;  // per hardware queue: SOFTGPU_QUEUE_ENTRIES times CUDA_SCALE_LAUNCH_QUEUES
  unsigned connections = 8;       // hardware queues per context: CUDA_DEVICE_MAX_CONNECTIONS
  uint64_t context_bytes = 0;  // per context: SOFTGPU_CONTEXT_MEMORY; 0: in proportion to the device's memory
  bool launch_blocking = false;  // CUDA_LAUNCH_BLOCKING=1
  bool eager_loading = false;    // CUDA_MODULE_LOADING=EAGER
  bool dirty_memory = false;     // SOFTGPU_DIRTY_MEMORY=1: fills new memory with garbage
};

constexpr int kMaxDevices = 64;
constexpr unsigned kMaxThreads = 1024;
constexpr unsigned kMaxConnections = 32;
constexpr uint32_t kMaxQueueEntries = 1u << 20;
constexpr uint64_t kMinCacheBytes = 1ull << 20;
constexpr uint64_t kMinMemoryBytes = 16ull << 20;

// Returns a one-line error message for the first SOFTGPU_* variable with an invalid value. Invalid values of
// CUDA's own variables are ignored.
std::variant<Config, std::string> read_config();

}  // namespace gpupool::softgpu
