#include "server/poold/workers/tenant_partitions.h"

#include <algorithm>
#include <utility>

#include "common/log/log.h"

namespace gpupool::server {

void TenantPartitions::set_devices(const std::vector<control::Device>& devices) {
  std::vector<quota::Partitions::Gpu> gpus;
  for (const control::Device& device : devices) {
    if (gpus.size() == quota::kMostGpus) break;
    gpus.push_back({std::min(device.partition_groups(), quota::kMostGroups), device.group_multiprocessors(),
                    device.multiprocessors()});
  }
  partitions_.set_gpus(std::move(gpus));
  warn_of_unplaced();
}

void TenantPartitions::update() {
  auto wanted = partitions_of(tenants_.all());
  if (wanted == wanted_) return;
  wanted_ = std::move(wanted);
  partitions_.set_tenants(wanted_);
  warn_of_unplaced();
}

// Warns of tenants whose sessions would be refused because their partition does not fit.
void TenantPartitions::warn_of_unplaced() const {
  if (partitions_.gpus().empty()) return;
  for (const auto& [tenant, share] : wanted_) {
    if (const std::string why = partitions_.unplaced_reason(tenant); !why.empty()) {
      log::warning("no_room_for_partition", {{"tenant", tenant}, {"reason", why}});
    }
  }
}

}  // namespace gpupool::server
