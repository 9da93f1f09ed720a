// The GPUs' sensors as the host's NVML reads them, once a second on a thread of its own: a driver that hangs
// holds up neither poold's work nor its end. Values that are older than kStale are not returned. poold's
// thread; if NVML cannot be loaded, that is logged once and nothing is read.
#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "protocol/control/admin.pb.h"

namespace gpupool::server {

class Sensors {
 public:
  static constexpr std::chrono::seconds kStale{10};

  // `library`: a path or name for dlopen(); empty: reads nothing.
  explicit Sensors(const std::string& library);
  ~Sensors();
  Sensors(const Sensors&) = delete;
  Sensors& operator=(const Sensors&) = delete;

  // Returns the latest values of the GPU ("GPU-" and 36 characters); null if there are none.
  std::optional<admin::GpuSensors> of(const std::string& uuid) const;

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;  // null: nothing is read
};

// Returns the library to load: `option` is "auto", "off" or a path; `device` is poold's --device.
std::string nvml_library(const std::string& option, const std::string& device);

}  // namespace gpupool::server
