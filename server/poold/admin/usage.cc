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

}  // namespace gpupool::server
