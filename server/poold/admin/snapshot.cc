#include "server/poold/admin/snapshot.h"

#include <unistd.h>

#include <algorithm>

#include "common/text/gpu_uuid.h"
#include "common/text/printable.h"
#include "common/version.h"
#include "server/tenants/quota_messages.h"

namespace gpupool::server {
namespace {

uint64_t value(const std::atomic<uint64_t>& counter) {
  return counter.load(std::memory_order_relaxed);
}
uint32_t value(const std::atomic<uint32_t>& counter) {
  return counter.load(std::memory_order_relaxed);
}

int64_t to_ms(std::chrono::system_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
}

bool is_used(const quota::SessionPage::Gpu& gpu) {
  return value(gpu.memory_used) + value(gpu.memory_peak) + value(gpu.gpu_nanoseconds) +
             value(gpu.throttled_nanoseconds) + value(gpu.launches) !=
         0;
}

uint64_t resident(const quota::SessionPage::Gpu& gpu) {
  const uint64_t used = value(gpu.memory_used), in_host = value(gpu.memory_in_host);
  return used > in_host ? used - in_host : 0;
}

void fill(const SessionView& view, admin::Session& session) {
  const quota::SessionPage& page = view.page;
  session.set_number(view.number);
  session.set_tenant(view.client.tenant);
  session.set_program(printable(view.client.program));
  session.set_host(printable(view.client.host));
  session.set_pid(view.client.pid);
  session.set_address(printable(view.client.address));
  session.set_transport(view.client.transport);
  session.set_credential(printable(view.client.credential.text()));
  session.set_started_ms(to_ms(view.started));
  session.set_worker_pid(view.worker);
  session.set_version(printable(view.version));
  session.set_inherited(view.inherited);
  for (size_t index = 0; index < quota::kMostGpus; ++index) {
    const auto& used = page.gpus[index];
    if (!is_used(used)) continue;
    admin::SessionGpu& gpu = *session.add_gpus();
    gpu.set_gpu(static_cast<uint32_t>(index));
    gpu.set_memory_used_bytes(value(used.memory_used));
    gpu.set_memory_peak_bytes(value(used.memory_peak));
    gpu.set_gpu_nanoseconds(value(used.gpu_nanoseconds));
    gpu.set_throttled_nanoseconds(value(used.throttled_nanoseconds));
    gpu.set_launches(value(used.launches));
    gpu.set_memory_in_host_bytes(value(used.memory_in_host));
    gpu.set_memory_moved_bytes(value(used.memory_moved));
    gpu.set_memory_checkpointed_bytes(value(used.memory_checkpointed));
  }
  session.set_bytes_from_client(value(page.bytes_from_client));
  session.set_bytes_to_client(value(page.bytes_to_client));
  session.set_calls(value(page.calls));
  session.set_errors(value(page.errors));
  session.set_over_quota(value(page.over_quota));
  session.set_streams(value(page.streams));
  session.set_modules(value(page.modules));
  session.set_ending(view.ending);
  session.set_state(static_cast<admin::Session::State>(view.state));
  session.set_waiting_ms(static_cast<uint64_t>(view.breaks.waiting().count()));
  session.set_resumed(view.breaks.resumed);
  session.set_waited_ms(static_cast<uint64_t>(view.breaks.waited.count()));
  session.set_resent_bytes(view.breaks.resent_bytes);
  if (view.moving.address.empty() || view.moving.to_file) return;
  session.set_moving_to(view.moving.address);
  session.set_moving_ms(static_cast<uint64_t>(view.moving.time.count()));
  session.set_moved_bytes(value(page.migrated_bytes));
}

// The state of a suspended session, as pool-admin prints it.
const char* suspension_text(const SuspendedSession& session) {
  switch (session.state) {
    case SuspendedSession::State::storing:
    case SuspendedSession::State::stored: return "suspending";
    case SuspendedSession::State::suspended: return session.wanted ? "waiting for client" : "suspended";
    case SuspendedSession::State::restoring:
    case SuspendedSession::State::restored: return "resuming";
  }
  return "";
}

void fill_suspension(const SuspendedSession& suspended, admin::Session& session) {
  session.set_suspended_ms(static_cast<uint64_t>(std::max<int64_t>(suspended.suspended_for().count(), 1)));
  session.set_suspended_bytes(suspended.bytes->load());
  session.set_suspended_to(suspended.file.path.empty() ? (suspended.to_disk ? "disk" : "host memory")
                                                       : printable(suspended.file.path));
  session.set_suspended_encrypted(suspended.file.encrypted());
  session.set_suspension(suspension_text(suspended));
}

// A session without a worker.
void fill(const SuspendedSession& suspended, admin::Session& session) {
  session.set_number(suspended.number);
  session.set_tenant(suspended.header.tenant());
  session.set_program(printable(suspended.header.program()));
  session.set_host(printable(suspended.header.host()));
  session.set_pid(suspended.header.pid());
  session.set_address(printable(suspended.header.address()));
  session.set_started_ms(suspended.header.started_ms());
  session.set_state(admin::Session::SUSPENDED);
  fill_suspension(suspended, session);
}

// Adds a session with a worker, unless it has been suspended and its worker is ending.
void add_session(const SessionView& view, const Suspensions& suspensions, admin::Snapshot& snapshot) {
  const SuspendedSession* const suspended = suspensions.find(view.number);
  if (suspended && suspended->has_left()) return;
  admin::Session& session = *snapshot.add_sessions();
  fill(view, session);
  if (suspended) fill_suspension(*suspended, session);
}

void add_suspended_sessions(const Suspensions& suspensions, admin::Snapshot& snapshot) {
  suspensions.for_each([&](const SuspendedSession& suspended) {
    if (suspended.has_left()) fill(suspended, *snapshot.add_sessions());
  });
}

void describe_suspensions(const Suspensions& from, admin::Suspensions& to) {
  uint64_t suspended = 0;
  from.for_each([&](const SuspendedSession& session) { suspended += session.has_left(); });
  to.set_sessions(suspended);
  to.set_memory_bytes(from.files().memory_used());
  to.set_memory_limit_bytes(from.files().settings().memory_bytes);
  to.set_disk_bytes(from.files().disk_used());
  to.set_disk_limit_bytes(from.files().settings().disk_bytes);
  to.set_suspended(from.counts().suspended);
  to.set_not_suspended(from.counts().not_suspended);
  to.set_resumed(from.counts().resumed);
  to.set_not_resumed(from.counts().not_resumed);
  to.set_dropped(from.counts().dropped);
}

void fill(const Usage& usage, admin::Tenant& tenant) {
  tenant.set_sessions_started(usage.sessions);
  tenant.set_gpu_nanoseconds(usage.gpu_nanoseconds);
  tenant.set_throttled_nanoseconds(usage.throttled_nanoseconds);
  tenant.set_bytes_from_client(usage.bytes_from_client);
  tenant.set_bytes_to_client(usage.bytes_to_client);
  tenant.set_calls(usage.calls);
  tenant.set_errors(usage.errors);
  tenant.set_over_quota(usage.over_quota);
  tenant.set_denied(usage.denied);
}

// Number of multiprocessors in the tenant's partition of a GPU.
uint32_t partition_of(const SnapshotSources& sources, const std::string& tenant, size_t gpu) {
  const quota::Partitions& partitions = sources.pool.partitions();
  const auto& groups = partitions.groups_of(tenant);
  return gpu < groups.size() ? partitions.gpus()[gpu].count(groups[gpu]) : 0;
}

void fill_gpus(const SnapshotSources& sources, admin::Snapshot& snapshot) {
  const auto& devices = sources.pool.devices();
  for (size_t index = 0; index < std::min(devices.size(), quota::kMostGpus); ++index) {
    const control::Device& device = devices[index];
    admin::Gpu& gpu = *snapshot.add_gpus();
    gpu.set_index(static_cast<uint32_t>(index));
    gpu.set_name(printable(device.name()));
    gpu.set_uuid(gpu_uuid_text(device.uuid()));
    gpu.set_pci_bus_id(printable(device.pci_bus_id()));
    gpu.set_memory_total_bytes(device.total_bytes());
    for (const auto& [name, tenant] : sources.tenants.all()) {
      if (!tenant.gpus.empty() &&
          std::find(tenant.gpus.begin(), tenant.gpus.end(), index) == tenant.gpus.end())
        continue;
      const quota::GpuShare share = tenant.quota.of(static_cast<uint32_t>(index));
      gpu.set_compute_sold_milli(gpu.compute_sold_milli() + share.compute_milli);
      gpu.set_memory_sold_bytes(gpu.memory_sold_bytes() + share.memory_bytes);
    }
    gpu.set_gpu_nanoseconds(sources.ended.gpu_nanoseconds[index]);
    if (auto sensors = sources.sensors.of(gpu.uuid())) *gpu.mutable_sensors() = std::move(*sensors);
    if (device.partition_groups() == 0) continue;
    gpu.set_multiprocessors(device.multiprocessors());
    gpu.set_smallest_partition(device.group_multiprocessors());
    for (const auto& [name, tenant] : sources.tenants.all()) {
      gpu.set_partitioned_multiprocessors(gpu.partitioned_multiprocessors() +
                                          partition_of(sources, name, index));
    }
  }
}

void add_to_gpus(const SessionView& view, admin::Snapshot& snapshot) {
  for (admin::Gpu& gpu : *snapshot.mutable_gpus()) {
    const auto& used = view.page.gpus[gpu.index()];
    if (!is_used(used)) continue;
    gpu.set_sessions(gpu.sessions() + 1);
    gpu.set_memory_used_bytes(
        std::min(gpu.memory_total_bytes(),
                 gpu.memory_used_bytes() + std::min(gpu.memory_total_bytes(), resident(used))));
    gpu.set_gpu_nanoseconds(gpu.gpu_nanoseconds() + plausible_gpu_time(view, gpu.index()));
  }
}

}  // namespace

admin::Poold describe_poold(const SnapshotSources& sources) {
  const WorkerPool::State state = sources.pool.state();
  const ImageCache& images = sources.pool.images();
  admin::Poold poold;
  poold.set_version(kVersion);
  poold.set_pid(::getpid());
  poold.set_started_ms(to_ms(sources.started));
  poold.set_upgrades(sources.upgrades);
  poold.set_ready(state.not_ready_because.empty());
  poold.set_not_ready_because(printable(state.not_ready_because));
  poold.set_workers_idle(state.idle);
  poold.set_workers_starting(state.starting);
  poold.set_sessions(state.serving);
  poold.set_clients_waiting(state.waiting);
  poold.set_max_sessions(sources.pool.max_sessions());
  poold.set_sessions_started(state.sessions_started);
  poold.set_handshake_failures(sources.acceptor.refused_connections());
  poold.set_audit_records(sources.audit.counts().records);
  poold.set_audit_records_lost(sources.audit.counts().lost);
  poold.set_worker_start_failures(state.start_failures);
  admin::ImageCache& cache = *poold.mutable_image_cache();
  cache.set_images(images.count());
  cache.set_bytes(images.bytes());
  cache.set_capacity_bytes(images.capacity());
  cache.set_hits(images.hits());
  cache.set_misses(images.misses());
  const Migrations::Counts& migrations = sources.pool.migration_counts();
  poold.mutable_migrations()->set_migrated(migrations.migrated);
  poold.mutable_migrations()->set_failed(migrations.failed);
  poold.mutable_migrations()->set_lost(migrations.lost);
  describe_suspensions(sources.pool.suspensions(), *poold.mutable_suspensions());
  if (sources.agent) sources.agent->describe(*poold.mutable_pool());
  return poold;
}

admin::Snapshot take_snapshot(const SnapshotSources& sources) {
  admin::Snapshot snapshot;
  snapshot.set_taken_ms(to_ms(std::chrono::system_clock::now()));
  *snapshot.mutable_poold() = describe_poold(sources);
  fill_gpus(sources, snapshot);

  struct Now {
    Usage usage;
    uint32_t sessions = 0;
    std::vector<uint64_t> memory;
  };
  std::map<std::string, Now> tenants;
  for (const auto& [name, usage] : sources.ended.tenants) tenants[name].usage = usage;
  for (const auto& [name, tenant] : sources.tenants.all()) tenants[name];
  const size_t gpus = static_cast<size_t>(snapshot.gpus_size());
  sources.pool.for_each_session([&](const SessionView& view) {
    add_session(view, sources.pool.suspensions(), snapshot);
    add_to_gpus(view, snapshot);
    Now& now = tenants[view.client.tenant];
    now.usage.add(view);
    ++now.sessions;
    now.memory.resize(gpus);
    for (size_t gpu = 0; gpu < gpus; ++gpu) now.memory[gpu] += value(view.page.gpus[gpu].memory_used);
  });
  add_suspended_sessions(sources.pool.suspensions(), snapshot);
  std::sort(snapshot.mutable_sessions()->begin(), snapshot.mutable_sessions()->end(),
            [](const auto& a, const auto& b) { return a.number() < b.number(); });
  for (auto& [name, now] : tenants) {
    admin::Tenant& tenant = *snapshot.add_tenants();
    tenant.set_name(name);
    if (const Tenant* const configured = sources.tenants.find(name)) {
      tenant.set_configured(true);
      *tenant.mutable_quota() = to_message(configured->quota);
      tenant.mutable_gpus()->Assign(configured->gpus.begin(), configured->gpus.end());
      tenant.set_leased(configured->leased);
      for (const std::string& label : configured->labels) tenant.add_labels(printable(label));
      for (size_t gpu = 0; gpu < sources.pool.partitions().groups_of(name).size(); ++gpu) {
        tenant.add_partition_multiprocessors(partition_of(sources, name, gpu));
      }
    }
    tenant.set_sessions(now.sessions);
    now.memory.resize(gpus);
    for (const uint64_t bytes : now.memory) tenant.add_memory_used_bytes(bytes);
    fill(now.usage, tenant);
  }
  return snapshot;
}

}  // namespace gpupool::server
