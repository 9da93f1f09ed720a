// The devices that the program sees: those of all servers, as described in the hellos, in the order of the
// servers, filtered and reordered by CUDA_VISIBLE_DEVICES. Made once, at connect; constant afterwards, except
// Device::total_bytes. Thread-safe.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "protocol/control/hello_codec.h"

namespace gpupool::client {

class Session;
struct Context;

struct Device {
  int ordinal = 0;             // as the program numbers it
  Session* session = nullptr;  // session with its server
  int server_ordinal = 0;      // as the worker numbers it
  Context* primary = nullptr;
  std::string name;
  std::string uuid;  // 16 bytes
  std::string pci_bus_id;
  std::atomic<uint64_t> total_bytes{0};  // bytes, as of the last cuMemGetInfo; a quota may change it
  uint64_t granularity = 0;
  std::unordered_map<int, int> attributes;
};

// CUmemAllocationHandleType: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR and (CUDA 12.3) _FABRIC.
constexpr int kFabricHandle = 8;
constexpr int kShareableHandleTypes = 1 | kFabricHandle;

constexpr int kMulticastSupported = 132;  // CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, new in CUDA 12.1

using Devices = std::vector<std::unique_ptr<Device>>;

// Allocation granularity in bytes: as the server says, else CUDA's usual 2 MiB.
uint64_t granularity_of(const hello::Device& described);

struct OfferedDevice {
  Session* session = nullptr;
  int server_ordinal = 0;
  hello::Device description;
};

// `visible`: value of CUDA_VISIBLE_DEVICES; null: not set. As with CUDA, the list ends at the first entry
// that names no device; logs an error unless that entry hides devices on purpose ("", "-1", "none", ...).
Devices make_devices(std::vector<OfferedDevice> offered, const char* visible);

}  // namespace gpupool::client
