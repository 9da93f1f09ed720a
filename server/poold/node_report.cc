#include "server/poold/node_report.h"

#include <sys/random.h>

#include <algorithm>
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

std::chrono::milliseconds now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::system_clock::now().time_since_epoch());
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

void describe_breaks(const WorkerPool& pool, const std::string& tenant, pool::SessionBreaks& sum) {
  pool.for_each_session([&](const SessionView& session) {
    if (session.client.tenant != tenant) return;
    const Breaks& breaks = session.breaks;
    const auto waiting = static_cast<uint64_t>(breaks.waiting().count());
    sum.set_waiting(sum.waiting() + (waiting != 0 ? 1 : 0));
    sum.set_waiting_ms(std::max(sum.waiting_ms(), waiting));
    sum.set_resumed(sum.resumed() + breaks.resumed);
    sum.set_waited_ms(sum.waited_ms() + static_cast<uint64_t>(breaks.waited.count()));
    sum.set_resent_bytes(sum.resent_bytes() + breaks.resent_bytes);
  });
  pool.suspensions().for_each([&](const SuspendedSession& session) {
    if (session.header.tenant() != tenant || !session.has_left()) return;
    sum.set_suspended(sum.suspended() + 1);
    sum.set_suspended_ms(std::max(
        sum.suspended_ms(), static_cast<uint64_t>(std::max<int64_t>(session.suspended_for().count(), 0))));
    sum.set_suspended_bytes(sum.suspended_bytes() + session.file.bytes);
  });
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
