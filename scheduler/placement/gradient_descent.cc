#include "scheduler/placement/gradient_descent.h"

#include <cmath>

namespace gpupool::placement {
namespace {

constexpr double kTypicalShare = 0.9;

NodeState after(const NodeState& node, const Shape& shape, uint16_t mask) {
  NodeState left = node;
  left.cpu_milli -= shape.cpu_milli;
  left.host_memory -= shape.host_memory;
  for (int gpu = 0; gpu < node.gpus; ++gpu) {
    if ((mask >> gpu & 1) == 0) continue;
    left.milli[gpu] = static_cast<uint16_t>(node.milli[gpu] - shape.milli);
    left.memory_bytes[gpu] = shape.milli == kWholeGpu ? 0 : node.memory_bytes[gpu] - shape.memory_bytes;
  }
  return left;
}

float cost_of(double growth) {
  return static_cast<float>(-std::floor(100 / (1 + std::exp(growth / kWholeGpu))));
}

}  // namespace

GradientDescent::GradientDescent(const PolicyInput& input) {
  double sum = 0;
  for (const Kind& kind : input.kinds) {
    if (sum > kTypicalShare) break;
    typical_.push_back(kind);
    sum += kind.frequency;
  }
  for (Kind& kind : typical_) kind.frequency /= sum;
}

double GradientDescent::fragmentation(const NodeState& node) const {
  const int free = node.free_milli();
  double sum = 0;
  for (const Kind& kind : typical_) {
    if (kind.shape.gpus == 0) continue;
    int unusable = free;
    if (node.fits(kind.shape)) {
      unusable = 0;
      for (int gpu = 0; gpu < node.gpus; ++gpu)
        unusable += node.gpu_fits(gpu, kind.shape) ? 0 : node.milli[gpu];
    }
    sum += kind.frequency * unusable;
  }
  return sum;
}

Choice GradientDescent::choose(const NodeState& node, const Shape& shape) const {
  const double before = fragmentation(node);
  if (shape.gpus != 1 || shape.milli == kWholeGpu) {
    const uint16_t mask = fullest_gpus(node, shape);
    return {cost_of(fragmentation(after(node, shape, mask)) - before), mask};
  }
  Choice best;
  for (int gpu = 0; gpu < node.gpus; ++gpu) {
    if (!node.gpu_fits(gpu, shape)) continue;
    const auto mask = static_cast<uint16_t>(1u << gpu);
    const float cost = cost_of(fragmentation(after(node, shape, mask)) - before);
    if (cost < best.cost) best = {cost, mask};
  }
  return best;
}

}  // namespace gpupool::placement
