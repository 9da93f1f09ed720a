#include "scheduler/placement/placer.h"

#include <algorithm>
#include <bit>
#include <map>
#include <tuple>

namespace gpupool::placement {
namespace {

// The policy is rebuilt when at least this fraction of the mix of requests has changed. The mix is checked
// when the number of arrivals has reached kLookAgain times the number at the last check, plus kLookLater.
constexpr double kDrift = 0.01;
constexpr double kLookAgain = 1.3;
constexpr double kLookLater = 20;

Error invalid(const char* message) {
  return {ErrorCode::invalid, message};
}

}  // namespace

Placer::Placer(const Cluster& cluster, Options options)
    : cluster_(cluster),
      options_(options),
      random_(options.seed),
      index_(cluster, options.index_bytes_per_gpu *
                          static_cast<size_t>(std::max<int64_t>(cluster.total_milli() / kWholeGpu, 10'000))) {
  learn();
}

Result<void> Placer::check(const Request& request) {
  if (request.gpus < 0 || request.gpus > 0xffff) return invalid("the number of GPUs must be 0 to 65535");
  if (request.gpus > 0 && (request.milli < 1 || request.milli > kWholeGpu))
    return invalid("a share must be 0.001 to 1 GPU");
  if (request.gpus == 0 && request.memory_bytes > 0) return invalid("GPU memory requested without a GPU");
  if (request.cpu_milli < 0 || request.host_memory < 0)
    return invalid("processors and host memory must not be negative");
  if (request.gpus == 0 && request.cpu_milli == 0 && request.host_memory == 0)
    return invalid("the request asks for nothing");
  if (request.spread == Distance::host && request.gpus > kMaxGpusPerNode)
    return invalid("more GPUs than a node can have; allow several nodes");
  return {};
}

void Placer::count(const Request& request) {
  // Requests that may span nodes are placed GPU by GPU, so they count as that many requests for one GPU.
  if (!request.one_host()) {
    workload_.observe(cluster_.shape_of(request, 1), request.gpus);
  } else {
    workload_.observe(cluster_.shape_of(request));
  }
}

void Placer::observe(const Request& request) {
  if (fixed_ || !depends_on_workload(options_.policy)) return;
  count(request);
  if (workload_.total() < next_look_) return;
  next_look_ = workload_.total() * kLookAgain + kLookLater;
  if (workload_.drift_from(known_) > kDrift) learn();
}

void Placer::set_workload(const std::vector<Request>& requests) {
  workload_ = {};
  for (const Request& request : requests) count(request);
  learn();
  fixed_ = true;
}

void Placer::learn() {
  PolicyInput s{
      .models = cluster_.models(), .extremes = cluster_.extremes(), .families = cluster_.families()};
  if (workload_.total() > 0) s.kinds = workload_.kinds();
  policy_ = make_policy(options_.policy, s);
  known_ = std::move(s.kinds);
  known_extremes_ = cluster_.extremes_version();
  index_.renew();
}

bool Placer::allowed(const Request& request, uint32_t slot) const {
  for (const GroupRule& rule : request.rules) {
    const auto* const slots = cluster_.slots_of(rule.group);
    if (slots == nullptr) continue;
    bool near = false;
    if (rule.within == Distance::host) {
      near = slots->contains(slot);
    } else {
      near = std::any_of(slots->begin(), slots->end(), [&](const auto& entry) {
        return cluster_.distance(entry.first, slot) <= rule.within;
      });
    }
    if (near == rule.apart) return false;
  }
  return true;
}

std::optional<uint32_t> Placer::random_slot(const Request& request, const Shape& shape) {
  // Reservoir sampling: each fitting node is chosen with equal probability.
  std::optional<uint32_t> chosen;
  uint64_t fitting = 0;
  for (uint32_t slot = 0; slot < cluster_.slots(); ++slot) {
    if (cluster_.state(slot).fits(shape) && allowed(request, slot) && random_() % ++fitting == 0)
      chosen = slot;
  }
  return chosen;
}

std::optional<uint32_t> Placer::best_slot(const Request& request, const Shape& shape) {
  if (options_.policy == PolicyKind::random) return random_slot(request, shape);
  if (request.rules.empty()) return index_.best(shape, *policy_);
  return index_.best(shape, *policy_, [&](uint32_t slot) { return allowed(request, slot); });
}

uint16_t Placer::random_gpus(uint32_t slot, const Shape& shape) {
  const NodeState& node = cluster_.state(slot);
  std::vector<int> gpus;
  for (int gpu = 0; gpu < node.gpus; ++gpu) {
    if (node.gpu_fits(gpu, shape)) gpus.push_back(gpu);
  }
  uint32_t mask = 0;
  for (int taken = 0; taken < shape.gpus; ++taken) {
    std::swap(gpus[taken], gpus[taken + random_() % (gpus.size() - taken)]);
    mask |= 1u << gpus[taken];
  }
  return static_cast<uint16_t>(mask);
}

Part Placer::part_of(const Request& request, uint32_t slot, int gpus) {
  const Shape shape = cluster_.shape_of(request, gpus);
  Part part{.node = cluster_.id(slot),
            .milli = shape.milli,
            .cpu_milli = shape.cpu_milli,
            .host_memory = shape.host_memory};
  if (gpus == 0) return part;
  part.gpu_mask = options_.policy == PolicyKind::random
                      ? random_gpus(slot, shape)
                      : policy_->choose(cluster_.state(slot), shape).gpu_mask;
  part.memory_bytes = shape.milli == kWholeGpu ? cluster_.state(slot).gpu_memory : shape.memory_bytes;
  return part;
}

std::optional<Placement> Placer::decide(const Request& request) {
  if (!check(request)) return std::nullopt;
  if (known_extremes_ != cluster_.extremes_version()) learn();
  if (request.gpus <= kMaxGpusPerNode) {
    if (const auto slot = best_slot(request, cluster_.shape_of(request)))
      return Placement{{part_of(request, *slot, request.gpus)}, request.group};
  }
  if (!request.one_host()) return decide_over_nodes(request);
  return std::nullopt;
}

// Takes the GPUs from one rack if one has enough, else from one zone, else from all nodes; among racks or
// zones from the one with the fewest free GPUs that suffice.
std::optional<Placement> Placer::decide_over_nodes(const Request& request) {
  const Shape one = cluster_.shape_of(request, 1);
  std::vector<uint32_t> slots;
  for (uint32_t slot = 0; slot < cluster_.slots(); ++slot) {
    if (cluster_.state(slot).fits(one) && allowed(request, slot)) slots.push_back(slot);
  }
  for (const Distance within : {Distance::rack, Distance::zone, Distance::any}) {
    if (within > request.spread) break;
    std::map<uint32_t, std::pair<int64_t, std::vector<uint32_t>>> places;  // free GPUs, nodes
    for (const uint32_t slot : slots) {
      auto& [free, nodes] = places[within == Distance::rack   ? cluster_.rack(slot)
                                   : within == Distance::zone ? cluster_.zone(slot)
                                                              : 0];
      free += cluster_.state(slot).fitting_gpus(one);
      nodes.push_back(slot);
    }
    std::vector<std::pair<int64_t, uint32_t>> order;
    for (const auto& [place, content] : places) {
      if (content.first >= request.gpus) order.emplace_back(content.first, place);
    }
    std::sort(order.begin(), order.end());
    for (const auto& [free, place] : order) {  // try the next if its processors or memory do not suffice
      if (auto placement = gather(request, std::move(places[place].second))) return placement;
    }
  }
  return std::nullopt;
}

// Fills the request from the zones, racks and nodes with the most fitting GPUs first, so that it spans few of
// them.
std::optional<Placement> Placer::gather(const Request& request, std::vector<uint32_t> slots) {
  const Shape one = cluster_.shape_of(request, 1);
  std::map<uint32_t, int64_t> of_zone, of_rack;
  for (const uint32_t slot : slots) {
    const int gpus = cluster_.state(slot).fitting_gpus(one);
    of_zone[cluster_.zone(slot)] += gpus;
    of_rack[cluster_.rack(slot)] += gpus;
  }
  const auto order = [&](uint32_t slot) {
    const uint32_t zone = cluster_.zone(slot), rack = cluster_.rack(slot);
    return std::tuple(-of_zone[zone], zone, -of_rack[rack], rack, -cluster_.state(slot).fitting_gpus(one),
                      slot);
  };
  std::sort(slots.begin(), slots.end(), [&](uint32_t a, uint32_t b) { return order(a) < order(b); });
  Placement placement{{}, request.group};
  int wanted = request.gpus;
  for (const uint32_t slot : slots) {
    int gpus = std::min(wanted, cluster_.state(slot).fitting_gpus(one));
    while (gpus > 0 && !cluster_.state(slot).fits(cluster_.shape_of(request, gpus))) --gpus;
    if (gpus == 0) continue;
    placement.parts.push_back(part_of(request, slot, gpus));
    wanted -= gpus;
    if (wanted == 0) return placement;
  }
  return std::nullopt;
}

size_t Placer::bytes() const {
  size_t sum = index_.bytes() + known_.capacity() * sizeof(Kind) +
               static_cast<size_t>(known_.size()) * (sizeof(Kind) + 4 * sizeof(void*));
  return sum + policy_->bytes();
}

}  // namespace gpupool::placement
