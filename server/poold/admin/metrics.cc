#include "server/poold/admin/metrics.h"

#include <unistd.h>

#include <algorithm>

#include "common/http/metrics_page.h"
#include "common/text/printable.h"
#include "protocol/control/quota_fields.h"
#include "server/poold/admin/dcgm.h"

namespace gpupool::server {
namespace {

using prometheus::MetricType;

double seconds(uint64_t nanoseconds) {
  return static_cast<double>(nanoseconds) * 1e-9;
}
double seconds_of_ms(int64_t milliseconds) {
  return static_cast<double>(milliseconds) * 1e-3;
}

void add_suspensions(const admin::Suspensions& from, MetricsPage& page) {
  page.gauge("suspended_sessions", "Suspended sessions.", static_cast<double>(from.sessions()));
  auto bytes = page.gauge("suspended_bytes", "Bytes of the files of suspended sessions.");
  bytes.add({{"in", "memory"}}, static_cast<double>(from.memory_bytes()));
  bytes.add({{"in", "disk"}}, static_cast<double>(from.disk_bytes()));
  auto limits = page.gauge("suspended_limit_bytes", "Limit of the files of suspended sessions.");
  limits.add({{"in", "memory"}}, static_cast<double>(from.memory_limit_bytes()));
  limits.add({{"in", "disk"}}, static_cast<double>(from.disk_limit_bytes()));
  auto suspensions = page.counter("suspensions_ended_total", "Requests to suspend a session, by result.");
  suspensions.add({{"result", "suspended"}}, static_cast<double>(from.suspended()));
  suspensions.add({{"result", "failed"}}, static_cast<double>(from.not_suspended()));
  auto ends =
      page.counter("suspended_sessions_ended_total",
                   "Suspended sessions that went on, failed to go on and stayed suspended, or were over.");
  ends.add({{"result", "resumed"}}, static_cast<double>(from.resumed()));
  ends.add({{"result", "failed"}}, static_cast<double>(from.not_resumed()));
  ends.add({{"result", "dropped"}}, static_cast<double>(from.dropped()));
}

void add_poold(const admin::Poold& poold, MetricsPage& page) {
  page.gauge("build_info", "Always 1.").add({{"version", poold.version()}}, 1);
  page.gauge("ready", "1 if poold accepts new sessions.", poold.ready());
  page.gauge("start_time_seconds", "Start time of poold, in seconds since the Unix epoch.",
             seconds_of_ms(poold.started_ms()));
  auto workers = page.gauge("workers", "Worker processes by state.");
  workers.add({{"state", "idle"}}, poold.workers_idle());
  workers.add({{"state", "starting"}}, poold.workers_starting());
  workers.add({{"state", "serving"}}, poold.sessions());
  page.gauge("sessions", "Running sessions.", poold.sessions());
  page.gauge("sessions_limit", "Maximum number of running sessions.", poold.max_sessions());
  page.gauge("clients_waiting", "Clients waiting for a worker.", poold.clients_waiting());
  page.counter("sessions_started_total", "Sessions started.", static_cast<double>(poold.sessions_started()));
  page.counter("handshake_failures_total", "Connections refused.",
               static_cast<double>(poold.handshake_failures()));
  page.counter("audit_records_total", "Audit records, including lost ones.",
               static_cast<double>(poold.audit_records()));
  page.counter("audit_records_lost_total", "Audit records that could not be written.",
               static_cast<double>(poold.audit_records_lost()));
  page.counter("worker_start_failures_total", "Workers that failed to start.",
               static_cast<double>(poold.worker_start_failures()));
  auto migrations = page.counter("migrations_ended_total", "Migrations of sessions, by result.");
  migrations.add({{"result", "migrated"}}, static_cast<double>(poold.migrations().migrated()));
  migrations.add({{"result", "failed"}}, static_cast<double>(poold.migrations().failed()));
  migrations.add({{"result", "lost"}}, static_cast<double>(poold.migrations().lost()));
  add_suspensions(poold.suspensions(), page);
  const admin::ImageCache& cache = poold.image_cache();
  page.gauge("image_cache_images", "Cached module images.", static_cast<double>(cache.images()));
  page.gauge("image_cache_bytes", "Memory used by cached module images.", static_cast<double>(cache.bytes()));
  page.gauge("image_cache_limit_bytes", "Memory limit of the module image cache.",
             static_cast<double>(cache.capacity_bytes()));
  page.counter("image_cache_hits_total", "Module image cache hits.", static_cast<double>(cache.hits()));
  page.counter("image_cache_misses_total", "Module image cache misses.", static_cast<double>(cache.misses()));
}

void add_pool(const admin::PoolMembership& pool, MetricsPage& page) {
  const Labels node{{"node", pool.node()}};
  page.gauge("node_attended", "1 if poold is registered with a scheduler of its pool.")
      .add(node, !pool.scheduler().empty());
  page.gauge("node_fenced", "1 if the scheduler has fenced this node: it places no leases here.")
      .add(node, !pool.fenced_because().empty());
  page.gauge("node_clock_skew_seconds", "The scheduler's clock minus this host's, in seconds.")
      .add(node, static_cast<double>(pool.clock_skew_ms()) * 1e-3);
  page.gauge("node_leases", "Leases used on this host that have not ended or expired.")
      .add(node, static_cast<double>(pool.leases()));
}

template <class Message>
struct Row {
  const char* name;
  const char* help;
  MetricType type;
  double (*value)(const Message&);
};

constexpr MetricType kGauge = MetricType::Gauge;
constexpr MetricType kCounter = MetricType::Counter;

#define VALUE(Message, expression) [](const admin::Message& m) { return static_cast<double>(expression); }

const Row<admin::Gpu> kGpuRows[] = {
    {"gpu_memory_bytes", "Memory of the GPU.", kGauge, VALUE(Gpu, m.memory_total_bytes())},
    {"gpu_memory_used_bytes", "GPU memory allocated by sessions.", kGauge, VALUE(Gpu, m.memory_used_bytes())},
    {"gpu_memory_sold_bytes", "Sum of tenants' memory quotas on the GPU.", kGauge,
     VALUE(Gpu, m.memory_sold_bytes())},
    {"gpu_compute_sold_ratio", "Sum of tenants' compute shares of the GPU; 1 is the whole GPU.", kGauge,
     VALUE(Gpu, m.compute_sold_milli() / 1000.0)},
    {"gpu_partitioned_multiprocessors", "Multiprocessors assigned to tenants' partitions.", kGauge,
     VALUE(Gpu, m.partitioned_multiprocessors())},
    {"gpu_sessions", "Sessions that have used the GPU.", kGauge, VALUE(Gpu, m.sessions())},
    {"gpu_busy_seconds_total", "GPU time used by sessions.", kCounter,
     VALUE(Gpu, seconds(m.gpu_nanoseconds()))},
};

const Row<admin::SessionGpu> kSessionGpuRows[] = {
    {"session_memory_used_bytes", "GPU memory allocated by the session, including memory moved to the host.",
     kGauge, VALUE(SessionGpu, m.memory_used_bytes())},
    {"session_memory_peak_bytes", "Peak GPU memory of the session.", kGauge,
     VALUE(SessionGpu, m.memory_peak_bytes())},
    {"session_memory_in_host_bytes", "Part of the session's GPU memory that is in host memory.", kGauge,
     VALUE(SessionGpu, m.memory_in_host_bytes())},
    {"session_memory_checkpointed_bytes", "Bytes of checkpointed device memory held in host memory.", kGauge,
     VALUE(SessionGpu, m.memory_checkpointed_bytes())},
    {"session_memory_moved_bytes_total", "Bytes ever moved to host memory.", kCounter,
     VALUE(SessionGpu, m.memory_moved_bytes())},
    {"session_gpu_seconds_total", "GPU time used by the session.", kCounter,
     VALUE(SessionGpu, seconds(m.gpu_nanoseconds()))},
    {"session_throttled_seconds_total", "Time the session's work waited for a turn on the GPU.", kCounter,
     VALUE(SessionGpu, seconds(m.throttled_nanoseconds()))},
    {"session_launches_total", "Kernels and graphs launched.", kCounter, VALUE(SessionGpu, m.launches())},
};

const Row<admin::Session> kSessionRows[] = {
    {"session_start_time_seconds", "Start time of the session, in seconds since the Unix epoch.", kGauge,
     VALUE(Session, seconds_of_ms(m.started_ms()))},
    {"session_received_bytes_total", "Bytes received from the client.", kCounter,
     VALUE(Session, m.bytes_from_client())},
    {"session_sent_bytes_total", "Bytes sent to the client.", kCounter, VALUE(Session, m.bytes_to_client())},
    {"session_calls_total", "Commands executed.", kCounter, VALUE(Session, m.calls())},
    {"session_errors_total", "Commands that returned a CUDA error.", kCounter, VALUE(Session, m.errors())},
    {"session_over_quota_total", "Requests refused because of a quota.", kCounter,
     VALUE(Session, m.over_quota())},
    {"session_streams", "Streams of the session.", kGauge, VALUE(Session, m.streams())},
    {"session_state", "State of the session; 0: running, 1: locked, 2: checkpointed, 3: suspended.", kGauge,
     VALUE(Session, static_cast<int>(m.state()))},
    {"session_waits_for_client", "1 if a connection of the session is broken.", kGauge,
     VALUE(Session, m.waiting_ms() != 0)},
    {"session_moving", "1 if the session was asked to migrate and has not answered.", kGauge,
     VALUE(Session, !m.moving_to().empty())},
    {"session_moved_bytes", "Bytes sent by the session's present migration.", kGauge,
     VALUE(Session, m.moved_bytes())},
    {"session_suspended_bytes", "Bytes of the suspended session's file.", kGauge,
     VALUE(Session, m.suspended_bytes())},
    {"session_resumed_total", "Broken connections on which the session went on.", kCounter,
     VALUE(Session, m.resumed())},
    {"session_waited_seconds_total", "Time for which broken connections were down.", kCounter,
     VALUE(Session, m.waited_ms() * 1e-3)},
    {"session_resent_bytes_total", "Bytes sent again after breaks.", kCounter,
     VALUE(Session, m.resent_bytes())},
    {"session_modules", "Modules and libraries loaded by the session.", kGauge, VALUE(Session, m.modules())},
};

const Row<admin::Tenant> kTenantRows[] = {
    {"tenant_sessions", "Running sessions of the tenant.", kGauge, VALUE(Tenant, m.sessions())},
    {"tenant_sessions_started_total", "Sessions started by the tenant.", kCounter,
     VALUE(Tenant, m.sessions_started())},
    {"tenant_gpu_seconds_total", "GPU time used by the tenant.", kCounter,
     VALUE(Tenant, seconds(m.gpu_nanoseconds()))},
    {"tenant_throttled_seconds_total", "Time the tenant's work waited for turns on GPUs.", kCounter,
     VALUE(Tenant, seconds(m.throttled_nanoseconds()))},
    {"tenant_received_bytes_total", "Bytes received from the tenant's clients.", kCounter,
     VALUE(Tenant, m.bytes_from_client())},
    {"tenant_sent_bytes_total", "Bytes sent to the tenant's clients.", kCounter,
     VALUE(Tenant, m.bytes_to_client())},
    {"tenant_calls_total", "Commands executed.", kCounter, VALUE(Tenant, m.calls())},
    {"tenant_errors_total", "Commands that returned a CUDA error.", kCounter, VALUE(Tenant, m.errors())},
    {"tenant_over_quota_total", "Requests refused because of a quota.", kCounter,
     VALUE(Tenant, m.over_quota())},
    {"tenant_denied_total", "Sessions refused.", kCounter, VALUE(Tenant, m.denied())},
};
#undef VALUE

template <class Message, size_t n>
void add_rows(const Row<Message> (&rows)[n], MetricsPage& page, const auto& for_each) {
  for (const Row<Message>& row : rows) {
    auto family = row.type == kCounter ? page.counter(row.name, row.help) : page.gauge(row.name, row.help);
    for_each(
        [&](const Message& message, Labels labels) { family.add(std::move(labels), row.value(message)); });
  }
}

// Returns the quota of a tenant on a GPU, with the limits of this GPU alone.
admin::Quota quota_on(const admin::Tenant& tenant, uint32_t gpu) {
  admin::Quota quota = tenant.quota();
  const auto other = std::find_if(quota.gpus().begin(), quota.gpus().end(),
                                  [&](const admin::GpuQuota& one) { return one.gpu() == gpu; });
  if (other == quota.gpus().end()) return quota;
  for (const quota::Kind& kind : quota::kKinds) {
    const quota::Field& field = quota::field_of(kind);
    if (kind.per_gpu) field.set(quota, field.get_of_gpu(*other));
  }
  return quota;
}

bool sees(const admin::Tenant& tenant, uint32_t gpu) {
  return tenant.gpus().empty() ||
         std::find(tenant.gpus().begin(), tenant.gpus().end(), gpu) != tenant.gpus().end();
}

void add_limit(const quota::Kind& kind, const admin::Quota& quota, Labels labels,
               MetricsPage::Family& family) {
  const uint64_t value = quota::field_of(kind).get(quota);
  if (value == 0 && quota::is_limit(kind.unit)) return;  // unlimited
  family.add(std::move(labels), static_cast<double>(value) / (kind.unit == quota::Unit::percent ? 1000 : 1));
}

// Adds the limits of each tenant; those that may differ by GPU on each GPU that its sessions see.
void add_quotas(const admin::Snapshot& snapshot, MetricsPage& page) {
  for (const quota::Kind& kind : quota::kKinds) {
    if (!kind.metric.name) continue;
    auto family = page.gauge(kind.metric.name, kind.metric.help);
    for (const admin::Tenant& tenant : snapshot.tenants()) {
      if (!tenant.configured()) continue;
      if (!kind.per_gpu) add_limit(kind, tenant.quota(), {{"tenant", tenant.name()}}, family);
      for (const admin::Gpu& gpu : snapshot.gpus()) {
        if (!kind.per_gpu || !sees(tenant, gpu.index())) continue;
        add_limit(kind, quota_on(tenant, gpu.index()),
                  {{"tenant", tenant.name()}, {"gpu", std::to_string(gpu.index())}}, family);
      }
    }
  }
}

Labels labels_of(const admin::Session& session) {
  return {{"session", std::to_string(session.number())}, {"tenant", session.tenant()}};
}

}  // namespace

std::string metrics_text(const admin::Snapshot& snapshot) {
  MetricsPage page;
  add_poold(snapshot.poold(), page);
  if (snapshot.poold().has_pool()) add_pool(snapshot.poold().pool(), page);

  auto info = page.gauge("gpu_info", "Always 1.");
  for (const admin::Gpu& gpu : snapshot.gpus()) {
    info.add({{"gpu", std::to_string(gpu.index())}, {"name", gpu.name()}, {"uuid", gpu.uuid()}}, 1);
  }
  add_rows(kGpuRows, page, [&](const auto& add) {
    for (const admin::Gpu& gpu : snapshot.gpus()) add(gpu, Labels{{"gpu", std::to_string(gpu.index())}});
  });
  add_rows(kSessionGpuRows, page, [&](const auto& add) {
    for (const admin::Session& session : snapshot.sessions()) {
      for (const admin::SessionGpu& gpu : session.gpus()) {
        Labels labels = labels_of(session);
        labels.push_back({"gpu", std::to_string(gpu.gpu())});
        add(gpu, std::move(labels));
      }
    }
  });
  add_rows(kSessionRows, page, [&](const auto& add) {
    for (const admin::Session& session : snapshot.sessions()) add(session, labels_of(session));
  });

  auto used = page.gauge("tenant_memory_used_bytes", "GPU memory allocated by the tenant's sessions.");
  for (const admin::Tenant& tenant : snapshot.tenants()) {
    for (int gpu = 0; gpu < tenant.memory_used_bytes_size(); ++gpu) {
      used.add({{"tenant", tenant.name()}, {"gpu", std::to_string(gpu)}},
               static_cast<double>(tenant.memory_used_bytes(gpu)));
    }
  }
  add_quotas(snapshot, page);
  auto partition =
      page.gauge("tenant_partition_multiprocessors", "Multiprocessors in the tenant's partition of the GPU.");
  for (const admin::Tenant& tenant : snapshot.tenants()) {
    for (int gpu = 0; gpu < tenant.partition_multiprocessors_size(); ++gpu) {
      partition.add({{"tenant", tenant.name()}, {"gpu", std::to_string(gpu)}},
                    tenant.partition_multiprocessors(gpu));
    }
  }
  add_rows(kTenantRows, page, [&](const auto& add) {
    for (const admin::Tenant& tenant : snapshot.tenants()) add(tenant, Labels{{"tenant", tenant.name()}});
  });
  add_lease_labels(snapshot, page);
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  add_dcgm_metrics(snapshot, printable(host), page);
  return page.text();
}

}  // namespace gpupool::server
