// The part of WorkerPool that assigns multiprocessors to sessions.
#include <algorithm>

#include "common/log/log.h"
#include "common/text/gpu_uuid.h"
#include "server/poold/workers/worker_pool.h"

namespace gpupool::server {

void WorkerPool::set_devices(const control::Devices& devices) {
  devices_.assign(devices.devices().begin(), devices.devices().end());
  driver_version_ = devices.driver_version();
  std::vector<quota::Partitions::Gpu> gpus;
  for (const control::Device& device : devices_) {
    if (gpus.size() == quota::kMostGpus) break;
    gpus.push_back({std::min(device.partition_groups(), quota::kMostGroups), device.group_multiprocessors(),
                    device.multiprocessors()});
  }
  partitions_.set_gpus(std::move(gpus));
  std::vector<std::string> uuids;
  for (const control::Device& device : devices_) uuids.push_back(gpu_uuid_text(device.uuid()));
  tenants_.set_gpu_uuids(std::move(uuids));
  warn_of_unplaced_partitions();
}

void WorkerPool::update_partitions() {
  const auto wanted = partitions_of(tenants_.all());
  if (wanted == partitioned_) return;
  partitioned_ = wanted;
  partitions_.set_tenants(wanted);
  warn_of_unplaced_partitions();
}

// Warns of tenants whose sessions would be refused because their partition does not fit.
void WorkerPool::warn_of_unplaced_partitions() const {
  if (partitions_.gpus().empty()) return;
  for (const auto& [tenant, share] : partitioned_) {
    if (const std::string why = partitions_.unplaced_reason(tenant); !why.empty()) {
      log::warning("no_room_for_partition", {{"tenant", tenant}, {"reason", why}});
    }
  }
}

}  // namespace gpupool::server
