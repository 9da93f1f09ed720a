// Whether a request can ever be granted, and the text for its user if it cannot: by its tenant's quota, and
// by the GPUs of the pool. Functions of the state that they are given; any thread.
#pragma once
#include <algorithm>
#include <optional>
#include <string>

#include "scheduler/core/placer.h"
#include "scheduler/core/tenant.h"

namespace gpupool::scheduler {

// "2 GPUs of model L4 on one host", for texts to users.
std::string text_of(const Demand& demand);

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

inline HostAmount all_of_host(const Node& node) {
  return node.host.total;
}

// Returns why the tenant's quota never allows the request; null if it does.
std::optional<std::string> never_allowed(const pool::Request& request, const Tenant& tenant);
// Checks the memory quota against the implied memory: a request without --memory takes the same share of
// memory as of compute.
std::optional<std::string> never_within_memory(const Nodes& nodes, const Demand& demand,
                                               const Tenant& tenant);
// Returns null if the demand could be placed on an idle pool. `with_fenced` also counts fenced nodes and
// withheld GPUs.
std::optional<std::string> why_never_places(const Nodes& nodes, const Demand& demand,
                                            bool with_fenced = false);
// True if the tenant's quota has room for the demand now.
bool fits_quota(const Nodes& nodes, const Tenant& tenant, const Demand& demand);
// True if these GPUs for the demand would exceed the tenant's quota of memory.
bool exceeds_quota(const Tenant& tenant, const Demand& demand, const std::vector<GpuSlot>& slots);
// Returns the least GPU memory in bytes that the demand can take in total, whichever GPUs it gets.
uint64_t memory_for(const Nodes& nodes, const Demand& demand);

}  // namespace gpupool::scheduler
