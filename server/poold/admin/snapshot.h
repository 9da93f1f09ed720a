// The state of poold as messages of protocol/control/admin.proto, for its gRPC service and for Prometheus.
// poold's thread.
#pragma once
#include <chrono>

#include "common/text/printable.h"
#include "protocol/control/admin.pb.h"
#include "server/poold/acceptor/acceptor.h"
#include "server/poold/admin/audit.h"
#include "server/poold/admin/usage.h"
#include "server/poold/node/agent.h"
#include "server/poold/sensors/sensors.h"
#include "server/poold/workers/worker_pool.h"
#include "server/tenants/tenants.h"

namespace gpupool::server {

// The objects that a snapshot describes.
struct SnapshotSources {
  const WorkerPool& pool;
  const Acceptor& acceptor;
  const Tenants& tenants;
  const EndedSessionsUsage& ended;
  const Audit& audit;
  std::chrono::system_clock::time_point started;
  uint32_t upgrades;
  const Agent* agent;  // null: poold belongs to no pool
  const Sensors& sensors;
};

admin::Poold describe_poold(const SnapshotSources& sources);
admin::Snapshot take_snapshot(const SnapshotSources& sources);

}  // namespace gpupool::server
