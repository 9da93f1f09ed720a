#include "scheduler/placement/defragmenter.h"

namespace gpupool::placement {

int64_t beside(const DefragRequest& request, int64_t whole, int gpus) {
  return gpus == request.gpus ? whole : (whole + request.gpus - 1) / request.gpus * gpus;
}

bool fits(const DefragGpu& gpu) {
  return gpu.need_milli > 0 && gpu.milli >= gpu.need_milli && gpu.memory >= gpu.need_memory;
}

bool host_suffices(const DefragRequest& request, int64_t cpu_milli, int64_t memory, int gpus) {
  const int all = request.one_host ? request.gpus : gpus;
  return cpu_milli >= beside(request, request.cpu_milli, all) &&
         memory >= beside(request, request.host_memory, all);
}

int usable_gpus(const DefragHost& host, const DefragRequest& request) {
  if (!host.for_request) return 0;
  int count = 0;
  for (const DefragGpu& gpu : host.gpus) count += fits(gpu);
  count = std::min(count, request.gpus);
  while (count > 0 && !host_suffices(request, host.cpu_milli, host.host_memory, count)) --count;
  return request.one_host && count < request.gpus ? 0 : count;
}

// True if the part, which is not gone yet, may move and some other host has room for it.
bool Defragmenter::may_move(uint32_t part, const Parts& gone) {
  if (contains(gone, part) || moving_.contains(parts_[part].lease)) return false;
  const std::vector<uint32_t>& targets = targets_of(parts_[part]);
  return std::any_of(targets.begin(), targets.end(), [&](uint32_t host) {
    return host != parts_[part].host && !contains(parts_[part].excluded, host);
  });
}

// Returns the movable parts, besides those that are gone already, whose end makes room for the request on the
// GPU; null if there are none. The cheapest single part, or else the cheapest parts that are needed.
std::optional<Defragmenter::Parts> Defragmenter::to_clear(uint32_t host, uint32_t gpu, const Parts& gone) {
  const DefragGpu& its = state(host).gpus[gpu];
  if (its.need_milli == 0) return std::nullopt;
  Lack lack{int64_t{its.need_milli} - its.milli,
            static_cast<int64_t>(its.need_memory) - static_cast<int64_t>(its.memory)};
  for (const uint32_t part : gone) lack.cover(parts_[part], gpu);
  if (lack.none()) return Parts();
  Parts here;
  for (const uint32_t part : on_host_[host]) {
    const auto& shares = parts_[part].shares;
    const bool there = std::any_of(shares.begin(), shares.end(),
                                   [&](const RunningPart::Share& share) { return share.gpu == gpu; });
    if (there && may_move(part, gone)) here.push_back(part);
  }
  std::stable_sort(here.begin(), here.end(),
                   [&](uint32_t a, uint32_t b) { return parts_[a].cost() < parts_[b].cost(); });
  const auto lacking_without = [&](const Parts& parts) {
    Lack left = lack;
    for (const uint32_t part : parts) left.cover(parts_[part], gpu);
    return left;
  };
  std::optional<Parts> best;
  for (const uint32_t part : here) {
    if (lacking_without({part}).none()) {
      best = Parts{part};
      break;
    }
  }
  Parts several;
  for (const uint32_t part : here) {
    if (lacking_without(several).none()) break;
    several.push_back(part);
  }
  if (!lacking_without(several).none()) return best;
  for (size_t at = several.size(); at-- > 0;) {
    Parts fewer = several;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(at));
    if (lacking_without(fewer).none()) several = std::move(fewer);
  }
  if (!best || cost_of(several) < cost_of(*best)) best = std::move(several);
  return best;
}

// Chooses the GPUs of the host that become free at the least cost; null if not enough of them can.
std::optional<Defragmenter::Clearing> Defragmenter::clearing_of(uint32_t host) {
  Clearing out{.host = host, .parts = {}, .gpus = {}};
  while (static_cast<int>(out.gpus.size()) < request_.gpus) {
    std::optional<uint32_t> best;
    Parts best_parts;
    double best_cost = 0;
    for (uint32_t gpu = 0; gpu < hosts_[host].gpus.size(); ++gpu) {
      if (contains(out.gpus, gpu)) continue;
      auto parts = to_clear(host, gpu, out.parts);
      if (!parts) continue;
      const double cost = cost_of(*parts);
      if (best && cost >= best_cost) continue;
      best = gpu;
      best_parts = std::move(*parts);
      best_cost = cost;
    }
    if (!best) return std::nullopt;
    out.gpus.push_back(*best);
    out.parts.insert(out.parts.end(), best_parts.begin(), best_parts.end());
    if (!affordable(out.parts)) return std::nullopt;
  }
  if (!clear_host_resources(out) || !affordable(out.parts)) return std::nullopt;
  out.cost = cost_of(out.parts);
  return out;
}

// Adds parts whose processors and host memory the request needs; false if that does not suffice.
bool Defragmenter::clear_host_resources(Clearing& clearing) {
  int64_t cpu = hosts_[clearing.host].cpu_milli, memory = hosts_[clearing.host].host_memory;
  for (const uint32_t part : clearing.parts) {
    cpu += parts_[part].cpu_milli;
    memory += parts_[part].host_memory;
  }
  Parts rest;
  for (const uint32_t part : on_host_[clearing.host]) {
    if (may_move(part, clearing.parts)) rest.push_back(part);
  }
  std::stable_sort(rest.begin(), rest.end(),
                   [&](uint32_t a, uint32_t b) { return parts_[a].cost() < parts_[b].cost(); });
  for (const uint32_t part : rest) {
    if (host_suffices(request_, cpu, memory, request_.gpus)) return true;
    const bool helps = (cpu < request_.cpu_milli && parts_[part].cpu_milli > 0) ||
                       (memory < request_.host_memory && parts_[part].host_memory > 0);
    if (!helps) continue;
    cpu += parts_[part].cpu_milli;
    memory += parts_[part].host_memory;
    clearing.parts.push_back(part);
  }
  return host_suffices(request_, cpu, memory, request_.gpus);
}

}  // namespace gpupool::placement
