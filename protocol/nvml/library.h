// The state of libnvidia-ml.so.1: what nvmlInit has opened, and the GPUs.
//
// One object per process, never destroyed. One mutex, held while a server is asked, so calls of several
// threads are serialized. Handles are numbers: a wrong one is rejected, never dereferenced. A forked child
// opens its own connections at its first call.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "protocol/nvml/nvml.h"
#include "protocol/nvml/source.h"

#define NVML_EXPORT extern "C" __attribute__((visibility("default")))

namespace gpupool::nvml {

struct Device {
  unsigned index = 0;
  Source* source = nullptr;
  size_t place = 0;           // index among the source's devices
  hello::Device description;  // pci_bus_id is the one that CUDA shows, too
  unsigned domain = 0, bus = 0, slot = 0;
  int attribute(int id, int otherwise = -1) const;  // `id`: a CUdevice_attribute
};

class Library {
 public:
  static Library& get();

  // Each successful initialise() needs a shutdown(). `may_be_empty`: no servers means no GPUs instead of an
  // error.
  nvmlReturn_t initialise(bool may_be_empty);
  nvmlReturn_t shutdown();

  // Calls `answer(Library&)`, or `answer(Device&)` for a device, with the lock held. Exceptions become
  // NVML_ERROR_UNKNOWN.
  template <class Answer>
  nvmlReturn_t with_library(Answer answer) {
    try {
      const std::lock_guard lock(mutex_);
      if (const nvmlReturn_t ready = ensure_open(); ready != NVML_SUCCESS) return ready;
      return answer(*this);
    } catch (...) {
      return NVML_ERROR_UNKNOWN;
    }
  }
  template <class Answer>
  nvmlReturn_t with_device(nvmlDevice_t handle, Answer answer) {
    return with_library([&](Library&) {
      Device* const device = find(handle);
      return device ? answer(*device) : NVML_ERROR_INVALID_ARGUMENT;
    });
  }

  const std::vector<std::unique_ptr<Device>>& devices() const { return devices_; }
  static nvmlDevice_t handle_of(const Device& device);
  Device* find(nvmlDevice_t handle) const;
  int driver_version() const;  // the oldest of all sources, as cuDriverGetVersion returns it

 private:
  nvmlReturn_t open();
  nvmlReturn_t ensure_open();
  void close();

  std::mutex mutex_;
  unsigned users_ = 0;
  bool open_ = false;
  bool may_be_empty_ = false;
  bool complained_ = false;
  std::vector<std::unique_ptr<Source>> sources_;
  std::vector<std::unique_ptr<Device>> devices_;
};

inline Library& library() {
  return Library::get();
}

// Copies all or nothing, as NVML does: NVML_ERROR_INSUFFICIENT_SIZE if it does not fit.
nvmlReturn_t copy_text(const std::string& text, char* to, unsigned size);
// Stores the value; NVML_ERROR_NOT_SUPPORTED if it is not known.
template <class Value, class Out>
nvmlReturn_t give(const std::optional<Value>& value, Out* out) {
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  if (!value) return NVML_ERROR_NOT_SUPPORTED;
  *out = static_cast<Out>(*value);
  return NVML_SUCCESS;
}

}  // namespace gpupool::nvml
