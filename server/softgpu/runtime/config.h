// What the environment asks of softgpu: how many devices, how big, of which compute capability, of which
// instance.
#pragma once
#include <cstdint>
#include <string>
#include <variant>

namespace gpupool::softgpu {

struct Config {
  int devices = 1;            // SOFTGPU_DEVICES
  uint64_t memory_bytes = 0;  // SOFTGPU_MEMORY, per device; default: half of the host's memory, at most 4 GiB
  int capability_major = 9;   // SOFTGPU_COMPUTE_CAPABILITY
  int capability_minor = 0;
  unsigned threads = 0;       // SOFTGPU_THREADS, per device and process; 0: one per core
  std::string instance;  // SOFTGPU_INSTANCE
  bool log = false;      // SOFTGPU_LOG=1
  bool dirty_memory = false;  // SOFTGPU_DIRTY_MEMORY=1: new memory is full of garbage
};

constexpr int kMaxDevices = 64;
constexpr unsigned kMaxThreads = 1024;
constexpr uint64_t kMinMemoryBytes = 16ull << 20;

// Reads the environment; a value that makes no sense gives one line naming the variable.
std::variant<Config, std::string> read_config();

}  // namespace gpupool::softgpu
