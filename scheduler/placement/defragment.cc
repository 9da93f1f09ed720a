#include "scheduler/placement/defragment.h"

#include <limits>
#include <tuple>

#include "scheduler/placement/defragmenter.h"

namespace gpupool::placement {
namespace {

constexpr size_t kMostTries = 64;       // hosts that the search clears on paper, cheapest first
constexpr size_t kMostGpuTries = 4096;  // GPUs, for a request over several hosts

}  // namespace

// Returns GPUs for the part's shares, in their order: the largest GPUs choose first, each the GPU on which
// the least is left.
std::optional<std::vector<uint32_t>> Defragmenter::match(const RunningPart& part,
                                                         const DefragHost& to) const {
  if (part.cpu_milli > to.cpu_milli || part.host_memory > to.host_memory) return std::nullopt;
  const auto& before = hosts_[part.host].gpus;
  std::vector<size_t> order(part.shares.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return before[part.shares[a].gpu].size > before[part.shares[b].gpu].size;
  });
  std::vector<uint32_t> gpus(part.shares.size());
  uint32_t taken = 0;
  for (const size_t i : order) {
    const RunningPart::Share& share = part.shares[i];
    std::optional<uint32_t> best;
    for (uint32_t gpu = 0; gpu < to.gpus.size(); ++gpu) {
      const DefragGpu& its = to.gpus[gpu];
      if ((taken >> gpu & 1) != 0 || its.kind != before[share.gpu].kind ||
          its.size < before[share.gpu].size || its.milli < share.milli || its.memory < share.memory)
        continue;
      if (!best || its.milli < to.gpus[*best].milli) best = gpu;
    }
    if (!best) return std::nullopt;
    taken |= 1u << *best;
    gpus[i] = *best;
  }
  return gpus;
}

// Returns the hosts that had room for a part of this size before the plan's moves: first those whose matching
// GPUs have the least free, then those that cost the most to clear. None if the limit of work is reached.
const std::vector<uint32_t>& Defragmenter::targets_of(const RunningPart& part) {
  std::vector<uint64_t> key{static_cast<uint64_t>(part.cpu_milli), static_cast<uint64_t>(part.host_memory)};
  for (const RunningPart::Share& share : part.shares) {
    const DefragGpu& gpu = hosts_[part.host].gpus[share.gpu];
    key.insert(key.end(), {gpu.kind, gpu.size, static_cast<uint64_t>(share.milli), share.memory});
  }
  const auto known = targets_.find(key);
  if (known != targets_.end()) return known->second;
  static const std::vector<uint32_t> none;
  if (work_ >= limits_.work) return none;
  work_ += hosts_.size();
  struct Target {
    int left;  // thousandths of the GPUs that the part would get
    double clearing;
    uint32_t host;
  };
  std::vector<Target> found;
  for (uint32_t host = 0; host < hosts_.size(); ++host) {
    if (!hosts_[host].for_moves) continue;
    const auto gpus = match(part, hosts_[host]);
    if (!gpus) continue;
    int left = 0;
    for (const uint32_t gpu : *gpus) left += hosts_[host].gpus[gpu].milli;
    found.push_back({left, clearing_cost_[host], host});
  }
  std::sort(found.begin(), found.end(), [](const Target& a, const Target& b) {
    return std::tuple(a.left, -a.clearing, a.host) < std::tuple(b.left, -b.clearing, b.host);
  });
  std::vector<uint32_t>& hosts = targets_[std::move(key)];
  for (const Target& target : found) hosts.push_back(target.host);
  return hosts;
}

// Takes what the moved part needs from the free amounts of its new host, or gives it back.
void Defragmenter::take_target(const DefragPlan::Move& move, bool give_back) {
  const RunningPart& moved = parts_[move.part];
  DefragHost& to = change(move.host);
  const int sign = give_back ? 1 : -1;
  for (size_t i = 0; i < move.gpus.size(); ++i) {
    DefragGpu& gpu = to.gpus[move.gpus[i]];
    const RunningPart::Share& share = moved.shares[i];
    gpu.milli += sign * share.milli;
    gpu.memory = give_back ? gpu.memory + share.memory : gpu.memory - share.memory;
  }
  to.cpu_milli += sign * moved.cpu_milli;
  to.host_memory += sign * moved.host_memory;
}

