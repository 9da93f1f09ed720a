#include "scheduler/placement/policy.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "scheduler/placement/fragmentation.h"
#include "scheduler/placement/gradient_descent.h"

namespace gpupool::placement {
namespace {

constexpr std::pair<PolicyKind, const char*> kNames[] = {
    {PolicyKind::fragmentation, "fragmentation"},
    {PolicyKind::fgd, "fgd"},
    {PolicyKind::best_fit, "bestfit"},
    {PolicyKind::dot_product, "dotprod"},
    {PolicyKind::gpu_packing, "gpupacking"},
    {PolicyKind::binpack, "binpack"},
    {PolicyKind::spread, "spread"},
    {PolicyKind::random, "random"},
};

template <class Better>
uint16_t pick(const NodeState& node, const Shape& shape, Better better) {
  uint16_t mask = 0;
  for (int wanted = shape.gpus; wanted > 0; --wanted) {
    int best = -1;
    for (int gpu = 0; gpu < node.gpus; ++gpu) {
      if ((mask >> gpu & 1) != 0 || !node.gpu_fits(gpu, shape)) continue;
      if (best < 0 || better(node.level(gpu), node.level(best))) best = gpu;
    }
    if (best < 0) return 0;
    mask = static_cast<uint16_t>(mask | 1u << best);
  }
  return mask;
}

class Binpack : public Policy {
 public:
  Choice choose(const NodeState& node, const Shape& shape) const override {
    if (shape.gpus == 0) return {static_cast<float>(node.cpu_milli), 0};
    return {static_cast<float>(node.free_milli()), fullest_gpus(node, shape)};
  }
};

class Spread : public Policy {
 public:
  Choice choose(const NodeState& node, const Shape& shape) const override {
    if (shape.gpus == 0) return {-static_cast<float>(node.cpu_milli), 0};
    return {-static_cast<float>(node.free_milli()), emptiest_gpus(node, shape)};
  }
};

// Remaining processors and GPUs, each relative to the largest node, weighted equally; in whole percents, as
// published.
class BestFit : public Policy {
 public:
  explicit BestFit(const PolicyInput& s)
      : cpu_(static_cast<double>(s.extremes.cpu_milli)), gpu_(s.extremes.gpus * kWholeGpu) {}
  Choice choose(const NodeState& node, const Shape& shape) const override {
    const double left = 0.5 * static_cast<double>(node.cpu_milli - shape.cpu_milli) / cpu_ +
                        0.5 * (node.free_milli() - shape.gpus * shape.milli) / gpu_;
    return {static_cast<float>(-std::floor(100 * (1 - left))), fullest_gpus(node, shape)};
  }

 private:
  double cpu_, gpu_;
};

// Dot product of the free and the requested resources, each relative to the largest node; in whole percents,
// as published.
class DotProduct : public Policy {
 public:
  explicit DotProduct(const PolicyInput& s)
      : cpu_(static_cast<double>(s.extremes.cpu_milli)), gpu_(s.extremes.gpus * kWholeGpu) {}
  Choice choose(const NodeState& node, const Shape& shape) const override {
    const double product =
        static_cast<double>(node.cpu_milli) / cpu_ * (static_cast<double>(shape.cpu_milli) / cpu_) +
        node.free_milli() / gpu_ * (shape.gpus * shape.milli / gpu_);
    return {static_cast<float>(-std::floor(100 * (1 - product / 2))), fullest_gpus(node, shape)};
  }

 private:
  double cpu_, gpu_;
};

// Scores of 0 to 100 as published: from 50 for GPUs in use, from 33 for idle GPUs of nodes in use, at most 33
// for idle nodes.
class GpuPacking : public Policy {
 public:
  Choice choose(const NodeState& node, const Shape& shape) const override {
    if (shape.gpus == 0) return {0, 0};
    int whole = 0;
    for (int gpu = 0; gpu < node.gpus; ++gpu) whole += node.milli[gpu] == kWholeGpu;
    const uint16_t mask = fullest_gpus(node, shape);
    if (whole == node.gpus) return {-static_cast<float>(std::max(100 / 3 - whole, whole)), mask};
    int taken_whole = 0, free_percent = 0;
    for (int gpu = 0; gpu < node.gpus; ++gpu) {
      if ((mask >> gpu & 1) == 0) continue;
      taken_whole += node.milli[gpu] == kWholeGpu;
      free_percent += node.milli[gpu] / 10;
    }
    if (taken_whole > 0) return {-static_cast<float>(std::max(50 - taken_whole, 100 / 3)), mask};
    return {-static_cast<float>(std::max(100 - free_percent / 10, 50)), mask};
  }
};

}  // namespace

const char* name_of(PolicyKind kind) {
  for (const auto& [named, name] : kNames) {
    if (named == kind) return name;
  }
  return "";
}

std::optional<PolicyKind> policy_named(const std::string& name) {
  for (const auto& [kind, named] : kNames) {
    if (name == named) return kind;
  }
  return std::nullopt;
}

std::string policy_names() {
  std::string names;
  for (const auto& [kind, name] : kNames) names += (names.empty() ? "" : ", ") + std::string(name);
  return names;
}

std::unique_ptr<Policy> make_policy(PolicyKind kind, const PolicyInput& input) {
  switch (kind) {
    case PolicyKind::fragmentation: return std::make_unique<Fragmentation>(input);
    case PolicyKind::fgd: return std::make_unique<GradientDescent>(input);
    case PolicyKind::best_fit: return std::make_unique<BestFit>(input);
    case PolicyKind::dot_product: return std::make_unique<DotProduct>(input);
    case PolicyKind::gpu_packing: return std::make_unique<GpuPacking>();
    case PolicyKind::spread: return std::make_unique<Spread>();
    case PolicyKind::binpack:
    case PolicyKind::random: break;
  }
  return std::make_unique<Binpack>();
}

uint16_t fullest_gpus(const NodeState& node, const Shape& shape) {
  return pick(node, shape, [](int level, int best) { return level < best; });
}

uint16_t emptiest_gpus(const NodeState& node, const Shape& shape) {
  return pick(node, shape, [](int level, int best) { return level > best; });
}

}  // namespace gpupool::placement
