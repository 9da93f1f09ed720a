// The multiprocessors of the GPUs, parted among the tenants as their quotas say (quota/partitions.h).
// poold's thread.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "protocol/control/hello.pb.h"
#include "server/quota/partitions.h"
#include "server/tenants/tenants.h"

namespace gpupool::server {

class TenantPartitions {
 public:
  // `tenants` must outlive this object.
  explicit TenantPartitions(const Tenants& tenants) : tenants_(tenants) {}
  TenantPartitions(const TenantPartitions&) = delete;
  TenantPartitions& operator=(const TenantPartitions&) = delete;

  void set_devices(const std::vector<control::Device>& devices);
  // Call when quotas may have changed.
  void update();
  // Returns the session's groups of multiprocessors, by GPU, or why it can have none.
  auto take(uint64_t session, const std::string& tenant) { return partitions_.take(session, tenant); }
  void release(uint64_t session) { partitions_.release(session); }
  const quota::Partitions& partitions() const { return partitions_; }
  // Takes over what this process's previous program has assigned (server/poold/upgrade).
  void restore(quota::Partitions::Assigned before) { partitions_.restore(std::move(before)); }

 private:
  void warn_of_unplaced() const;

  const Tenants& tenants_;
  quota::Partitions partitions_;
  std::map<std::string, quota::Partitions::Shares> wanted_;  // last passed to partitions_
};

}  // namespace gpupool::server
