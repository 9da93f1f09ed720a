#include "scheduler/sim/experiment.h"

#include <malloc.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <unordered_map>

namespace gpupool::sim {
namespace {

using placement::Cluster;
using placement::kWholeGpu;

uint64_t heap_bytes() {
  return mallinfo2().uordblks;
}

double percent(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

std::string size_name(const Task& task) {
  if (task.request.gpus == 0) return "no GPU";
  return (task.request.gpus > 1 ? std::to_string(task.request.gpus) + "x" : "") +
         std::to_string(task.request.milli);
}

// Returns the free share, in percent of the cluster, that an average GPU task of the trace could not use on
// the share's node.
double unusable_percent(const Cluster& cluster, const std::vector<placement::Request>& requests) {
  std::unordered_map<placement::Shape, double, placement::ShapeHash> kinds;
  double total = 0;
  for (const placement::Request& request : requests) {
    if (request.gpus == 0) continue;
    ++kinds[cluster.shape_of(request, request.spread == placement::Distance::host ? request.gpus : 1)];
    ++total;
  }
  double unusable = 0;
  for (uint32_t slot = 0; slot < cluster.slots(); ++slot) {
    const placement::NodeState& node = cluster.state(slot);
    for (const auto& [shape, count] : kinds) {
      int free = node.free_milli();
      if (node.fits(shape)) {
        for (int gpu = 0; gpu < node.gpus; ++gpu) free -= node.gpu_fits(gpu, shape) ? node.milli[gpu] : 0;
      }
      unusable += free * count / total;
    }
  }
  return cluster.total_milli() == 0 ? 0 : 100 * unusable / static_cast<double>(cluster.total_milli());
}

}  // namespace

float cpu_microseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<float>(static_cast<double>(now.tv_sec % 1000) * 1e6 +
                            static_cast<double>(now.tv_nsec) / 1e3);
}

Times times_of(std::vector<float>& samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  const auto at = [&](double part) {
    return static_cast<double>(samples[static_cast<size_t>(part * static_cast<double>(samples.size() - 1))]);
  };
  return {at(0.5), at(0.99), samples.back()};
}

std::vector<uint32_t> arrivals(const std::vector<Task>& tasks, int64_t capacity, int percent, uint64_t seed) {
  std::vector<uint32_t> order(tasks.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::mt19937_64 random(seed);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  const int64_t most = capacity / 100 * percent;
  if (std::none_of(tasks.begin(), tasks.end(), [](const Task& task) { return task.milli() > 0; }))
    return order;
  int64_t demand = 0;
  for (size_t i = 0;; ++i) {
    if (i == order.size()) order.push_back(static_cast<uint32_t>(random() % tasks.size()));
    demand += tasks[order[i]].milli();
    if (demand > most) {
      order.resize(i);
      return order;
    }
  }
}

Outcome run(const Experiment& experiment, uint64_t seed) {
  Cluster cluster;
  for (const placement::NodeSpec& node : *experiment.nodes) {
    if (const auto added = cluster.add(node); !added) throw std::runtime_error(added.error().message);
  }
  const int64_t capacity = cluster.total_milli();
  std::vector<placement::Request> requests;
  for (const Task& task : *experiment.tasks) requests.push_back(in_mode(task.request, experiment.mode));
  const std::vector<uint32_t> order = arrivals(*experiment.tasks, capacity, 130, seed);

  Outcome out{.seed = seed};
  std::vector<float> times;
  times.reserve(order.size());
  std::vector<const Task*> arrived_100;
  arrived_100.reserve(order.size());
  out.curve.reserve(131);
  std::map<std::pair<int64_t, std::string>, uint32_t> refused;
  const uint64_t heap_before = heap_bytes();
  placement::Placer placer(cluster, {.policy = experiment.policy, .seed = seed});
  if (experiment.policy == placement::PolicyKind::fgd) placer.set_workload(requests);  // as published

  int64_t demand = 0, allocated = 0;
  for (const uint32_t number : order) {
    const Task& task = (*experiment.tasks)[number];
    while (percent(demand + task.milli(), capacity) > static_cast<double>(out.curve.size())) {
      out.curve.push_back({static_cast<double>(out.curve.size()), percent(allocated, capacity)});
    }
    demand += task.milli();
    const bool within_100 = demand <= capacity;
    if (within_100) arrived_100.push_back(&task);
    ++out.arrived;
    const placement::Request& request = requests[number];
    if (request.gpus == 0 && experiment.mode == Mode::pool) continue;  // needs no resources of the GPU nodes
    const float start = cpu_microseconds();
    placer.observe(request);
    const auto placed = placer.decide(request);
    times.push_back(std::max(0.0f, cpu_microseconds() - start));
    if (placed) {
      if (const auto done = cluster.allocate(*placed); !done)
        throw std::runtime_error("the placer chose a node that does not fit: " + done.error().message);
      allocated += task.milli();
    } else {
      ++refused[{task.milli(), size_name(task)}];
      out.refused_100 += within_100;
      ++out.refused_130;
    }
    if (within_100) out.allocated_100 = percent(allocated, capacity);
  }
  out.allocated_130 = percent(allocated, capacity);
  if (capacity - cluster.free_milli() != allocated)
    throw std::runtime_error("allocated and free GPU thousandths do not add up");
  while (out.curve.size() <= 130)
    out.curve.push_back({static_cast<double>(out.curve.size()), out.allocated_130});
  out.beyond_inventory = placer.bytes();
  if (const uint64_t heap_now = heap_bytes(); heap_now > heap_before)
    out.heap_growth = heap_now - heap_before;
  for (const auto& [size, count] : refused) out.refused.push_back({size.second, count});
  out.unusable = unusable_percent(cluster, requests);
  out.offline_100 = percent(offline_best_fit(*experiment.nodes, arrived_100), capacity);
  out.decision = times_of(times);
  return out;
}

int64_t offline_best_fit(const std::vector<placement::NodeSpec>& nodes,
                         const std::vector<const Task*>& tasks) {
  std::vector<const Task*> order;
  std::copy_if(tasks.begin(), tasks.end(), std::back_inserter(order),
               [](const Task* task) { return task->request.gpus > 0; });
  std::stable_sort(order.begin(), order.end(), [](const Task* a, const Task* b) {
    return std::pair(a->request.gpus, a->request.milli) > std::pair(b->request.gpus, b->request.milli);
  });
  std::multiset<int> free;
  for (const placement::NodeSpec& node : nodes) {
    for (int gpu = 0; gpu < node.gpus; ++gpu) free.insert(free.end(), kWholeGpu);
  }
  int64_t placed = 0;
  for (const Task* task : order) {
    const int milli = task->request.milli, gpus = task->request.gpus;
    auto gpu = free.lower_bound(milli);
    if (static_cast<int>(std::min<std::ptrdiff_t>(std::distance(gpu, free.end()), gpus)) < gpus) continue;
    for (int taken = 0; taken < gpus; ++taken) {
      const int left = *gpu - milli;
      gpu = free.erase(gpu);
      if (left > 0) free.insert(left);
    }
    placed += task->milli();
  }
  return placed;
}

}  // namespace gpupool::sim
