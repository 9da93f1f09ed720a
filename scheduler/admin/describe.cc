#include "scheduler/admin/describe.h"

#include <algorithm>

#include "protocol/control/quota_fields.h"
#include "scheduler/admin/format.h"
#include "scheduler/admin/table.h"

namespace gpupool::admin {
namespace {

using std::chrono::milliseconds;

std::string part_text(uint32_t milli) {
  return percent_text(milli) + " %";
}

std::string age_text(int64_t started_ms) {
  const auto now =
      std::chrono::duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch());
  return duration_text(std::max(milliseconds(0), now - milliseconds(started_ms)));
}

template <class Gpus, class Value>
uint64_t sum(const Gpus& gpus, Value value) {
  uint64_t all = 0;
  for (const auto& gpu : gpus) all += value(gpu);
  return all;
}

}  // namespace

std::string duration_text(milliseconds time) {
  const long long seconds = time.count() / 1000;
  if (seconds < 60) return format("%llds", seconds);
  if (seconds < 3600) return format("%lldm %02llds", seconds / 60, seconds % 60);
  if (seconds < 86'400) return format("%lldh %02lldm", seconds / 3600, seconds / 60 % 60);
  return format("%lldd %02lldh", seconds / 86'400, seconds / 3600 % 24);
}

std::string seconds_text(uint64_t nanoseconds) {
  return format("%.1f s", static_cast<double>(nanoseconds) * 1e-9);
}

std::string limit_text(uint64_t bytes) {
  return bytes == 0 ? "-" : bytes_text(bytes);
}
std::string rate_text(uint64_t bytes) {
  return bytes == 0 ? "-" : bytes_text(bytes) + "/s";
}
std::string count_text(uint32_t count) {
  return count == 0 ? "-" : std::to_string(count);
}

std::string mode_text(Quota::Mode mode) {
  return quota::name_of(quota::Unit::mode, static_cast<uint64_t>(mode));
}

std::string state_text(const Session& session) {
  if (!session.suspension().empty()) return session.suspension();
  if (session.state() == Session::LOCKED) return "locked";
  if (session.state() == Session::CHECKPOINTED) return "checkpointed";
  if (session.waiting_ms() != 0) return "waiting for client";
  return session.moving_to().empty() ? "running" : "moving";
}

std::string moved_text(const Session& session) {
  if (!session.suspension().empty())
    return ", " + bytes_text(session.suspended_bytes()) + " in " +
           (session.suspended_to() == "host memory" ? "host memory" : "a file") +
           (session.suspended_encrypted() ? ", encrypted" : "");
  return session.moving_to().empty() ? "" : ", " + bytes_text(session.moved_bytes()) + " sent";
}

std::string gpus_text(const google::protobuf::RepeatedPtrField<Gpu>& gpus, size_t width) {
  Table table({{"GPU", true},
               {"NAME", false, 8},
               {"UUID", false, 12, 10},
               {"MEMORY", true},
               {"USED", true},
               {"SESSIONS", true},
               {"MEMORY ALLOTTED", true, 0, 20},
               {"COMPUTE ALLOTTED", true, 0, 30},
               {"BUSY", true, 0, 40}});
  for (const Gpu& gpu : gpus) {
    table.add({std::to_string(gpu.index()), gpu.name(), gpu.uuid(), bytes_text(gpu.memory_total_bytes()),
               bytes_text(gpu.memory_used_bytes()), std::to_string(gpu.sessions()),
               limit_text(gpu.memory_sold_bytes()), part_text(gpu.compute_sold_milli()),
               seconds_text(gpu.gpu_nanoseconds())});
  }
  return table.text(width);
}

std::string sessions_text(const google::protobuf::RepeatedPtrField<Session>& sessions, size_t width) {
  if (sessions.empty()) return "no sessions\n";
  Table table({{"SESSION", true},
               {"TENANT", false, 8},
               {"PROGRAM", false, 8},
               {"HOST", false, 6, 80},
               {"PID", true, 0, 70},
               {"ADDRESS", false, 10, 10},
               {"OVER", false, 0, 40},
               {"AGE", true, 0, 60},
               {"STATE", false, 0, 27},
               {"RESUMED", true, 0, 15},
               {"MEMORY", true},
               {"PEAK", true, 0, 30},
               {"IN HOST", true, 0, 25},
               {"GPU TIME", true},
               {"THROTTLED", true, 0, 90},
               {"RECEIVED", true, 0, 20},
               {"SENT", true, 0, 20},
               {"CALLS", true, 0, 50},
               {"ERRORS", true, 0, 55}});
  for (const Session& session : sessions) {
    const auto& gpus = session.gpus();
    table.add({std::to_string(session.number()) + (session.ending() ? "!" : ""), session.tenant(),
               session.program(), session.host(), std::to_string(session.pid()), session.address(),
               session.transport(), age_text(session.started_ms()), state_text(session) + moved_text(session),
               std::to_string(session.resumed()),
               bytes_text(sum(gpus, [](const auto& gpu) { return gpu.memory_used_bytes(); })),
               bytes_text(sum(gpus, [](const auto& gpu) { return gpu.memory_peak_bytes(); })),
               bytes_text(sum(gpus,
                              [](const auto& gpu) {
                                return gpu.memory_in_host_bytes() + gpu.memory_checkpointed_bytes();
                              })),
               seconds_text(sum(gpus, [](const auto& gpu) { return gpu.gpu_nanoseconds(); })),
               seconds_text(sum(gpus, [](const auto& gpu) { return gpu.throttled_nanoseconds(); })),
               bytes_text(session.bytes_from_client()), bytes_text(session.bytes_to_client()),
               std::to_string(session.calls()), std::to_string(session.errors())});
  }
  return table.text(width);
}

// Returns the memory limit of every GPU, followed by the GPUs with a different limit.
std::string memory_quota_text(const Quota& quota) {
  std::string text = limit_text(quota.memory_bytes());
  for (const GpuQuota& gpu : quota.gpus()) {
    if (gpu.memory_bytes() != quota.memory_bytes())
      text += ", GPU " + std::to_string(gpu.gpu()) + ": " + limit_text(gpu.memory_bytes());
  }
  return text;
}

// Returns the compute quota in the same form; in partition mode also the number of multiprocessors on each
// GPU.
std::string compute_text(const Tenant& tenant) {
  const Quota& quota = tenant.quota();
  std::string text = part_text(quota.compute_milli());
  for (const GpuQuota& gpu : quota.gpus()) {
    if (gpu.compute_milli() != quota.compute_milli())
      text += ", GPU " + std::to_string(gpu.gpu()) + ": " + part_text(gpu.compute_milli());
  }
  if (tenant.quota().mode() != Quota::PARTITION) return text;
  if (tenant.partition_multiprocessors().empty()) return text + ", not placed";
  const char* before = ", ";
  for (const uint32_t multiprocessors : tenant.partition_multiprocessors()) {
    text += before + std::to_string(multiprocessors);
    before = " and ";
  }
  return text + " SMs";
}

std::string tenants_text(const google::protobuf::RepeatedPtrField<Tenant>& tenants, size_t width) {
  Table table({{"TENANT", false, 8},
               {"SESSIONS", true},
               {"STARTED", true, 0, 50},
               {"MEMORY", true},
               {"MEMORY QUOTA", true},
               {"COMPUTE", true},
               {"MODE", false, 0, 80},
               {"GPU TIME", true},
               {"THROTTLED", true, 0, 70},
               {"RECEIVED", true, 0, 20},
               {"SENT", true, 0, 20},
               {"CALLS", true, 0, 30},
               {"ERRORS", true, 0, 40},
               {"OVER QUOTA", true, 0, 60},
               {"DENIED", true, 0, 55}});
  for (const Tenant& tenant : tenants) {
    const auto& memory = tenant.memory_used_bytes();
    const bool known = tenant.configured();
    table.add({tenant.name() + (known ? "" : " (removed)"), std::to_string(tenant.sessions()),
               std::to_string(tenant.sessions_started()),
               bytes_text(sum(memory, [](uint64_t bytes) { return bytes; })),
               known ? memory_quota_text(tenant.quota()) : "", known ? compute_text(tenant) : "",
               known ? mode_text(tenant.quota().mode()) : "", seconds_text(tenant.gpu_nanoseconds()),
               seconds_text(tenant.throttled_nanoseconds()), bytes_text(tenant.bytes_from_client()),
               bytes_text(tenant.bytes_to_client()), std::to_string(tenant.calls()),
               std::to_string(tenant.errors()), std::to_string(tenant.over_quota()),
               std::to_string(tenant.denied())});
  }
  return table.text(width);
}

std::string limit_text(quota::Unit unit, uint64_t value) {
  switch (unit) {
    case quota::Unit::memory:
    case quota::Unit::guarantee:
    case quota::Unit::bytes: return limit_text(value);
    case quota::Unit::rate: return rate_text(value);
    case quota::Unit::count: return count_text(static_cast<uint32_t>(value));
    case quota::Unit::percent: return part_text(static_cast<uint32_t>(value));
    case quota::Unit::timeout: return quota::timeout_text(value);
    case quota::Unit::mode:
    case quota::Unit::priority: break;
  }
  return quota::name_of(unit, value);
}

std::string quotas_text(const google::protobuf::RepeatedPtrField<Tenant>& tenants, size_t width) {
  std::vector<Table::Column> columns{{"TENANT", false, 8}};
  for (const quota::Kind& kind : quota::kKinds)
    columns.push_back({kind.title, quota::choices_of(kind.unit).empty(), 0, kind.importance});
  Table table(columns);
  for (const Tenant& tenant : tenants) {
    if (!tenant.configured()) continue;
    const Quota& quota = tenant.quota();
    std::vector<std::string> row{tenant.name()};
    for (const quota::Kind& kind : quota::kKinds)
      row.push_back(limit_text(kind.unit, quota::field_of(kind).get(quota)));
    table.add(row);
    for (const GpuQuota& gpu : quota.gpus()) {
      row = {"  GPU " + std::to_string(gpu.gpu())};
      for (const quota::Kind& kind : quota::kKinds)
        row.push_back(kind.per_gpu ? limit_text(kind.unit, quota::field_of(kind).get_of_gpu(gpu)) : "");
      table.add(row);
    }
  }
  return table.text(width);
}

std::string quota_text(const std::string& tenant, const Quota& quota) {
  google::protobuf::RepeatedPtrField<Tenant> one;
  one.Add()->set_name(tenant);
  one[0].set_configured(true);
  *one[0].mutable_quota() = quota;
  return quotas_text(one, 0);
}

std::string health_text(const Poold& poold) {
  std::string text = "poold " + poold.version() + ", process " + std::to_string(poold.pid()) + ", up " +
                     age_text(poold.started_ms()) + "\n" +
                     (poold.ready() ? "ready" : "not ready: " + poold.not_ready_because()) + "\n";
  text += "sessions: " + std::to_string(poold.sessions()) + " of " + std::to_string(poold.max_sessions()) +
          ", " + std::to_string(poold.sessions_started()) + " started\n";
  text += "workers: " + std::to_string(poold.workers_idle()) + " idle, " +
          std::to_string(poold.workers_starting()) + " starting, " +
          std::to_string(poold.worker_start_failures()) + " failed to start; " +
          counted(poold.clients_waiting(), "client") + " waiting\n";
  text += "rejected handshakes: " + counted(poold.handshake_failures(), "connection") + "\n";
  const ImageCache& cache = poold.image_cache();
  text += "module images: " + std::to_string(cache.images()) + " in " + bytes_text(cache.bytes()) + " of " +
          bytes_text(cache.capacity_bytes()) + ", " + std::to_string(cache.hits()) + " hits, " +
          std::to_string(cache.misses()) + " misses\n";
  if (!poold.has_pool()) return text;
  const PoolMembership& pool = poold.pool();
  text +=
      "pool: node " + pool.node() + ", " +
      (pool.scheduler().empty() ? "not registered with a scheduler" +
                                      (pool.away_because().empty() ? "" : " (" + pool.away_because() + ")")
                                : "registered with " + pool.scheduler()) +
      " for " + age_text(pool.since_ms()) + ", " + counted(pool.leases(), "lease") + "\n";
  if (!pool.fenced_because().empty()) text += "fenced: " + pool.fenced_because() + "\n";
  if (std::abs(pool.clock_skew_ms()) > 5'000)
    text +=
        "clock skew: the scheduler's clock is " + std::to_string(pool.clock_skew_ms() / 1000) + " s ahead\n";
  return text;
}

}  // namespace gpupool::admin
