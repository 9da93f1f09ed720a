#include "server/poold/admin/usage.h"

#include <algorithm>

namespace gpupool::server {

void Usage::add(const SessionView& session) {
  const quota::SessionPage& page = session.page;
  gpu_nanoseconds_by_gpu.resize(quota::kMostGpus);
  for (size_t gpu = 0; gpu < quota::kMostGpus; ++gpu)
    gpu_nanoseconds_by_gpu[gpu] += plausible_gpu_time(session, gpu);
  for (const auto& gpu : page.gpus) {
    gpu_nanoseconds += gpu.gpu_nanoseconds.load(std::memory_order_relaxed);
    throttled_nanoseconds += gpu.throttled_nanoseconds.load(std::memory_order_relaxed);
  }
  bytes_from_client += page.bytes_from_client.load(std::memory_order_relaxed);
  bytes_to_client += page.bytes_to_client.load(std::memory_order_relaxed);
  calls += page.calls.load(std::memory_order_relaxed);
  errors += page.errors.load(std::memory_order_relaxed);
  over_quota += page.over_quota.load(std::memory_order_relaxed);
  ++sessions;
}

void Usage::add(const Usage& other) {
  gpu_nanoseconds_by_gpu.resize(quota::kMostGpus);
  for (size_t gpu = 0; gpu < quota::kMostGpus; ++gpu) gpu_nanoseconds_by_gpu[gpu] += other.gpu_time(gpu);
  gpu_nanoseconds += other.gpu_nanoseconds;
  throttled_nanoseconds += other.throttled_nanoseconds;
  bytes_from_client += other.bytes_from_client;
  bytes_to_client += other.bytes_to_client;
  calls += other.calls;
  errors += other.errors;
  over_quota += other.over_quota;
  sessions += other.sessions;
  denied += other.denied;
}

uint64_t plausible_gpu_time(const SessionView& session, size_t gpu) {
  return std::min(session.page.gpus[gpu].gpu_nanoseconds.load(std::memory_order_relaxed),
                  static_cast<uint64_t>(session.age.count()));
}

void EndedSessionsUsage::add(const SessionView& session) {
  tenants[session.client.tenant].add(session);
  for (size_t gpu = 0; gpu < gpu_nanoseconds.size(); ++gpu)
    gpu_nanoseconds[gpu] += plausible_gpu_time(session, gpu);
}

void EndedSessionsUsage::merge_into_tenant(const std::string& lease, const std::string& tenant) {
  const auto found = tenants.find(lease);
  if (found == tenants.end()) return;
  const Usage used = found->second;
  tenants.erase(found);
  tenants[tenant].add(used);
}

void EndedSessionsUsage::save(upgrade::State& to) const {
  to.mutable_gpu_nanoseconds()->Add(gpu_nanoseconds.begin(), gpu_nanoseconds.end());
  for (const auto& [tenant, from] : tenants) {
    upgrade::Usage& usage = *to.add_usage();
    usage.set_tenant(tenant);
    usage.set_gpu_nanoseconds(from.gpu_nanoseconds);
    usage.mutable_gpu_nanoseconds_by_gpu()->Add(from.gpu_nanoseconds_by_gpu.begin(),
                                                from.gpu_nanoseconds_by_gpu.end());
    usage.set_throttled_nanoseconds(from.throttled_nanoseconds);
    usage.set_bytes_from_client(from.bytes_from_client);
    usage.set_bytes_to_client(from.bytes_to_client);
    usage.set_calls(from.calls);
    usage.set_errors(from.errors);
    usage.set_over_quota(from.over_quota);
    usage.set_sessions(from.sessions);
    usage.set_denied(from.denied);
  }
}

void EndedSessionsUsage::restore(const upgrade::State& from) {
  for (size_t gpu = 0;
       gpu < std::min<size_t>(gpu_nanoseconds.size(), static_cast<size_t>(from.gpu_nanoseconds_size()));
       ++gpu)
    gpu_nanoseconds[gpu] = from.gpu_nanoseconds(static_cast<int>(gpu));
  for (const upgrade::Usage& usage : from.usage()) {
    tenants[usage.tenant()] = {.gpu_nanoseconds = usage.gpu_nanoseconds(),
                               .gpu_nanoseconds_by_gpu = {usage.gpu_nanoseconds_by_gpu().begin(),
                                                          usage.gpu_nanoseconds_by_gpu().end()},
                               .throttled_nanoseconds = usage.throttled_nanoseconds(),
                               .bytes_from_client = usage.bytes_from_client(),
                               .bytes_to_client = usage.bytes_to_client(),
                               .calls = usage.calls(),
                               .errors = usage.errors(),
                               .over_quota = usage.over_quota(),
                               .sessions = usage.sessions(),
                               .denied = usage.denied()};
  }
}

}  // namespace gpupool::server
