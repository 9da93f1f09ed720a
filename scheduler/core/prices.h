// Prices of GPU time and GPU memory that leases hold, from the configuration. A value; any thread.
#pragma once
#include <map>
#include <string>

#include "protocol/control/usage.pb.h"

namespace gpupool::scheduler {

struct Prices {
  std::string currency;                             // empty: no prices are configured
  double gpu_hour = 0;                              // of a whole GPU
  double gib_hour = 0;                              // of GPU memory
  std::map<std::string, double> gpu_hour_of_model;  // instead of gpu_hour

  double of_gpu_hour(const std::string& model) const {
    const auto found = gpu_hour_of_model.find(model);
    return found == gpu_hour_of_model.end() ? gpu_hour : found->second;
  }
  // Returns the cost of what leases held on GPUs of this model.
  double cost(const std::string& model, const pool::UsageAmounts& amounts) const {
    constexpr double kMsOfHour = 3.6e6;
    return static_cast<double>(amounts.leased_milli_ms()) / 1000 / kMsOfHour * of_gpu_hour(model) +
           static_cast<double>(amounts.leased_memory_kib_ms()) / (1 << 20) / kMsOfHour * gib_hour;
  }
};

}  // namespace gpupool::scheduler
