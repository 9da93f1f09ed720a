// The devices that the program sees: what the server told in its hello, in the order CUDA_VISIBLE_DEVICES asks for.
// Constant after start; any thread.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "protocol/control/hello_codec.h"

namespace gpupool::client {

struct Device {
  int ordinal = 0;         // as the program numbers it
  int server_ordinal = 0;  // as the worker numbers it
  std::string name;
  std::string uuid;  // 16 bytes
  std::string pci_bus_id;
  uint64_t total_bytes = 0;
  // What the client believes is free; refreshed by cuMemGetInfo. While an allocation is small against it, nobody waits
  // for the server's word.
  std::atomic<int64_t> free_bytes{0};
  uint64_t granularity = 0;
  int least_priority = 0;
  int greatest_priority = 0;
  std::unordered_map<int, int> attributes;
};

using Devices = std::vector<std::unique_ptr<Device>>;

// `visible`: the value of CUDA_VISIBLE_DEVICES, null when it is not set. As with CUDA, the list ends at the first entry that
// names no device.
Devices make_devices(const std::vector<hello::Device>& from_server, const char* visible);

}  // namespace gpupool::client
