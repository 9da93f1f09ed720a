#include "scheduler/placement/fragmentation.h"

#include <algorithm>
#include <cstdlib>
#include <map>

namespace gpupool::placement {
namespace {

// Weights of the terms relative to `unusable`. Found by a coarse search over the traces of the published
// experiment; halving or doubling one changes the allocation by less than 0.1 percentage points
// (docs/adr/0024-placement.md).
constexpr float kHoles = 10.0f * kWholeGpu;
constexpr float kStarved = 0.3f;
constexpr float kDead = 3.0f * kWholeGpu;
// The requests that fill a node up are assumed to be half of the lane in question and half of the average
// mix.
constexpr double kOwnPart = 0.5;

// Maximum number of distinct amounts of processors and of memory in the tables. More amounts are grouped, and
// each request counts with the largest amount of its group.
constexpr size_t kSteps = 32;

struct Amount {
  int64_t value;
  double frequency;
};

std::vector<int64_t> steps_of(std::vector<Amount> amounts) {
  std::sort(amounts.begin(), amounts.end(),
            [](const Amount& a, const Amount& b) { return a.value < b.value; });
  double total = 0;
  size_t different = 0;
  for (size_t i = 0; i < amounts.size(); ++i) {
    total += amounts[i].frequency;
    different += i == 0 || amounts[i].value != amounts[i - 1].value;
  }
  std::vector<int64_t> steps;
  double sum = 0;
  for (size_t i = 0; i < amounts.size(); ++i) {
    sum += amounts[i].frequency;
    const bool last = i + 1 == amounts.size();
    if (!last && amounts[i + 1].value == amounts[i].value) continue;
    if (different <= kSteps || last || sum >= total / kSteps) {
      steps.push_back(amounts[i].value);
      sum = 0;
    }
  }
  if (steps.size() > kSteps) steps.erase(steps.begin() + (kSteps - 1), steps.end() - 1);
  return steps;
}

// Returns the number of steps that are at most `value`.
size_t steps_within(const std::vector<int64_t>& steps, int64_t value) {
  return static_cast<size_t>(std::upper_bound(steps.begin(), steps.end(), value) - steps.begin());
}

// Scales up the frequency of requests that only some nodes could ever serve, because they concentrate on
// those.
std::vector<Kind> by_density(const PolicyInput& input) {
  std::vector<Kind> kinds = input.kinds;
  for (Kind& kind : kinds) {
    int64_t all = 0, possible = 0;
    for (const Cluster::Family& family : input.families) {
      const int64_t gpus = int64_t{family.nodes} * family.empty.gpus;
      all += gpus;
      if (family.empty.fits(kind.shape)) possible += gpus;
    }
    if (possible > 0) kind.frequency *= static_cast<double>(all) / static_cast<double>(possible);
  }
  return kinds;
}

}  // namespace

void Fragmentation::FreeShares::add(const FreeShares& other, float times) {
  for (size_t lane = 0; lane < kLanes; ++lane) usable[lane] += times * other.usable[lane];
  for (size_t lane = 0; lane < kLanes; ++lane) copies[lane] += times * other.copies[lane];
}

Fragmentation::Fragmentation(const PolicyInput& input) : largest_gpu_memory_(input.extremes.gpu_memory) {
  const std::vector<Kind> kinds = by_density(input);
  sort_into_lanes(kinds);
  measure_needs();
  build_views(kinds, input.models);
  for (View& view : views_) compute_dead(view);

  free_shares_.resize(kWholeGpu + 1);
  for (int level = 0; level <= kWholeGpu; ++level) {
    for (size_t lane = 0; lane < lanes_.size(); ++lane) {
      free_shares_[level].copies[lane] = static_cast<float>(level / lanes_[lane].milli);
      if (level >= lanes_[lane].milli) free_shares_[level].usable[lane] = static_cast<float>(level);
    }
  }
  std::map<int, double> shares;
  for (const Kind& kind : input.kinds) {
    if (kind.shape.gpus == 0) continue;
    const Lane& lane = lanes_[lane_of(kind.shape)];
    if (lane.milli < kWholeGpu) shares[lane.milli] += kind.frequency * lane.gpus;
  }
  std::vector<ShareSize> sizes;
  for (const auto& [milli, frequency] : shares) sizes.push_back({milli, frequency});
  holes_ = hole_worth(sizes);
}

int Fragmentation::demand_of(const Shape& shape) const {
  if (largest_gpu_memory_ == 0) return shape.milli;
  const auto by_memory =
      (static_cast<unsigned __int128>(shape.memory_bytes) * kWholeGpu + largest_gpu_memory_ - 1) /
      largest_gpu_memory_;
  return std::max<int>(shape.milli, static_cast<int>(std::min<unsigned __int128>(by_memory, kWholeGpu)));
}

void Fragmentation::sort_into_lanes(const std::vector<Kind>& kinds) {
  std::map<std::pair<int, int>, double> sizes;
  for (const Kind& kind : kinds) {
    if (kind.shape.gpus != 0) sizes[{kind.shape.gpus, demand_of(kind.shape)}] += kind.frequency;
  }
  for (const auto& [size, frequency] : sizes) {
    lanes_.push_back({.gpus = static_cast<uint16_t>(size.first),
                      .milli = static_cast<uint16_t>(size.second),
                      .frequency = frequency});
  }
  if (lanes_.size() > kLanes) {
    std::stable_sort(lanes_.begin(), lanes_.end(),
                     [](const Lane& a, const Lane& b) { return a.frequency > b.frequency; });
    lanes_.resize(kLanes);
  }
  for (Lane& lane : lanes_) lane.frequency = 0;
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    if (lanes_[lane].gpus == 1) by_share_.push_back(static_cast<uint8_t>(lane));
  }
  std::sort(by_share_.begin(), by_share_.end(),
            [&](uint8_t a, uint8_t b) { return lanes_[a].milli < lanes_[b].milli; });
  for (int level = 0; level <= kWholeGpu; ++level) {
    fitting_[level] = static_cast<uint8_t>(std::count_if(
        by_share_.begin(), by_share_.end(), [&](uint8_t lane) { return lanes_[lane].milli <= level; }));
  }
  for (const Kind& kind : kinds) {
    if (kind.shape.gpus == 0) continue;
    Lane& lane = lanes_[lane_of(kind.shape)];
    lane.frequency += kind.frequency;
    lane.cpu += kind.frequency * static_cast<double>(kind.shape.cpu_milli);
    lane.memory += kind.frequency * static_cast<double>(kind.shape.host_memory);
    gpu_requests_ += static_cast<float>(kind.frequency);
  }
}

