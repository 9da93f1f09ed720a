#include "server/admin/usage.h"

#include <algorithm>

namespace gpupool::server {

void Usage::add(const SessionView& session) {
  const quota::SessionPage& page = session.page;
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

uint64_t believable_gpu_time(const SessionView& session, size_t gpu) {
  return std::min(session.page.gpus[gpu].gpu_nanoseconds.load(std::memory_order_relaxed),
                  static_cast<uint64_t>(session.age.count()));
}

void EndedUsage::add(const SessionView& session) {
  tenants[session.client.tenant].add(session);
  for (size_t gpu = 0; gpu < gpu_nanoseconds.size(); ++gpu) gpu_nanoseconds[gpu] += believable_gpu_time(session, gpu);
}

}  // namespace gpupool::server
