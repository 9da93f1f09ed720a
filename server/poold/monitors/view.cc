#include "server/poold/monitors/view.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>
#include <vector>

#include "common/text/gpu_uuid.h"
#include "common/version.h"
#include "protocol/driver/cuda_header.h"
#include "protocol/wire/frame.h"

namespace gpupool::server {
namespace {

uint64_t value(const std::atomic<uint64_t>& counter) {
  return counter.load(std::memory_order_relaxed);
}

// The GPUs visible to the tenant's sessions, in their order.
std::optional<std::vector<uint32_t>> visible_to(const MonitorSources& sources, const Client& client) {
  const Tenant* const tenant = sources.tenants.find(client.tenant);
  const size_t there = std::min(sources.pool.devices().size(), quota::kMostGpus);
  if (!tenant || there == 0 || (!client.lease.empty() && tenant->gpus.empty())) return std::nullopt;
  if (tenant->leased) return tenant->gpus;
  std::vector<uint32_t> all(there);
  std::iota(all.begin(), all.end(), 0u);
  return all;
}

uint64_t room_of(const Tenant& tenant, uint32_t gpu, const control::Device& device) {
  const uint64_t limit = tenant.quota.of(gpu).memory_bytes;
  return limit == 0 ? device.total_bytes() : std::min(limit, device.total_bytes());
}

// Adds with saturation at `most`, since session pages may contain anything.
void add_up(uint64_t& sum, uint64_t more, uint64_t most) {
  sum = std::min(most, sum + std::min(most, more));
}

void add_session(const SessionView& view, const Client& client, const std::vector<uint32_t>& gpus,
                 control::MonitorState& state) {
  control::MonitoredSession* session = nullptr;
  for (size_t place = 0; place < gpus.size(); ++place) {
    const auto& page = view.page.gpus[gpus[place]];
    const uint64_t memory = value(page.memory_used), time = plausible_gpu_time(view, gpus[place]);
    if (memory == 0 && time == 0 && value(page.launches) == 0) continue;
    if (!session) session = state.add_sessions();
    control::MonitoredUse& use = *session->add_uses();
    use.set_gpu(static_cast<uint32_t>(place));
    use.set_memory_bytes(memory);
    use.set_gpu_nanoseconds(time);
  }
  if (!session) return;
  session->set_number(view.number);
  const bool of_same_system = view.client.pid_space == client.pid_space && view.client.host == client.host;
  session->set_pid(of_same_system ? view.client.pid : 0);
}

}  // namespace

std::optional<control::HelloReply> monitor_devices(const MonitorSources& sources, const Client& client) {
  const auto gpus = visible_to(sources, client);
  if (!gpus) return std::nullopt;
  const Tenant& tenant = *sources.tenants.find(client.tenant);
  control::HelloReply reply;
  reply.set_protocol_version(wire::kProtocolVersion);
  reply.set_server_version(kVersion);
  reply.set_driver_version(sources.pool.driver_version());
  const auto& parts = sources.pool.partitions().groups_of(client.tenant);
  for (const uint32_t gpu : *gpus) {
    const control::Device& known = sources.pool.devices().at(gpu);
    control::Device& device = *reply.add_devices();
    device.set_name(known.name());
    device.set_uuid(known.uuid());
    device.set_pci_bus_id(known.pci_bus_id());
    device.set_total_bytes(room_of(tenant, gpu, known));
    *device.mutable_attributes() = known.attributes();
    for (control::Attribute& attribute : *device.mutable_attributes()) {
      if (attribute.id() != CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT || gpu >= parts.size()) continue;
      attribute.set_value(static_cast<int32_t>(sources.pool.partitions().gpus()[gpu].count(parts[gpu])));
    }
  }
  return reply;
}

std::optional<control::MonitorState> monitor_state(const MonitorSources& sources, const Client& client) {
  const auto gpus = visible_to(sources, client);
  if (!gpus) return std::nullopt;
  const Tenant& tenant = *sources.tenants.find(client.tenant);
  control::MonitorState state;
  state.set_taken_ns(std::chrono::steady_clock::now().time_since_epoch().count());
  struct Sums {
    uint64_t used = 0, resident_of_all = 0, time = 0;
  };
  std::vector<Sums> sums(gpus->size());
  const auto ended = sources.ended.tenants.find(client.tenant);
  for (size_t place = 0; place < gpus->size() && ended != sources.ended.tenants.end(); ++place) {
    sums[place].time = ended->second.gpu_time(gpus->at(place));
  }
  sources.pool.for_each_session([&](const SessionView& view) {
    const bool own = view.client.tenant == client.tenant;
    for (size_t place = 0; place < gpus->size(); ++place) {
      const uint32_t gpu = gpus->at(place);
      const uint64_t total = sources.pool.devices().at(gpu).total_bytes();
      const uint64_t used = value(view.page.gpus[gpu].memory_used),
                     in_host = value(view.page.gpus[gpu].memory_in_host);
      add_up(sums[place].resident_of_all, used > in_host ? used - in_host : 0, total);
      if (!own) continue;
      add_up(sums[place].used, used, total);
      sums[place].time += plausible_gpu_time(view, gpu);
    }
    if (own && static_cast<size_t>(state.sessions_size()) < wire::kMostMonitoredSessions)
      add_session(view, client, *gpus, state);
  });
  for (size_t place = 0; place < gpus->size(); ++place) {
    const control::Device& device = sources.pool.devices().at(gpus->at(place));
    const Sums& sum = sums[place];
    const uint64_t total = room_of(tenant, gpus->at(place), device);
    control::MonitoredGpu& gpu = *state.add_gpus();
    gpu.set_total_bytes(total);
    gpu.set_used_bytes(std::min(total, sum.used));
    // If memory may move to host memory, other tenants' memory does not reduce what is free.
    const uint64_t on_device = sources.pool.oversubscribes() ? device.total_bytes() - sum.used
                                                             : device.total_bytes() - sum.resident_of_all;
    gpu.set_free_bytes(std::min(total - gpu.used_bytes(), on_device));
    gpu.set_gpu_nanoseconds(sum.time);
    if (const auto sensors = sources.sensors.of(gpu_uuid_text(device.uuid())))
      *gpu.mutable_sensors() = sensors->sensors();
  }
  return state;
}

}  // namespace gpupool::server
