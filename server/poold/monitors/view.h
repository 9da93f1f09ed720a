// The state of this poold that a monitoring client may see: its own tenant's. poold's thread.
#pragma once
#include <optional>

#include "protocol/control/hello.pb.h"
#include "protocol/control/monitor.pb.h"
#include "server/poold/admin/usage.h"
#include "server/poold/sensors/sensors.h"
#include "server/poold/workers/worker_pool.h"
#include "server/tenants/tenants.h"

namespace gpupool::server {

struct MonitorSources {
  const WorkerPool& pool;
  const Tenants& tenants;
  const EndedSessionsUsage& ended;
  const Sensors& sensors;
};

// Return nullopt if the tenant does not exist any more, its lease has ended, or no GPU is known yet.
std::optional<control::HelloReply> monitor_devices(const MonitorSources& sources, const Client& client);
std::optional<control::MonitorState> monitor_state(const MonitorSources& sources, const Client& client);

}  // namespace gpupool::server
