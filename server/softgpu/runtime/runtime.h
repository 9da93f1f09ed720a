// The process-wide state of softgpu: configuration, devices, handles, memory map and service threads.
//
// One object, created by the first call into the library and never destroyed, because programs call the
// driver from exit handlers and from threads that outlive main. Thread-safe.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "protocol/driver/cuda_header.h"
#include "server/softgpu/runtime/address_reservations.h"
#include "server/softgpu/runtime/config.h"
#include "server/softgpu/runtime/copy_engine.h"
#include "server/softgpu/runtime/handles.h"
#include "server/softgpu/runtime/host_functions.h"
#include "server/softgpu/runtime/memory_map.h"
#include "server/softgpu/runtime/process_state.h"
#include "server/softgpu/runtime/program_cache.h"
#include "server/softgpu/runtime/value_ops.h"

namespace gpupool::softgpu {

class Context;
class Device;

class Runtime {
 public:
  // Implements cuInit. The first call opens the devices; later calls return its result.
  CUresult initialise(unsigned flags);
  // CUDA_SUCCESS once cuInit has succeeded; until then the error that all other calls return.
  CUresult state() const { return static_cast<CUresult>(state_.load(std::memory_order_acquire)); }

  const std::vector<std::unique_ptr<Device>>& devices() const { return devices_; }
  // Returns null for an invalid index.
  Device* device(CUdevice index) const;
  const Config& config() const { return config_; }

  HandleTable& handles() { return handles_; }
  MemoryMap& memory() { return memory_; }
  AddressReservations& reservations() { return reservations_; }
  CopyEngine& copy_engine() { return copy_engine_; }
  HostThread& host_thread() { return host_thread_; }
  ProgramCache& programs() { return programs_; }
  // The file that keeps compiled code across processes, opened by the first call. Null: code is not kept.
  std::shared_ptr<CodeFile> code_file();
  ProcessState& process_state() { return process_state_; }
  ValueWaiter& value_waiter() { return value_waiter_; }

  // Frees or unmaps the memory of a range that has been removed from the memory map.
  void release(const MemoryRange& range);
  // Frees the memory that the context owns, and trims its device's pools.
  void free_context_memory(Context& context);
  // Frees what the device's pools cache above their release thresholds.
  void trim_pools(Device& device);
  // Frees everything that the device's pools cache; false if there was nothing.
  bool free_cached_memory(Device& device);
  // Registers a pool for trim_pools() and free_cached_memory(), which always include the device's default
  // pool.
  void add_pool(const Ref<Object>& pool);
  void remove_pool(const Object* pool);

  // Writes one line to stderr if SOFTGPU_LOG=1.
  void log(const std::string& line) const;

 private:
  friend Runtime& runtime();
  Runtime();
  CUresult open_devices();
  static void after_fork();

  std::atomic<int> state_{CUDA_ERROR_NOT_INITIALIZED};
  std::mutex init_mutex_;
  bool tried_ = false;
  CUresult init_result_ = CUDA_SUCCESS;
  Config config_;
  std::vector<std::unique_ptr<Device>> devices_;
  HandleTable handles_;
  MemoryMap memory_;
  AddressReservations reservations_;
  CopyEngine copy_engine_;
  HostThread host_thread_;
  ValueWaiter value_waiter_;
  ProgramCache programs_;
  std::once_flag code_file_opened_;
  std::shared_ptr<CodeFile> code_file_;
  ProcessState process_state_;
  std::mutex pools_mutex_;
  std::vector<Ref<Object>> pools_;
};

Runtime& runtime();
inline const Costs& costs() {
  return runtime().config().costs;
}

}  // namespace gpupool::softgpu
