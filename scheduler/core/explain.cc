// Texts for users whose requests wait or can never be granted: the request, the contents of the pool, and the
// reason.
#include "common/text/units.h"
#include "protocol/control/node_condition.h"
#include "protocol/control/priority.h"
#include "scheduler/core/core.h"

namespace gpupool::scheduler {
namespace {

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

// Counts the suitable GPUs for which `good` holds and whose node has enough of the host resources that
// host(node) returns: on the best node if the demand needs one host, else over all nodes.
template <class Host, class Good>
uint32_t count_gpus(const Nodes& nodes, const Demand& demand, Host host, Good good) {
  uint32_t most = 0, sum = 0;
  for (const auto& [name, node] : nodes) {
    uint32_t here = 0;
    for (const Gpu& gpu : node.gpus) here += demand.suits(gpu) && good(node, gpu);
    here = demand.gpus_beside(host(node), here);
    most = std::max(most, here);
    sum += here;
  }
  return demand.one_host && demand.gpus > 1 ? most : sum;
}

HostAmount all_of_host(const Node& node) {
  return node.host.total;
}

// Lists the hosts that have suitable GPUs but get no lease for the demand now, with the causes:
// "; n1 is drained (new kernel), n2 is lost (no heartbeat for too long)".
std::string closed_hosts(const Nodes& nodes, const Demand& demand) {
  constexpr uint32_t kMaxHosts = 4;
  std::string text;
  uint32_t hosts = 0;
  for (const auto& [name, node] : nodes) {
    const bool suits =
        std::any_of(node.gpus.begin(), node.gpus.end(), [&](const Gpu& gpu) { return demand.suits(gpu); });
    const bool apart = demand.apart.contains(&node);
    const auto withheld = std::find_if(node.gpus.begin(), node.gpus.end(), [&](const Gpu& gpu) {
      return demand.suits(gpu) && gpu.allocations.withheld;
    });
    if (node.forgotten() || !suits || (node.open() && !apart && withheld == node.gpus.end()) ||
        ++hosts > kMaxHosts)
      continue;
    const auto [condition, because] = node.condition();
    text += (hosts == 1 ? "; " : ", ") + name;
    if (node.open() && apart)
      text += " has a lease that the request must not share a host with";
    else if (node.open())
      text += " has a GPU that another node reports as well";
    else
      text += std::string(" is ") + pool::text_of(condition) + (because.empty() ? "" : " (" + because + ")");
  }
  return hosts <= kMaxHosts ? text : text + " and " + std::to_string(hosts - kMaxHosts) + " more";
}

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

std::optional<std::string> Core::never_allowed(const pool::Request& request, const Tenant& tenant) const {
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

std::optional<std::string> Core::never_within_memory(const Demand& demand, const Tenant& tenant) const {
  const uint64_t quota = tenant.quota.memory_bytes();
  const uint64_t least = quota == 0 ? 0 : memory_for(demand);
  if (least <= quota) return std::nullopt;
  return "the request for " + text_of(demand) +
         " implies the same share of each GPU's memory as of its compute, at least " + bytes_text(least) +
         ", which exceeds the quota of tenant '" + tenant.name + "', memory=" + size_text(quota) +
         ": ask for less (--memory SIZE with --compute below 100), or ask an operator to raise the quota";
}

std::optional<std::string> Core::why_never_places(const Demand& demand, bool with_fenced) const {
  const uint32_t could = count_gpus(nodes_, demand, all_of_host, [&](const Node& node, const Gpu& gpu) {
    return (with_fenced || (node.distrust_reason.empty() && !gpu.allocations.withheld)) &&
           demand.of(gpu).within(gpu.allocations.total);
  });
  if (could >= demand.gpus) return std::nullopt;
  if (demand.host.cpu_milli > 0 || demand.host.memory > 0) {
    Demand alone = demand;
    alone.host = {};
    if (!why_never_places(alone, with_fenced)) {
      return "cannot place " + text_of(demand) +
             ": the hosts with suitable GPUs do not offer these CPUs or this memory (poold --pool-cpu-milli, "
             "--pool-host-memory)";
    }
  }
  const std::string most = could == 0   ? "no GPU fits"
                           : could == 1 ? "at most 1 GPU fits"
                                        : "at most " + std::to_string(could) + " GPUs fit";
  return "cannot place " + text_of(demand) + ": " + most + "; the pool has " + contents_of(nodes_);
}

const WaitingRequest* Core::blocking_request(const WaitingRequest& waiter) const {
  const auto blocked = blocked_.find(waiter.tenant);
  if (blocked == blocked_.end()) return nullptr;
  const auto found = queue_.all().find(blocked->second);
  return found != queue_.all().end() && found->second.before(waiter) ? &found->second : nullptr;
}

std::string Core::explain(const WaitingRequest& waiter) const {
  const Tenant& whose = tenants_.at(waiter.tenant);
  const WaitingRequest* const before = blocking_request(waiter);
  if (waiter.over_quota || before) {
    const pool::TenantQuota& quota = whose.quota;
    std::string text =
        before ? "waits behind request " + before->queue_id() + " of the same tenant, which " : "";
    text += "waits for quota of tenant '" + whose.name + "', in use: ";
    text += (quota.leases() == 0 ? "" : std::to_string(whose.leases) + " of ") +
            counted(quota.leases() == 0 ? whose.leases : quota.leases(), "lease") + ", ";
    text += quota.compute_milli() == 0 ? gpus_text(whose.milli)
                                       : milli_text(whose.milli) + " of " + gpus_text(quota.compute_milli());
    text += ", " + bytes_text(whose.memory);
    if (quota.memory_bytes() != 0) text += " of " + bytes_text(quota.memory_bytes());
    return text + " of GPU memory";
  }
  const Demand demand = demand_now(waiter);
  if (!settled_) {
    if (const auto never = why_never_places(Demand(waiter.request))) {
      return *never + "; the scheduler has just started and waits " +
             std::to_string((settling_ms() + 999) / 1000) +
             " s for more nodes to register before it refuses the request";
    }
  }
  const auto open_gpus = [&](const Demand& with) {
    return count_gpus(nodes_, with, all_of_host, [&](const Node& node, const Gpu& gpu) {
      return node.open() && !gpu.allocations.withheld && !demand.apart.contains(&node) &&
             with.of(gpu).within(gpu.allocations.total);
    });
  };
  const uint32_t could = open_gpus(demand);
  std::string text = "waits for " + text_of(demand);
  if (could < demand.gpus) {
    text += ": " + std::to_string(could) + " can be leased now" + closed_hosts(nodes_, demand);
    Demand without_quota = demand;
    without_quota.most_memory = UINT64_MAX;
    if (open_gpus(without_quota) == could) return text;
    return text + "; on other GPUs it would exceed the quota of tenant '" + whose.name +
           "', in use: " + bytes_text(whose.memory) + " of memory=" + size_text(whose.quota.memory_bytes());
  }
  const bool head = waiter.stream == head_;
  const auto count_free = [&](bool with_reserved) {
    const auto left = [&](const auto& allocations) {
      return with_reserved ? allocations.free() : allocations.spare();
    };
    return count_gpus(
        nodes_, demand, [&](const Node& node) { return left(node.host); },
        [&](const Node& node, const Gpu& gpu) {
          return node.open() && !demand.apart.contains(&node) && demand.of(gpu).within(left(gpu.allocations));
        });
  };
  const uint32_t free = count_free(head);
  text += ": " + std::to_string(free) + " of " + std::to_string(could) + " suitable GPUs " +
          (free == 1 ? "is" : "are") + " free";
  if (head) {
    std::set<std::string> nodes;
    for (const GpuSlot& slot : reservation_) nodes.insert(slot.node->name());
    text += "; it is first in the queue, and " + std::to_string(reservation_.size()) +
            (reservation_.size() == 1 ? " is" : " are") + " reserved for it on " + *nodes.begin();
    if (nodes.size() > 1) text += " and " + std::to_string(nodes.size() - 1) + " more";
  } else if (const auto first = queue_.all().find(head_); first != queue_.all().end()) {
    if (const uint32_t kept = count_free(true) - free; kept > 0) {
      text += "; " + std::to_string(kept) + (kept == 1 ? " is" : " are") + " reserved for request " +
              first->second.queue_id() + ", which is ahead in the queue";
    }
  }
  return text;
}

}  // namespace gpupool::scheduler