bool Defragmenter::move_to(uint32_t part, uint32_t host) {
  const RunningPart& moved = parts_[part];
  const auto gpus = match(moved, state(host));
  if (!gpus) return false;
  plan_.moves.push_back({part, host, *gpus});
  take_target(plan_.moves.back(), false);
  gone_[moved.host].push_back(part);
  moving_.insert(moved.lease);
  plan_.bytes += moved.bytes;
  plan_.seconds += moved.seconds;
  plan_.cost += moved.cost();
  return true;
}

// Takes the last moves back until so many are left.
void Defragmenter::undo(size_t moves) {
  for (; plan_.moves.size() > moves; plan_.moves.pop_back()) {
    const RunningPart& moved = parts_[plan_.moves.back().part];
    take_target(plan_.moves.back(), true);
    gone_[moved.host].pop_back();
    moving_.erase(moved.lease);
    plan_.bytes -= moved.bytes;
    plan_.seconds -= moved.seconds;
    plan_.cost -= moved.cost();
  }
}

// Finds places for all of these parts of one host, the largest first; changes nothing if there are not
// enough.
bool Defragmenter::move_all(Parts parts) {
  const auto size = [&](uint32_t part) {
    int milli = 0;
    for (const RunningPart::Share& share : parts_[part].shares) milli += share.milli;
    return std::pair(parts_[part].shares.size(), milli);
  };
  std::stable_sort(parts.begin(), parts.end(), [&](uint32_t a, uint32_t b) { return size(a) > size(b); });
  const size_t before = plan_.moves.size();
  for (const uint32_t part : parts) {
    const RunningPart& moved = parts_[part];
    bool placed = false;
    for (const uint32_t host : targets_of(moved)) {
      if (work_ >= limits_.work) break;
      ++work_;
      if (host == moved.host || contains(moved.excluded, host)) continue;
      if ((placed = move_to(part, host))) break;
    }
    if (placed) continue;
    undo(before);
    return false;
  }
  return true;
}

bool Defragmenter::on_one_host() {
  std::vector<Clearing> tries;
  for (uint32_t host = 0; host < hosts_.size(); ++host) {
    if (!hosts_[host].for_request) continue;
    if (auto clearing = clearing_of(host)) tries.push_back(std::move(*clearing));
  }
  const auto cheaper = [](const Clearing& a, const Clearing& b) {
    return std::tuple(a.cost, a.parts.size(), a.host) < std::tuple(b.cost, b.parts.size(), b.host);
  };
  std::sort(tries.begin(), tries.end(), cheaper);
  for (size_t i = 0; i < std::min(tries.size(), kMostTries) && work_ < limits_.work; ++i) {
    if (!move_all(tries[i].parts)) continue;
    for (const uint32_t gpu : tries[i].gpus) plan_.place.emplace_back(tries[i].host, gpu);
    return true;
  }
  return false;
}

// Gives the GPU to the request. Takes from the free amounts only what the departing parts (`gone`) do not
// cover: their room is not free yet, so no moved part may be placed in it.
void Defragmenter::take(uint32_t host, uint32_t gpu, const Parts& gone) {
  DefragHost& on = change(host);
  DefragGpu& its = on.gpus[gpu];
  Lack lack{its.need_milli, static_cast<int64_t>(its.need_memory)};
  for (const uint32_t part : gone) lack.cover(parts_[part], gpu);
  its.milli -= static_cast<int>(std::clamp<int64_t>(lack.milli, 0, its.milli));
  its.memory -= static_cast<uint64_t>(std::clamp<int64_t>(lack.memory, 0, static_cast<int64_t>(its.memory)));
  on.cpu_milli -= std::min(on.cpu_milli, beside(request_, request_.cpu_milli, 1));
  on.host_memory -= std::min(on.host_memory, beside(request_, request_.host_memory, 1));
  plan_.place.emplace_back(host, gpu);
}

bool Defragmenter::take_with_moves(uint32_t host, uint32_t gpu) {
  const Parts gone = gone_[host];
  const auto parts = to_clear(host, gpu, gone);
  if (!parts || !affordable(*parts)) return false;
  const auto own = [&](const auto& place) { return place.first == host; };
  const auto gpus = static_cast<int>(std::count_if(plan_.place.begin(), plan_.place.end(), own)) + 1;
  int64_t cpu = hosts_[host].cpu_milli, memory = hosts_[host].host_memory;
  for (const Parts* const leaving : {&gone, &*parts}) {
    for (const uint32_t part : *leaving) {
      cpu += parts_[part].cpu_milli;
      memory += parts_[part].host_memory;
    }
  }
  for (const DefragPlan::Move& move : plan_.moves) {
    if (move.host != host) continue;
    cpu -= parts_[move.part].cpu_milli;
    memory -= parts_[move.part].host_memory;
  }
  if (!host_suffices(request_, cpu, memory, gpus) || !move_all(*parts)) return false;
  take(host, gpu, gone_[host]);
  return true;
}