// Returns the lane of the shape's size, or the nearest one.
size_t Fragmentation::lane_of(const Shape& shape) const {
  const int milli = demand_of(shape);
  const auto distance = [&](const Lane& lane) {
    return std::abs(lane.gpus * lane.milli - shape.gpus * milli) + (lane.gpus == shape.gpus ? 0 : kWholeGpu);
  };
  const auto nearest = std::min_element(
      lanes_.begin(), lanes_.end(), [&](const Lane& a, const Lane& b) { return distance(a) < distance(b); });
  return static_cast<size_t>(nearest - lanes_.begin());
}

void Fragmentation::measure_needs() {
  double cpu = 0, memory = 0, size = 0;
  for (const Lane& lane : lanes_) {
    cpu += lane.cpu;
    memory += lane.memory;
    size += lane.frequency * lane.gpus * lane.milli;
  }
  constexpr double kNone = 1e30;  // the lane needs none of the resource: any number of requests fits
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const Lane& lane = lanes_[i];
    const auto per_unit = [&](double own, double all) {
      const double need =
          kOwnPart * own / lane.frequency + (1 - kOwnPart) * all / size * lane.gpus * lane.milli;
      return static_cast<float>(need > 0 ? 1 / need : kNone);
    };
    per_cpu_[i] = per_unit(lane.cpu, cpu);
    per_memory_[i] = per_unit(lane.memory, memory);
    inverse_gpus_[i] = 1.0f / static_cast<float>(lane.gpus);
  }
}

void Fragmentation::build_views(const std::vector<Kind>& kinds, size_t models) {
  std::vector<Amount> cpus, memories;
  for (const Kind& kind : kinds) {
    if (kind.shape.gpus == 0) continue;
    cpus.push_back({kind.shape.cpu_milli, kind.frequency});
    memories.push_back({kind.shape.host_memory, kind.frequency});
  }
  cpu_steps_ = steps_of(std::move(cpus));
  memory_steps_ = steps_of(std::move(memories));

  std::map<std::vector<bool>, uint8_t> seen;
  for (size_t model = 0; model < models; ++model) {
    std::vector<bool> allowed;
    for (const Kind& kind : kinds)
      allowed.push_back(kind.shape.gpus != 0 && (kind.shape.models >> model & 1) != 0);
    const auto [entry, is_new] = seen.try_emplace(allowed, static_cast<uint8_t>(views_.size()));
    view_of_model_[model] = entry->second;
    if (!is_new) continue;
    View& view = views_.emplace_back();
    const size_t width = memory_steps_.size() + 1;
    view.enough.resize((cpu_steps_.size() + 1) * width);
    for (size_t i = 0; i < kinds.size(); ++i) {
      if (!allowed[i]) continue;
      const Shape& shape = kinds[i].shape;
      const size_t lane = lane_of(shape);
      const auto frequency = static_cast<float>(kinds[i].frequency);
      // Not for several GPUs: breaking up a node with free GPUs but too few processors would count as a gain.
      if (lanes_[lane].gpus == 1) view.demand[lane] += frequency * static_cast<float>(lanes_[lane].milli);
      const auto step_of = [](const std::vector<int64_t>& steps, int64_t value) {
        return static_cast<size_t>(std::lower_bound(steps.begin(), steps.end(), value) - steps.begin()) + 1;
      };
      for (size_t cpu = step_of(cpu_steps_, shape.cpu_milli); cpu <= cpu_steps_.size(); ++cpu) {
        for (size_t memory = step_of(memory_steps_, shape.host_memory); memory < width; ++memory) {
          view.enough[cpu * width + memory][lane] += frequency;
        }
      }
    }
  }
}

