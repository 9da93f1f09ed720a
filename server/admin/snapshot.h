// Everything that there is to see of a poold, as the messages of protocol/control/admin.proto: for its gRPC service and for
// Prometheus alike. poold's one thread.
#pragma once
#include <chrono>

#include "protocol/control/admin.pb.h"
#include "protocol/text/printable.h"
#include "server/admin/usage.h"
#include "server/audit.h"
#include "server/front_door.h"
#include "server/pool/agent.h"
#include "server/tenants/tenants.h"
#include "server/worker_pool.h"

namespace gpupool::server {

// What a snapshot is taken of.
struct Sources {
  const WorkerPool& pool;
  const FrontDoor& door;
  const Tenants& tenants;
  const EndedUsage& ended;
  const Audit& audit;
  std::chrono::system_clock::time_point started;
  const Agent* agent;  // null: it belongs to no pool
};

admin::Poold describe_poold(const Sources& sources);
admin::Snapshot take_snapshot(const Sources& sources);

admin::Quota to_message(const quota::Quota& quota);
// Puts the fields that are present over those of `quota`; or, with a GPU, over those of its share alone, which has no others.
void apply(const admin::Quota& changes, quota::Quota& quota);
Result<void> apply(const admin::Quota& changes, quota::GpuLimits& limits);

}  // namespace gpupool::server
