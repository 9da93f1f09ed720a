// The source of the answers of libnvidia-ml.so.1: a poold of GPUPOOL (server.h), or the softgpu beside the
// library (server/softgpu/nvml/). Not thread-safe: guarded by Library's mutex.
#pragma once
#include <chrono>
#include <memory>
#include <vector>

#include "protocol/control/monitor_codec.h"
#include "protocol/nvml/nvml.h"

namespace gpupool::nvml {

class Source {
 public:
  virtual ~Source() = default;

  virtual const std::vector<hello::Device>& devices() const = 0;
  virtual int driver_version() const = 0;  // as cuDriverGetVersion returns it
  // Returns the GPUs' present use (at most 20 ms old for a server). Null: unknown; return unavailable() to
  // the caller.
  virtual const monitor::State* look() = 0;
  virtual nvmlReturn_t unavailable() const = 0;

  // Two states between which a GPU's activity is measured.
  struct Window {
    const monitor::State* before = nullptr;
    const monitor::State* now = nullptr;  // null: as for look()
    std::chrono::milliseconds missing{};  // if `before` is null: time until a window exists
  };
  virtual Window window() = 0;

  // In a forked child: releases what belongs to the parent. Takes no lock.
  virtual void abandon() = 0;
};

// Opens the sources of this process; defined by each library. `may_be_empty`: if none is configured, returns
// none instead of an error.
Result<std::vector<std::unique_ptr<Source>>> open_sources(bool may_be_empty);

// Tells the user on stderr why the sources cannot be opened; defined by each library. Called once.
void report_failure(const Error& error);

}  // namespace gpupool::nvml