void Fragmentation::compute_dead(View& view) const {
  const Lanes& all = view.enough.back();
  for (const Lanes& enough : view.enough) {
    Lanes& dead = view.dead.emplace_back();
    float here = 0, anywhere = 0;
    for (size_t i = 0; i < by_share_.size(); ++i) {
      here += enough[by_share_[i]];
      anywhere += all[by_share_[i]];
      dead[i] = anywhere > 0 ? 1 - here / anywhere : 0;
    }
  }
}

float Fragmentation::useless(const Node& node, const View& view) const {
  const size_t row = steps_within(cpu_steps_, node.cpu) * (memory_steps_.size() + 1) +
                     steps_within(memory_steps_, node.memory);
  const Lanes& enough = view.enough[row];
  // Add one unit, so that lanes that need none of a resource are not limited on a node without any of it
  // left.
  const auto cpus = static_cast<float>(node.cpu + 1), bytes = static_cast<float>(node.memory + 1);
  float used = 0, starved = 0;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    const auto copies =
        static_cast<float>(static_cast<int>(node.shares.copies[lane] * inverse_gpus_[lane] + 1e-3f));
    const float fed = std::min(cpus * per_cpu_[lane], bytes * per_memory_[lane]);
    used += copies >= 1 ? enough[lane] * node.shares.usable[lane] : 0;
    starved += view.demand[lane] * std::max(copies - fed, 0.0f);
  }
  float dead = 0;
  for (int gpu = 0; gpu < node.gpus; ++gpu) {
    const int level = node.levels[gpu];
    if (level < kWholeGpu && fitting_[level] > 0) dead += holes_[level] * view.dead[row][fitting_[level] - 1];
  }
  return gpu_requests_ * static_cast<float>(node.free) - used + kStarved * starved + kDead * dead;
}

size_t Fragmentation::bytes() const {
  size_t sum = sizeof(*this) + free_shares_.size() * sizeof(FreeShares) + lanes_.size() * sizeof(Lane);
  for (const View& view : views_) sum += sizeof(View) + 2 * view.enough.size() * sizeof(Lanes);
  return sum;
}

Choice Fragmentation::choose(const NodeState& node, const Shape& shape) const {
  if (lanes_.empty()) return {0, fullest_gpus(node, shape)};
  const View& view = views_[view_of_model_[node.model]];
  Node now{.shares = {}, .gpus = node.gpus, .cpu = node.cpu_milli, .memory = node.host_memory};
  for (int gpu = 0; gpu < node.gpus; ++gpu) {
    now.levels[gpu] = node.level(gpu);
    now.free += now.levels[gpu];
    if (now.levels[gpu] > 0) now.shares.add(free_shares_[now.levels[gpu]], 1);
  }
  const float before = useless(now, view);
  now.cpu -= shape.cpu_milli;
  now.memory -= shape.host_memory;
  if (shape.gpus == 0) return {useless(now, view) - before, 0};

  const auto cost_of = [&](uint16_t mask) {
    Node then = now;
    float lost = 0;
    for (int gpu = 0; gpu < node.gpus; ++gpu) {
      if ((mask >> gpu & 1) == 0) continue;
      const int level = then.levels[gpu], after = node.level_after(gpu, shape);
      then.levels[gpu] = after;
      then.free -= level - after;
      then.shares.add(free_shares_[level], -1);
      then.shares.add(free_shares_[after], 1);
      lost += holes_[level] - holes_[after];
    }
    return useless(then, view) - before + kHoles * lost;
  };
  if (shape.gpus > 1 || shape.milli == kWholeGpu) {
    const uint16_t mask = fullest_gpus(node, shape);
    return {cost_of(mask), mask};
  }
  Choice best;
  for (int gpu = 0; gpu < node.gpus; ++gpu) {
    if (!node.gpu_fits(gpu, shape)) continue;
    bool alike = false;  // to an earlier GPU, whose cost is the same
    for (int other = 0; other < gpu && !alike; ++other) {
      alike = node.milli[other] == node.milli[gpu] && node.memory_bytes[other] == node.memory_bytes[gpu];
    }
    if (alike) continue;
    const auto mask = static_cast<uint16_t>(1u << gpu);
    const float cost = cost_of(mask);
    if (best.gpu_mask == 0 || cost < best.cost) best = {cost, mask};
  }
  return best;
}

}  // namespace gpupool::placement
