// Core: where a part of a lease can move to. The other node needs as many GPUs of the same models, each at
// least as large, with room for the same amounts, because programs have seen the GPUs that they have.
#include <algorithm>

#include "common/text/units.h"
#include "protocol/control/node_condition.h"
#include "scheduler/core/core.h"
#include "scheduler/core/feasibility.h"

namespace gpupool::scheduler {
namespace {

bool is_like(const Gpu& gpu, const Gpu& before) {
  return gpu.model == before.model && gpu.allocations.total.memory >= before.allocations.total.memory;
}

const Gpu& gpu_of(const LeasePart& part, const LeasePart::Share& share) {
  return part.node->gpus[share.gpu];
}

// Finds a GPU of the node for each share of the part, in the same order; null if there are not enough that
// `fits` accepts. The largest GPUs choose first, each the smallest GPU that suffices.
template <class Fits>
std::optional<std::vector<LeasePart::Share>> match(const LeasePart& part, const Node& node, Fits fits) {
  std::vector<size_t> order(part.shares.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return gpu_of(part, part.shares[a]).allocations.total.memory >
           gpu_of(part, part.shares[b]).allocations.total.memory;
  });
  std::vector<LeasePart::Share> shares = part.shares;
  std::set<uint32_t> taken;
  for (const size_t i : order) {
    std::optional<uint32_t> best;
    for (uint32_t gpu = 0; gpu < node.gpus.size(); ++gpu) {
      const Gpu& its = node.gpus[gpu];
      if (taken.contains(gpu) || !is_like(its, gpu_of(part, part.shares[i])) || !fits(its, part.shares[i]))
        continue;
      if (!best || its.allocations.total.memory < node.gpus[*best].allocations.total.memory) best = gpu;
    }
    if (!best) return std::nullopt;
    taken.insert(*best);
    shares[i].gpu = *best;
  }
  return shares;
}

bool has_room(const Gpu& gpu, const LeasePart::Share& share) {
  return share.amount.within(gpu.allocations.spare());
}

// "2 GPUs of model A100, each with at least 16.0 GiB"
std::string text_of(const LeasePart& part) {
  const Gpu& first = gpu_of(part, part.shares.front());
  const bool alike = std::all_of(part.shares.begin(), part.shares.end(), [&](const auto& share) {
    return gpu_of(part, share).model == first.model &&
           gpu_of(part, share).allocations.total.memory == first.allocations.total.memory;
  });
  const std::string share = part.shares.front().amount.milli == kWholeGpu
                                ? ""
                                : percent_text(part.shares.front().amount.milli) + " % and " +
                                      bytes_text(part.shares.front().amount.memory) + " of ";
  return share + counted(part.shares.size(), "GPU") +
         (alike ? " of model " + first.model + " with at least " + bytes_text(first.allocations.total.memory)
                : " of the models that it has now");
}

}  // namespace

// Describes the part as a request for one node, for the placer. The GPUs' size is only a lower limit there if
// the part has whole GPUs.
Demand Core::demand_of(const Lease& lease, const LeasePart& part) const {
  pool::Request request;
  request.set_gpus(static_cast<uint32_t>(part.shares.size()));
  request.set_compute_milli(part.shares.front().amount.milli);
  for (const auto& share : part.shares) {
    const Gpu& gpu = gpu_of(part, share);
    const bool whole = share.amount.milli == kWholeGpu;
    request.set_memory_bytes(
        std::max(request.memory_bytes(), whole ? gpu.allocations.total.memory : share.amount.memory));
    if (std::find(request.models().begin(), request.models().end(), gpu.model) == request.models().end())
      request.add_models(gpu.model);
  }
  request.set_one_host(true);
  request.set_cpu_milli(static_cast<uint32_t>(part.host.cpu_milli));
  request.set_host_memory_bytes(part.host.memory);
  Demand demand(request);
  leases_.add_labelled(lease.tenant, lease.request.near(), demand.near);
  leases_.add_labelled(lease.tenant, lease.request.apart_from(), demand.apart);
  leases_.add_excluding(lease.tenant, lease.request.labels(), demand.apart);
  return demand;
}

// Returns why the part cannot move to this node now; null if it can.
std::optional<std::string> Core::why_not_to(const Lease& lease, const LeasePart& part, const Demand& demand,
                                            const Node& node) const {
  if (lease.part_on(node)) return "has a part of the lease already";
  if (!node.open()) {
    const auto [condition, because] = node.condition();
    return std::string("is ") + pool::text_of(condition) + (because.empty() ? "" : " (" + because + ")");
  }
  if (demand.apart.contains(&node)) return "has a lease that this one must not share a host with";
  const auto any = [](const Gpu&, const LeasePart::Share&) { return true; };
  if (!match(part, node, any)) return "does not have " + text_of(part);
  if (!match(part, node, has_room)) return "has no room now for " + text_of(part);
  if (!part.host.within(node.host.spare())) return "has no room now for its CPUs and host memory";
  return std::nullopt;
}

// Chooses GPUs for the part on the node `to`, or where placement decides if it is null. The error says why
// there are none.
Result<LeasePart> Core::place_part(const Lease& lease, const LeasePart& part, Node* to) {
  Demand demand = demand_of(lease, part);
  const auto on = [&](Node& node, std::vector<LeasePart::Share> shares) {
    LeasePart placed;
    placed.node = &node;
    placed.shares = std::move(shares);
    placed.host = part.host;
    return placed;
  };
  if (to) {
    if (auto why = why_not_to(lease, part, demand, *to))
      return Error{ErrorCode::invalid, "node '" + to->name() + "': " + *why};
    return on(*to, *match(part, *to, has_room));
  }
  std::string reasons;
  uint32_t others = 0, possible = 0;
  for (auto& [name, node] : nodes_) {
    if (node.forgotten() || &node == part.node) continue;
    const auto why = why_not_to(lease, part, demand, node);
    possible += !why;
    if (!why) continue;
    demand.apart.insert(&node);
    if (++others <= 3) reasons += "; " + name + ": " + *why;
  }
  if (possible == 0) {
    if (others > 3) reasons += "; and " + counted(others - 3, "further node");
    return Error{ErrorCode::invalid,
                 "no other node can take " + text_of(part) + (others == 0 ? ": there is none" : reasons)};
  }
  demand.apart.insert(part.node);
  counters_.set_placements_tried(counters_.placements_tried() + 1);
  if (const auto slots = placer_->place(demand)) {
    std::vector<LeasePart::Share> shares = part.shares;
    bool good = slots->size() == shares.size();
    for (size_t i = 0; good && i < shares.size(); ++i) {
      const GpuSlot& slot = (*slots)[i];
      const Gpu& gpu = slot.node->gpus[slot.gpu];
      good = slot.node == slots->front().node && is_like(gpu, gpu_of(part, part.shares[i])) &&
             has_room(gpu, part.shares[i]);
      shares[i].gpu = slot.gpu;
    }
    Node& node = *slots->front().node;
    if (!good) {  // GPUs of several kinds: the node is good, but the order of its GPUs may not be
      const auto matched = demand.apart.contains(&node) ? std::nullopt : match(part, node, has_room);
      good = matched.has_value();
      if (good) shares = *matched;
    }
    if (good && !demand.apart.contains(&node)) return on(node, std::move(shares));
  }
  for (auto& [name, node] : nodes_) {
    if (node.forgotten() || demand.apart.contains(&node)) continue;
    return on(node, *match(part, node, has_room));
  }
  return Error{ErrorCode::invalid, "no other node can take " + text_of(part)};
}

}  // namespace gpupool::scheduler
