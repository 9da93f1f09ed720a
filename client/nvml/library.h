// The state of libnvidia-ml.so.1: what nvmlInit opened, and which GPUs there are.
//
// One for the process, never destroyed, behind one mutex that a call holds while it asks a server; so calls of several threads take turns. Handles
// are numbers: a wrong one is refused, never followed. A forked child opens connections of its own when it first calls.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "client/nvml/nvml.h"
#include "client/nvml/source.h"

#define NVML_EXPORT extern "C" __attribute__((visibility("default")))

namespace gpupool::nvml {

struct Device {
  unsigned index = 0;
  Source* source = nullptr;
  size_t place = 0;             // among its source's
  hello::Device description;    // with the PCI address that CUDA shows, too
  unsigned domain = 0, bus = 0, slot = 0;
  int attribute(int id, int otherwise = -1) const;  // a CUdevice_attribute
};

class Library {
 public:
  static Library& get();

  // Each with a matching shutdown(). `may_be_empty`: without servers there are no GPUs, and that is no error.
  nvmlReturn_t initialise(bool may_be_empty);
  nvmlReturn_t shutdown();

  // Calls `answer(Library&)`, or `answer(Device&)` for a device, with the lock held. What it throws becomes an error.
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
  int driver_version() const;  // that all sources have, as cuDriverGetVersion says it

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

inline Library& library() { return Library::get(); }

// As NVML does: all of it or nothing.
nvmlReturn_t copy_text(const std::string& text, char* to, unsigned size);
// The value where it is known.
template <class Value, class Out>
nvmlReturn_t give(const std::optional<Value>& value, Out* out) {
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  if (!value) return NVML_ERROR_NOT_SUPPORTED;
  *out = static_cast<Out>(*value);
  return NVML_SUCCESS;
}

}  // namespace gpupool::nvml
