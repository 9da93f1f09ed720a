#include "scheduler/sim/synthetic.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace gpupool::sim {
namespace {

constexpr int64_t kGib = 1 << 30;
constexpr uint32_t kNodesOfRack = 16, kNodesOfZone = kNodesOfRack * 64;

}  // namespace

std::vector<placement::NodeSpec> synthetic_nodes(uint32_t count) {
  struct Kind {
    const char* model;
    int64_t cpus, gib, gpu_gib;
  };
  constexpr Kind kKinds[] = {
      {"A", 96, 512, 40}, {"B", 128, 768, 80}, {"A", 96, 512, 40}, {"C", 192, 1024, 80}};
  std::vector<placement::NodeSpec> nodes;
  for (uint32_t i = 0; i < count; ++i) {
    const Kind& kind = kKinds[i / kNodesOfRack % std::size(kKinds)];  // all nodes of a rack are of one kind
    nodes.push_back({.name = "node-" + std::to_string(i),
                     .zone = "zone-" + std::to_string(i / kNodesOfZone),
                     .rack = "rack-" + std::to_string(i / kNodesOfRack),
                     .model = kind.model,
                     .gpus = 8,
                     .gpu_memory = static_cast<uint64_t>(kind.gpu_gib * kGib),
                     .cpu_milli = kind.cpus * 1000,
                     .host_memory = kind.gib * kGib});
  }
  return nodes;
}

std::vector<Task> synthetic_tasks(uint32_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t most) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(most));
  };
  std::vector<Task> tasks;
  for (uint32_t i = 0; i < count; ++i) {
    Task task{.name = "task-" + std::to_string(i), .tenant = "tenant-" + std::to_string(below(4))};
    placement::Request& request = task.request;
    const int64_t dice = below(100);
    request.gpus = dice < 10 ? 0 : dice < 92 ? 1 : dice < 95 ? 2 : dice < 98 ? 4 : 8;
    request.milli = request.gpus == 0                ? 0
                    : dice < 60 && request.gpus == 1 ? static_cast<int>(1 + below(18)) * 50
                                                     : placement::kWholeGpu;
    request.cpu_milli = (1 + below(4)) * 3000 * std::max(1, request.gpus);
    request.host_memory = (1 + below(4)) * 12 * kGib * std::max(1, request.gpus);
    if (request.gpus > 0 && request.milli < placement::kWholeGpu)
      request.memory_bytes = static_cast<uint64_t>(request.milli * 40 / 1000 * kGib);
    if (request.gpus > 0 && below(10) == 0) request.models = {below(2) == 0 ? "B" : "C"};
    task.runs = 600 + below(36'000);
    task.arrives = i * 2;
    tasks.push_back(std::move(task));
  }
  return tasks;
}

std::vector<Task> drawn_tasks(const std::vector<Task>& tasks, const Draw& draw, uint64_t gpus,
                              uint64_t seed) {
  std::vector<const Task*> from;
  for (const Task& task : tasks) {
    if (task.request.gpus > 0) from.push_back(&task);
  }
  if (from.empty()) return {};
  std::mt19937_64 random(seed);
  // Not std::exponential_distribution, whose results differ between standard libraries.
  const auto exponential = [&](double mean) {
    return -mean * std::log1p(-static_cast<double>(random() >> 11) * 0x1p-53);
  };
  std::vector<Task> drawn;
  double gpu_seconds = 0;
  for (uint32_t i = 0; i < draw.count; ++i) {
    Task& task = drawn.emplace_back(*from[random() % from.size()]);
    if (task.runs == 0) task.runs = 1 + static_cast<int64_t>(exponential(draw.mean_seconds));
    task.runs = std::min(task.runs, static_cast<int64_t>(draw.most_seconds));
    gpu_seconds += static_cast<double>(task.milli()) / placement::kWholeGpu * static_cast<double>(task.runs);
  }
  const double interval = gpu_seconds / draw.count / (draw.offered * static_cast<double>(gpus));
  double now = 0;
  for (Task& task : drawn) {
    now += exponential(interval);
    task.arrives = static_cast<int64_t>(now);
  }
  return drawn;
}

}  // namespace gpupool::sim