bool Defragmenter::on_several_hosts() {
  std::vector<std::pair<double, std::pair<uint32_t, uint32_t>>> tries;
  for (uint32_t host = 0; host < hosts_.size(); ++host) {
    int free = usable_gpus(hosts_[host], request_);
    for (uint32_t gpu = 0; hosts_[host].for_request && gpu < hosts_[host].gpus.size(); ++gpu) {
      const bool now = fits(hosts_[host].gpus[gpu]);
      if (now && free > 0 && static_cast<int>(plan_.place.size()) < request_.gpus) {
        take(host, gpu, {});
        --free;
        continue;
      }
      const auto parts = now ? std::nullopt : to_clear(host, gpu, {});
      if (parts && affordable(*parts)) tries.push_back({cost_of(*parts), {host, gpu}});
    }
  }
  std::sort(tries.begin(), tries.end());
  for (size_t i = 0; i < std::min(tries.size(), kMostGpuTries) && work_ < limits_.work; ++i) {
    if (static_cast<int>(plan_.place.size()) == request_.gpus) break;
    take_with_moves(tries[i].second.first, tries[i].second.second);
  }
  return static_cast<int>(plan_.place.size()) == request_.gpus;
}

double RunningPart::cost() const {
  double gpus = 0;
  for (const Share& share : shares) gpus += share.milli / 1000.0;
  return gpus * seconds;
}

double expected_wait(const std::vector<DefragHost>& hosts, const std::vector<RunningPart>& parts,
                     const DefragRequest& request) {
  std::vector<DefragHost> later = hosts;
  std::vector<int> usable;
  int sum = 0;
  for (const DefragHost& host : later) sum += usable.emplace_back(usable_gpus(host, request));
  if (sum >= request.gpus) return 0;
  std::vector<const RunningPart*> order;
  order.reserve(parts.size());
  for (const RunningPart& part : parts) order.push_back(&part);
  std::stable_sort(order.begin(), order.end(),
                   [](const RunningPart* a, const RunningPart* b) { return a->remaining < b->remaining; });
  for (const RunningPart* const part : order) {
    DefragHost& host = later[part->host];
    for (const RunningPart::Share& share : part->shares) {
      host.gpus[share.gpu].milli += share.milli;
      host.gpus[share.gpu].memory += share.memory;
    }
    host.cpu_milli += part->cpu_milli;
    host.host_memory += part->host_memory;
    sum -= usable[part->host];
    sum += usable[part->host] = usable_gpus(host, request);
    if (sum >= request.gpus) return part->remaining;
  }
  return std::numeric_limits<double>::infinity();
}

DefragLimits limits_left(const DefragBudget& budget, uint64_t moves_spent, uint64_t bytes_spent,
                         uint64_t moving) {
  const auto left = [](uint64_t limit, uint64_t used) { return limit - std::min(limit, used); };
  DefragLimits limits;
  if (budget.moves != 0) limits.moves = static_cast<uint32_t>(left(budget.moves, moves_spent));
  if (budget.at_once != 0)
    limits.moves = static_cast<uint32_t>(std::min<uint64_t>(limits.moves, left(budget.at_once, moving)));
  if (budget.bytes != 0) limits.bytes = left(budget.bytes, bytes_spent);
  return limits;
}

bool enough_is_free(const std::vector<DefragHost>& hosts, const DefragRequest& request) {
  double free = 0;
  for (const DefragHost& host : hosts) {
    for (const DefragGpu& gpu : host.gpus) free += gpu.milli;
  }
  return free >= request.gpus * request.milli;
}

std::optional<DefragPlan> plan_defragmentation(const std::vector<DefragHost>& hosts,
                                               const std::vector<RunningPart>& parts,
                                               const DefragRequest& request, const DefragLimits& limits) {
  if (limits.moves == 0 || !enough_is_free(hosts, request)) return std::nullopt;
  const double wait = expected_wait(hosts, parts, request);
  if (wait == 0) return std::nullopt;
  return Defragmenter(hosts, parts, request, limits, wait).run();
}

}  // namespace gpupool::placement
