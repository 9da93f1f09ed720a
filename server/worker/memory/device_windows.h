// Device memory that is registered with transport::DirectMemory (GPUDirect RDMA), in windows: each is
// registered at its first use and stays registered until its mapping ends. Where the CPU cannot access device
// memory, the driver provides a dma-buf for the window.
//
// The number of windows is limited; the least recently used one is evicted. Executor's thread, except drop():
// any thread.
#pragma once
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "protocol/transport/direct_memory.h"
#include "server/worker/device/device_api.h"

namespace gpupool::worker {

constexpr uint64_t kWindowBytes = 32u << 20;  // size and alignment of windows
constexpr size_t kMostWindows = 1024;

// The part of a window's device memory up to `end`.
struct DeviceSpan {
  uint64_t end = 0;
  uint32_t key = 0;
  std::shared_ptr<const void> kept;  // keeps the window from being evicted
};

class DeviceWindows {
 public:
  DeviceWindows(const DeviceApi& api, transport::DirectMemory& memory) : api_(api), memory_(memory) {}
  ~DeviceWindows() { drop(0, ~uint64_t{0}); }
  DeviceWindows(const DeviceWindows&) = delete;
  DeviceWindows& operator=(const DeviceWindows&) = delete;

  // Registers the window [start, start + bytes), which must lie within one mapping. Returns false if that
  // fails.
  bool use(uint64_t start, uint64_t bytes, bool cpu_can_access, DeviceSpan* span);
  // Call before [start, start + bytes) is unmapped.
  void drop(uint64_t start, uint64_t bytes);

 private:
  struct Window {
    uint64_t end;
    uint32_t key;
    std::shared_ptr<const transport::DirectMemory::Region> region;
    std::list<uint64_t>::iterator used;
  };
  Result<transport::DirectMemory::Region> add(uint64_t start, uint64_t bytes, bool cpu_can_access);
  bool make_room();

  const DeviceApi& api_;
  transport::DirectMemory& memory_;
  std::mutex mutex_;  // guards the rest
  std::map<uint64_t, Window> windows_;
  std::list<uint64_t> order_;  // start addresses, most recently used first
  bool refused_ = false;       // the last registration failed, and no window has been dropped since
};

}  // namespace gpupool::worker
