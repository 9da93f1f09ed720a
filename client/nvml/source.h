// Where the answers of libnvidia-ml.so.1 come from: a poold of GPUPOOL (server.h), or the softgpu beside the library (server/softgpu/nvml/).
//
// One thread at a time (Library's mutex).
#pragma once
#include <chrono>
#include <memory>
#include <vector>

#include "client/nvml/nvml.h"
#include "protocol/control/monitor_codec.h"

namespace gpupool::nvml {

class Source {
 public:
  virtual ~Source() = default;

  virtual const std::vector<hello::Device>& devices() const = 0;
  virtual int driver_version() const = 0;  // as cuDriverGetVersion says it
  // How the GPUs are used, not older than a moment. Null: nothing is known, and unavailable() says what the caller gets instead.
  virtual const monitor::State* look() = 0;
  virtual nvmlReturn_t unavailable() const = 0;

  // Activity of the GPUs between the previous query and this one.
  struct Window {
    const monitor::State* before = nullptr;
    const monitor::State* now = nullptr;     // null: as look()
    std::chrono::milliseconds missing{};     // nothing to compare with: look again after this time
  };
  virtual Window window() = 0;

  // In a forked child: lets go of what is the parent's. Takes no lock.
  virtual void abandon() = 0;
};

// Those of this process; each library has its own. `may_be_empty`: where none is named, there are none, and that is no error.
Result<std::vector<std::unique_ptr<Source>>> open_sources(bool may_be_empty);

}  // namespace gpupool::nvml
