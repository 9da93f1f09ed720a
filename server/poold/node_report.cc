#include "server/poold/node_report.h"

#include <sys/random.h>

#include <stdexcept>

#include "common/text/gpu_uuid.h"
#include "common/text/printable.h"
#include "protocol/lease/token.h"

namespace gpupool::server {

std::string new_boot() {
  std::string boot(lease::kBootBytes, '\0');
  if (::getrandom(boot.data(), boot.size(), 0) != static_cast<ssize_t>(boot.size()))
    throw std::runtime_error("cannot get random numbers");
  return boot;
}

pool::Inventory inventory_of(const std::vector<control::Device>& devices,
                             const std::vector<std::string>& addresses) {
  pool::Inventory inventory;
  for (const std::string& address : addresses) inventory.add_addresses(address);
  for (const control::Device& device : devices) {
    pool::Gpu& gpu = *inventory.add_gpus();
    gpu.set_uuid(gpu_uuid_text(device.uuid()));
    gpu.set_model(printable(device.name()));
    gpu.set_memory_bytes(device.total_bytes());
  }
  return inventory;
}

void describe_state(const admin::Snapshot& now, bool stopping, pool::NodeReport& report) {
  report.set_ready(now.poold().ready() && !stopping);
  report.set_not_ready_because(now.poold().not_ready_because());
  for (const admin::Gpu& gpu : now.gpus()) {
    pool::GpuUse& use = *report.add_gpus();
    use.set_uuid(gpu.uuid());
    use.set_memory_used_bytes(gpu.memory_used_bytes());
    use.set_gpu_nanoseconds(gpu.gpu_nanoseconds());
  }
}

}  // namespace gpupool::server
