// What a client that only watches is shown of this poold: its own tenant's. poold's one thread.
#pragma once
#include <optional>

#include "protocol/control/hello.pb.h"
#include "protocol/control/monitor.pb.h"
#include "server/admin/usage.h"
#include "server/tenants/tenants.h"
#include "server/worker_pool.h"

namespace gpupool::server {

struct MonitorSources {
  const WorkerPool& pool;
  const Tenants& tenants;
  const EndedUsage& ended;
};

// nullopt: the tenant is gone, or the lease has ended.
std::optional<control::HelloReply> describe_to_monitor(const MonitorSources& sources, const Client& client);
std::optional<control::MonitorState> show_to_monitor(const MonitorSources& sources, const Client& client);

}  // namespace gpupool::server
