// pool-admin's commands for a pool's scheduler. Each prints to stdout and returns the exit status, or throws
// Failure. Called by command_line.cc; one thread.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "scheduler/admin/live_view.h"
#include "scheduler/admin/pool/client.h"
#include "scheduler/admin/pool/usage.h"

namespace gpupool::admin {

class PoolCommands {
 public:
  PoolCommands(PoolClient& scheduler, bool json) : scheduler_(scheduler), json_(json) {}

  Exit health();
  Exit nodes();
  Exit gpus(const std::string& node);
  Exit leases(const std::string& tenant, const std::string& node);
  Exit queue(const std::string& tenant);
  Exit tenants();
  Exit quotas(const std::string& tenant);  // empty: all tenants
  Exit set_quota(const std::string& tenant, const std::vector<std::string>& words);
  Exit clear_quota(const std::string& tenant);
  Exit policy();
  Exit set_policy(const std::vector<std::string>& words);
  struct Draining {
    bool move = false, evict = false;
    std::optional<double> grace_seconds;
  };
  Exit drain(const std::string& node, const std::string& reason, const Draining& how);
  Exit undrain(const std::string& node);
  Exit remove_node(const std::string& node);
  Exit trust_gpu(const std::string& node, const std::string& gpu);
  Exit evict(const std::vector<std::string>& leases, const std::string& reason,
             std::optional<double> grace_seconds);
  Exit move(const std::string& lease, const std::string& from, const std::string& to);
  Exit suspend(const std::string& lease);
  Exit resume(const std::string& lease);
  Exit why(const std::string& id);
  Exit usage(const UsageOptions& options);  // usage.cc
  Exit top(const TopSignals& signals, const TopOptions& options);

 private:
  Exit print_suspension(const pool::LeaseState& state);

  PoolClient& scheduler_;
  const bool json_;
};

}  // namespace gpupool::admin
