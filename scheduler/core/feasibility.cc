#include "scheduler/core/feasibility.h"

#include <map>
#include <utility>
#include <vector>

#include "common/text/units.h"
#include "protocol/control/priority.h"

namespace gpupool::scheduler {
namespace {

// Describes the pool by its most frequent kinds of GPUs:
// "4 GPUs on 2 hosts: 3 x H100 79.6 GiB, 1 x L4 22.5 GiB".
std::string contents_of(const Nodes& nodes) {
  constexpr size_t kMaxKinds = 4;
  std::map<std::string, uint32_t> counts;
  uint32_t gpus = 0, hosts = 0, withheld = 0;
  for (const auto& [name, node] : nodes) {
    if (!node.distrust_reason.empty() || node.gpus.empty()) continue;
    ++hosts;
    for (const Gpu& gpu : node.gpus) {
      withheld += gpu.allocations.withheld;
      if (!gpu.allocations.withheld)
        ++gpus, ++counts[gpu.model + " " + bytes_text(gpu.allocations.total.memory)];
    }
  }
  if (gpus == 0 && withheld > 0) return "only GPUs that several nodes report; see pool-admin nodes";
  if (gpus == 0) return "no GPUs: start poold with --pool-scheduler on a GPU host";
  std::vector<std::pair<std::string, uint32_t>> kinds(counts.begin(), counts.end());
  std::stable_sort(kinds.begin(), kinds.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text = gpus_text(uint64_t{gpus} * kWholeGpu) + " on " + std::to_string(hosts) +
                     (hosts == 1 ? " host" : " hosts");
  for (size_t i = 0; i < std::min(kinds.size(), kMaxKinds); ++i) {
    text += (i == 0 ? ": " : ", ") + std::to_string(kinds[i].second) + " x " + kinds[i].first;
  }
  if (kinds.size() > kMaxKinds) text += " and " + std::to_string(kinds.size() - kMaxKinds) + " more kinds";
  return text;
}

}  // namespace

std::string text_of(const Demand& demand) {
  std::string text = gpus_text(uint64_t{demand.gpus} * kWholeGpu);
  if (demand.milli < kWholeGpu)
    text = percent_text(demand.milli) + (demand.gpus == 1 ? " % of " : " % of each of ") + text;
  if (demand.memory > 0) text += " with " + size_text(demand.memory) + (demand.gpus == 1 ? "" : " each");
  if (!demand.models.empty()) {
    text += " of model ";
    for (const std::string& model : demand.models)
      text += (model == *demand.models.begin() ? "" : " or ") + model;
  }
  if (demand.gpus > 1 && demand.one_host) text += " on one host";
  if (demand.host.cpu_milli > 0) text += " and " + milli_text(demand.host.cpu_milli) + " CPUs";
  if (demand.host.memory > 0) text += " and " + size_text(demand.host.memory) + " of host memory";
  return text;
}

std::optional<std::string> never_allowed(const pool::Request& request, const Tenant& tenant) {
  const pool::TenantQuota& quota = tenant.quota;
  const uint64_t milli = uint64_t{request.gpus()} * request.compute_milli();
  // Writes limits in the syntax of `pool-admin quota set`, and requests in that of pool-run's options.
  const auto exceeds = [&](const std::string& asked, const std::string& limit) {
    return "the request for " + asked + " exceeds the quota of tenant '" + tenant.name + "', " + limit +
           ": ask for less (--gpus, --compute, --memory, --priority), or ask an operator to raise the quota";
  };
  if (quota.compute_milli() != 0 && milli > quota.compute_milli())
    return exceeds(gpus_text(milli), "gpus=" + milli_text(quota.compute_milli()));
  if (quota.memory_bytes() != 0 &&
      uint64_t{request.gpus()} * (request.memory_bytes() >> 12) > quota.memory_bytes() >> 12) {
    return exceeds((request.gpus() == 1 ? "" : std::to_string(request.gpus()) + " x ") +
                       size_text(request.memory_bytes()) + " of GPU memory",
                   "memory=" + size_text(quota.memory_bytes()));
  }
  if (request.priority() > quota.highest_priority()) {
    return exceeds(std::string("priority ") + pool::text_of(request.priority()),
                   std::string("highest-priority=") + pool::text_of(quota.highest_priority()));
  }
  return std::nullopt;
}

std::optional<std::string> never_within_memory(const Nodes& nodes, const Demand& demand,
                                               const Tenant& tenant) {
  const uint64_t quota = tenant.quota.memory_bytes();
  const uint64_t least = quota == 0 ? 0 : memory_for(nodes, demand);
  if (least <= quota) return std::nullopt;
  return "the request for " + text_of(demand) +
         " implies the same share of each GPU's memory as of its compute, at least " + bytes_text(least) +
         ", which exceeds the quota of tenant '" + tenant.name + "', memory=" + size_text(quota) +
         ": ask for less (--memory SIZE with --compute below 100), or ask an operator to raise the quota";
}

std::optional<std::string> why_never_places(const Nodes& nodes, const Demand& demand, bool with_fenced) {
  const uint32_t could = count_gpus(nodes, demand, all_of_host, [&](const Node& node, const Gpu& gpu) {
    return (with_fenced || (node.distrust_reason.empty() && !gpu.allocations.withheld)) &&
           demand.of(gpu).within(gpu.allocations.total);
  });
  if (could >= demand.gpus) return std::nullopt;
  if (demand.host.cpu_milli > 0 || demand.host.memory > 0) {
    Demand alone = demand;
    alone.host = {};
    if (!why_never_places(nodes, alone, with_fenced)) {
      return "cannot place " + text_of(demand) +
             ": the hosts with suitable GPUs do not offer these CPUs or this memory (poold --pool-cpu-milli, "
             "--pool-host-memory)";
    }
  }
  const std::string most = could == 0   ? "no GPU fits"
                           : could == 1 ? "at most 1 GPU fits"
                                        : "at most " + std::to_string(could) + " GPUs fit";
  return "cannot place " + text_of(demand) + ": " + most + "; the pool has " + contents_of(nodes);
}

uint64_t memory_for(const Nodes& nodes, const Demand& demand) {
  uint64_t least = 0;
  if (demand.memory != 0 && demand.milli < kWholeGpu) return demand.memory * demand.gpus;
  for (const auto& [name, node] : nodes) {
    for (const Gpu& gpu : node.gpus) {
      if (demand.suits(gpu) && (least == 0 || demand.of(gpu).memory < least)) least = demand.of(gpu).memory;
    }
  }
  return least * demand.gpus;
}

bool exceeds_quota(const Tenant& tenant, const Demand& demand, const std::vector<GpuSlot>& slots) {
  uint64_t memory = tenant.memory;
  for (const GpuSlot& slot : slots) memory += demand.of(slot.node->gpus[slot.gpu]).memory;
  return tenant.quota.memory_bytes() != 0 && memory > tenant.quota.memory_bytes();
}

bool fits_quota(const Nodes& nodes, const Tenant& tenant, const Demand& demand) {
  const pool::TenantQuota& quota = tenant.quota;
  if (quota.leases() != 0 && tenant.leases >= quota.leases()) return false;
  if (quota.compute_milli() != 0 &&
      tenant.milli + uint64_t{demand.gpus} * demand.milli > quota.compute_milli())
    return false;
  return quota.memory_bytes() == 0 || tenant.memory + memory_for(nodes, demand) <= quota.memory_bytes();
}

}  // namespace gpupool::scheduler
