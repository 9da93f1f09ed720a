#include "scheduler/admin/to_json.h"

#include "protocol/control/quota_fields.h"
#include "scheduler/admin/describe.h"

namespace gpupool::admin {
namespace {

template <class Number>
Json limit(Number value) {
  return value == 0 ? Json(nullptr) : Json(value);
}

// Converts thousandths to percent; an integer if it is one.
Json percent_of(uint32_t milli) {
  return milli % 10 == 0 ? Json(milli / 10) : Json(milli / 10.0);
}

Json json_of(const SessionGpu& gpu) {
  return {{"gpu", gpu.gpu()},
          {"memory_used_bytes", gpu.memory_used_bytes()},
          {"memory_peak_bytes", gpu.memory_peak_bytes()},
          {"memory_in_host_bytes", gpu.memory_in_host_bytes()},
          {"memory_moved_bytes", gpu.memory_moved_bytes()},
          {"memory_checkpointed_bytes", gpu.memory_checkpointed_bytes()},
          {"gpu_nanoseconds", gpu.gpu_nanoseconds()},
          {"throttled_nanoseconds", gpu.throttled_nanoseconds()},
          {"launches", gpu.launches()}};
}

Json value_of(quota::Unit unit, uint64_t value) {
  if (!quota::choices_of(unit).empty()) return quota::name_of(unit, value);
  if (unit == quota::Unit::timeout) return value == quota::kDefaultTimeout ? Json(nullptr) : Json(value);
  if (unit == quota::Unit::percent) return percent_of(static_cast<uint32_t>(value));
  return quota::is_limit(unit) ? limit(value) : Json(value);
}

Json limits_of(const GpuQuota& gpu) {
  Json json{{"gpu", gpu.gpu()}};
  for (const quota::Kind& kind : quota::kKinds) {
    if (kind.per_gpu)
      json[quota::json_key_of(kind)] = value_of(kind.unit, quota::field_of(kind).get_of_gpu(gpu));
  }
  return json;
}

Json json_of(const Suspensions& suspensions) {
  return {{"sessions", suspensions.sessions()},
          {"memory_bytes", suspensions.memory_bytes()},
          {"memory_limit_bytes", suspensions.memory_limit_bytes()},
          {"disk_bytes", suspensions.disk_bytes()},
          {"disk_limit_bytes", suspensions.disk_limit_bytes()},
          {"suspended", suspensions.suspended()},
          {"not_suspended", suspensions.not_suspended()},
          {"resumed", suspensions.resumed()},
          {"not_resumed", suspensions.not_resumed()},
          {"dropped", suspensions.dropped()}};
}

}  // namespace

Json json_of(const Poold& poold) {
  const ImageCache& cache = poold.image_cache();
  Json json{{"version", poold.version()},
            {"pid", poold.pid()},
            {"started_ms", poold.started_ms()},
            {"ready", poold.ready()},
            {"not_ready_because", poold.not_ready_because()},
            {"workers_idle", poold.workers_idle()},
            {"workers_starting", poold.workers_starting()},
            {"sessions", poold.sessions()},
            {"clients_waiting", poold.clients_waiting()},
            {"max_sessions", poold.max_sessions()},
            {"sessions_started", poold.sessions_started()},
            {"upgrades", poold.upgrades()},
            {"handshake_failures", poold.handshake_failures()},
            {"audit_records", poold.audit_records()},
            {"audit_records_lost", poold.audit_records_lost()},
            {"worker_start_failures", poold.worker_start_failures()},
            {"migrations",
             {{"migrated", poold.migrations().migrated()},
              {"failed", poold.migrations().failed()},
              {"lost", poold.migrations().lost()}}},
            {"suspensions", json_of(poold.suspensions())},
            {"image_cache",
             {{"images", cache.images()},
              {"bytes", cache.bytes()},
              {"capacity_bytes", cache.capacity_bytes()},
              {"hits", cache.hits()},
              {"misses", cache.misses()}}}};
  if (!poold.has_pool()) return json;
  const PoolMembership& pool = poold.pool();
  json["pool"] = {{"node", pool.node()},
                  {"scheduler", pool.scheduler()},
                  {"since_ms", pool.since_ms()},
                  {"away_because", pool.away_because()},
                  {"fenced_because", pool.fenced_because()},
                  {"clock_skew_ms", pool.clock_skew_ms()},
                  {"leases", pool.leases()}};
  return json;
}

Json json_of(const Gpu& gpu) {
  return {{"index", gpu.index()},
          {"name", gpu.name()},
          {"uuid", gpu.uuid()},
          {"pci_bus_id", gpu.pci_bus_id()},
          {"memory_total_bytes", gpu.memory_total_bytes()},
          {"memory_used_bytes", gpu.memory_used_bytes()},
          {"sessions", gpu.sessions()},
          {"compute_sold_percent", percent_of(gpu.compute_sold_milli())},
          {"memory_sold_bytes", gpu.memory_sold_bytes()},
          {"gpu_nanoseconds", gpu.gpu_nanoseconds()},
          {"multiprocessors", gpu.multiprocessors()},
          {"smallest_partition", gpu.smallest_partition()},
          {"partitioned_multiprocessors", gpu.partitioned_multiprocessors()}};
}

Json json_of(const Session& session) {
  Json gpus = Json::array();
  for (const SessionGpu& gpu : session.gpus()) gpus.push_back(json_of(gpu));
  return {{"number", session.number()},
          {"tenant", session.tenant()},
          {"program", session.program()},
          {"host", session.host()},
          {"pid", session.pid()},
          {"address", session.address()},
          {"transport", session.transport()},
          {"credential", session.credential()},
          {"started_ms", session.started_ms()},
          {"worker_pid", session.worker_pid()},
          {"version", session.version()},
          {"inherited", session.inherited()},
          {"gpus", std::move(gpus)},
          {"bytes_from_client", session.bytes_from_client()},
          {"bytes_to_client", session.bytes_to_client()},
          {"calls", session.calls()},
          {"errors", session.errors()},
          {"over_quota", session.over_quota()},
          {"streams", session.streams()},
          {"modules", session.modules()},
          {"ending", session.ending()},
          {"state", state_text(session)},
          {"moving_to", session.moving_to()},
          {"moving_ms", session.moving_ms()},
          {"moved_bytes", session.moved_bytes()},
          {"suspended_to", session.suspended_to()},
          {"suspended_ms", session.suspended_ms()},
          {"suspended_bytes", session.suspended_bytes()},
          {"suspended_encrypted", session.suspended_encrypted()},
          {"waiting_ms", session.waiting_ms()},
          {"resumed", session.resumed()},
          {"waited_ms", session.waited_ms()},
          {"resent_bytes", session.resent_bytes()}};
}

Json json_of(const Quota& quota) {
  Json json;
  const auto add = [&](bool per_gpu) {
    for (const quota::Kind& kind : quota::kKinds) {
      if (kind.per_gpu == per_gpu)
        json[quota::json_key_of(kind)] = value_of(kind.unit, quota::field_of(kind).get(quota));
    }
  };
  add(true);
  Json& gpus = json["gpus"] = Json::array();
  for (const GpuQuota& gpu : quota.gpus()) gpus.push_back(limits_of(gpu));
  add(false);
  return json;
}

Json json_of(const Tenant& tenant) {
  Json memory = Json::array();
  for (const uint64_t bytes : tenant.memory_used_bytes()) memory.push_back(bytes);
  Json partition = Json::array();
  for (const uint32_t multiprocessors : tenant.partition_multiprocessors())
    partition.push_back(multiprocessors);
  Json gpus = Json::array();
  for (const uint32_t gpu : tenant.gpus()) gpus.push_back(gpu);
  return {{"name", tenant.name()},
          {"gpus", std::move(gpus)},
          {"configured", tenant.configured()},
          {"quota", tenant.configured() ? json_of(tenant.quota()) : Json(nullptr)},
          {"sessions", tenant.sessions()},
          {"memory_used_bytes", std::move(memory)},
          {"partition_multiprocessors", std::move(partition)},
          {"sessions_started", tenant.sessions_started()},
          {"gpu_nanoseconds", tenant.gpu_nanoseconds()},
          {"throttled_nanoseconds", tenant.throttled_nanoseconds()},
          {"bytes_from_client", tenant.bytes_from_client()},
          {"bytes_to_client", tenant.bytes_to_client()},
          {"calls", tenant.calls()},
          {"errors", tenant.errors()},
          {"over_quota", tenant.over_quota()},
          {"denied", tenant.denied()}};
}

Json json_of(const Snapshot& snapshot) {
  return {{"taken_ms", snapshot.taken_ms()},
          {"poold", json_of(snapshot.poold())},
          {"gpus", json_list(snapshot.gpus())},
          {"sessions", json_list(snapshot.sessions())},
          {"tenants", json_list(snapshot.tenants())}};
}

}  // namespace gpupool::admin
