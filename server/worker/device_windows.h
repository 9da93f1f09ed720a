// Device memory that is registered to be moved by transport::DirectMemory (GPUDirect): in windows, each at its first use, until
// its mapping ends. Where the CPU does not reach it the driver gives a dma-buf for the window.
//
// Bounded: the window that has not been used for the longest time gives way. drop() may be called by any thread, the rest
// belongs to the executor's.
#pragma once
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "protocol/transport/direct_memory.h"
#include "server/worker/device_api.h"

namespace gpupool::worker {

constexpr uint64_t kWindowBytes = 32u << 20;  // windows begin at multiples of it
constexpr size_t kMostWindows = 1024;

// Device memory of one window, up to `end`.
struct DeviceSpan {
  uint64_t end = 0;
  uint32_t key = 0;
  std::shared_ptr<const void> kept;  // as long as somebody has it, the window gives way to no other
};

class DeviceWindows {
 public:
  DeviceWindows(const DeviceApi& api, transport::DirectMemory& memory) : api_(api), memory_(memory) {}
  ~DeviceWindows() { drop(0, ~uint64_t{0}); }
  DeviceWindows(const DeviceWindows&) = delete;
  DeviceWindows& operator=(const DeviceWindows&) = delete;

  // The window [start, start + bytes), which lies within one mapping. False: it cannot be registered.
  bool use(uint64_t start, uint64_t bytes, bool cpu_reaches, DeviceSpan* span);
  // Before [start, start + bytes) is unmapped.
  void drop(uint64_t start, uint64_t bytes);

 private:
  struct Window {
    uint64_t end;
    uint32_t key;
    std::shared_ptr<const transport::DirectMemory::Region> region;
    std::list<uint64_t>::iterator used;
  };
  Result<transport::DirectMemory::Region> add(uint64_t start, uint64_t bytes, bool cpu_reaches);
  bool make_room();

  const DeviceApi& api_;
  transport::DirectMemory& memory_;
  std::mutex mutex_;  // what follows
  std::map<uint64_t, Window> windows_;
  std::list<uint64_t> order_;  // their starts, the last used in front
  bool refused_ = false;       // no more could be registered, and none has been dropped since
};

}  // namespace gpupool::worker
