// The devices that the program sees: what the servers told in their hellos, numbered through in the order of the servers,
// in the order CUDA_VISIBLE_DEVICES asks for.
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

class Session;
struct Context;

struct Device {
  int ordinal = 0;             // as the program numbers it
  Session* session = nullptr;  // its server
  int server_ordinal = 0;      // as the worker numbers it
  Context* primary = nullptr;
  std::string name;
  std::string uuid;  // 16 bytes
  std::string pci_bus_id;
  std::atomic<uint64_t> total_bytes{0};  // as of the last cuMemGetInfo: a quota may change
  uint64_t granularity = 0;
  std::unordered_map<int, int> attributes;
};

// CUmemAllocationHandleType: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR and (CUDA 12.3) _FABRIC.
constexpr int kFabricHandle = 8;
constexpr int kShareableHandleTypes = 1 | kFabricHandle;

constexpr int kMulticastSupported = 132;  // the attribute of CUDA 12.1

using Devices = std::vector<std::unique_ptr<Device>>;

// Of device memory: the server's word, or CUDA's usual one.
uint64_t granularity_of(const hello::Device& described);

struct OfferedDevice {
  Session* session = nullptr;
  int server_ordinal = 0;
  hello::Device description;
};

// `visible`: the value of CUDA_VISIBLE_DEVICES, null when it is not set. As with CUDA, the list ends at the first entry that
// names no device; complains if the entry was meant to.
Devices make_devices(std::vector<OfferedDevice> offered, const char* visible);

}  // namespace gpupool::client
