#include "scheduler/sim/mover.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

#include "scheduler/sim/experiment.h"

namespace gpupool::sim {

using placement::DefragHost;
using placement::Part;
using placement::Placement;
using placement::Request;
using placement::RunningPart;

namespace {

constexpr double kHour = 3600;

}  // namespace

void Mover::allocate(const Placement& placement) {
  if (const auto done = cluster_.allocate(placement); !done) throw std::runtime_error(done.error().message);
}

void Mover::release(const Placement& placement) {
  if (const auto done = cluster_.release(placement); !done) throw std::runtime_error(done.error().message);
}

void Mover::start(uint32_t task, Placement placement, double now) {
  allocate(placement);
  running_[task] = {.placement = std::move(placement), .since = now, .part = 0, .to = {}, .arrives = 0};
}

void Mover::end(uint32_t task) {
  const auto found = running_.find(task);
  release(found->second.placement);
  if (found->second.moves()) {
    release(found->second.to);
    arrivals_.erase({found->second.arrives, task});
  }
  running_.erase(found);
}

std::optional<double> Mover::next_end() const {
  if (arrivals_.empty()) return std::nullopt;
  return arrivals_.begin()->first;
}

std::vector<uint32_t> Mover::end_moves(double now) {
  std::vector<uint32_t> tasks;
  while (!arrivals_.empty() && arrivals_.begin()->first <= now) {
    const uint32_t task = arrivals_.begin()->second;
    arrivals_.erase(arrivals_.begin());
    Running& running = running_.at(task);
    const Placement old{{running.placement.parts[running.part]}, running.placement.group};
    running.placement.parts[running.part] = running.to.parts.front();
    running.to = {};
    release(old);
    tasks.push_back(task);
  }
  return tasks;
}

void Mover::release_hold() {
  release(held_);
  held_ = {};
}

// Holds what is free of these GPUs, up to what the request needs of them.
void Mover::hold(const Place& place, const Request& request) {
  std::map<uint32_t, int> gpus;
  for (const auto& [slot, gpu] : place) ++gpus[slot];
  for (const auto& [slot, count] : gpus) {
    const placement::Shape shape = cluster_.shape_of(request, count);
    const placement::NodeState& node = cluster_.state(slot);
    Part host{.node = cluster_.id(slot)};
    host.cpu_milli = std::min(shape.cpu_milli, node.cpu_milli);
    host.host_memory = std::min(shape.host_memory, node.host_memory);
    if (host.cpu_milli > 0 || host.host_memory > 0) held_.parts.push_back(host);
    for (const auto& [on, gpu] : place) {
      if (on != slot) continue;
      const Part part{.node = cluster_.id(slot),
                      .gpu_mask = static_cast<uint16_t>(1u << gpu),
                      .milli = std::min(shape.milli, node.milli[gpu]),
                      .memory_bytes = std::min(need_memory(node, shape), node.memory_bytes[gpu])};
      if (part.milli > 0) held_.parts.push_back(part);
    }
  }
  allocate(held_);
}

void Mover::hold_for(uint32_t task, const Request& request, double now) {
  const bool moves = std::any_of(steps_.begin(), steps_.end(), [&](uint32_t step) {
    const auto running = running_.find(step);
    return running != running_.end() && running->second.moves();
  });
  // The place has been taken after all, or an earlier task waits again.
  if (head_ && (*head_ != task || !moves)) head_.reset();
  if (!head_ && options_.defragment && now >= next_search_) search(task, request, now);
  if (head_) return hold(place_, request);
  if (options_.reserve) hold(place_to_reserve(request), request);
}

void Mover::forget_head(uint32_t task) {
  if (!head_ || *head_ != task) return;
  ++moved_.granted;
  head_.reset();
}

std::optional<Placement> Mover::place_for(uint32_t task, const Request& request) const {
  if (!head_ || *head_ != task) return std::nullopt;
  Placement out{{}, request.group};
  for (const auto& [slot, gpu] : place_) {
    if (out.parts.empty() || out.parts.back().node != cluster_.id(slot))
      out.parts.push_back({.node = cluster_.id(slot)});
    out.parts.back().gpu_mask |= static_cast<uint16_t>(1u << gpu);
  }
  for (Part& part : out.parts) {
    const placement::NodeState& node = cluster_.state(part.node.slot);
    const placement::Shape shape = cluster_.shape_of(request, std::popcount(part.gpu_mask));
    part.milli = shape.milli;
    part.memory_bytes = need_memory(node, shape);
    part.cpu_milli = shape.cpu_milli;
    part.host_memory = shape.host_memory;
    for (int gpu = 0; gpu < node.gpus; ++gpu) {
      if ((part.gpu_mask >> gpu & 1) != 0 &&
          (node.milli[gpu] < part.milli || node.memory_bytes[gpu] < part.memory_bytes))
        return std::nullopt;
    }
    if (node.cpu_milli < part.cpu_milli || node.host_memory < part.host_memory) return std::nullopt;
  }
  return out;
}

// Returns the GPUs with the largest free shares of the host on which the fewest are missing, or of all hosts
// if the request may be on several.
Mover::Place Mover::place_to_reserve(const Request& request) const {
  const bool one_host = request.one_host();
  const placement::Shape shape = cluster_.shape_of(request, one_host ? request.gpus : 1);
  Place best;
  int best_free = -1;
  std::vector<std::pair<int, std::pair<uint32_t, uint32_t>>> all;
  for (uint32_t slot = 0; slot < cluster_.slots(); ++slot) {
    const placement::NodeState& node = cluster_.state(slot);
    const placement::NodeState& empty = cluster_.empty_state(slot);
    if (!node.open || !empty.fits(shape)) continue;
    std::vector<std::pair<int, std::pair<uint32_t, uint32_t>>> here;
    for (uint32_t gpu = 0; gpu < node.gpus; ++gpu)
      here.push_back({-std::min<int>(node.milli[gpu], shape.milli), {slot, gpu}});
    std::sort(here.begin(), here.end());
    if (!one_host) {
      all.insert(all.end(), here.begin(), here.end());
      continue;
    }
    here.resize(static_cast<size_t>(request.gpus));
    int free = 0;
    for (const auto& [missing, at] : here) free -= missing;
    if (free <= best_free) continue;
    best_free = free;
    best.clear();
    for (const auto& [missing, at] : here) best.push_back(at);
  }
  if (!one_host) {
    std::sort(all.begin(), all.end());
    if (all.size() > static_cast<size_t>(request.gpus)) all.resize(static_cast<size_t>(request.gpus));
    for (const auto& [missing, at] : all) best.push_back(at);
  }
  std::sort(best.begin(), best.end());
  return best;
}

uint64_t Mover::bytes_of(const Part& part) const {
  const placement::NodeState& node = cluster_.state(part.node.slot);
  const auto gpus = static_cast<uint64_t>(std::popcount(part.gpu_mask));
  return gpus * (node.gpu_memory != 0 && part.memory_bytes != 0
                     ? part.memory_bytes
                     : (node.gpu_memory != 0 ? node.gpu_memory : options_.gpu_memory) * part.milli /
                           placement::kWholeGpu);
}

void Mover::add_parts(uint32_t task, const Running& running, double now, std::vector<RunningPart>& parts,
                      std::vector<std::pair<uint32_t, size_t>>& of) const {
  const auto add = [&](const Part& part, size_t index, bool leaves, bool movable) {
    RunningPart out;
    out.host = part.node.slot;
    out.lease = task;
    for (uint32_t gpu = 0; gpu < placement::kMaxGpusPerNode; ++gpu) {
      if ((part.gpu_mask >> gpu & 1) != 0) out.shares.push_back({gpu, part.milli, part.memory_bytes});
    }
    out.cpu_milli = part.cpu_milli;
    out.host_memory = part.host_memory;
    out.remaining = leaves ? 0 : now - running.since;
    out.bytes = bytes_of(part);
    out.seconds = static_cast<double>(out.bytes) / options_.bytes_per_second + options_.silence;
    out.movable =
        movable && !out.shares.empty() && (options_.longest == 0 || out.seconds <= options_.longest);
    if (out.movable) {
      for (const Part& other : running.placement.parts) out.excluded.push_back(other.node.slot);
    }
    parts.push_back(std::move(out));
    of.emplace_back(task, index);
  };
  for (size_t i = 0; i < running.placement.parts.size(); ++i)
    add(running.placement.parts[i], i, running.moves() && running.part == i, !running.moves());
  if (running.moves()) add(running.to.parts.front(), 0, false, false);
}

placement::DefragLimits Mover::limits(double now) {
  while (!spent_.empty() && spent_.front().at <= now - kHour) spent_.pop_front();
  uint64_t moves = 0, bytes = 0;
  for (const Spent& one : spent_) moves += one.moves, bytes += one.bytes;
  const placement::DefragBudget budget{
      .moves = options_.moves_per_hour, .bytes = options_.bytes_per_hour, .at_once = options_.at_once};
  return placement::limits_left(budget, moves, bytes, arrivals_.size());
}

// Begins moves that make room for the task, if there are any that cost less than they bring.
void Mover::search(uint32_t task, const Request& request, double now) {
  const placement::DefragLimits budget = limits(now);
  if (budget.moves == 0) return;
  next_search_ = now + placement::kSearchEverySeconds;
  const float start = cpu_microseconds();
  const bool one_host = request.one_host();
  const placement::Shape shape = cluster_.shape_of(request, one_host ? request.gpus : 1);
  std::vector<DefragHost> hosts(cluster_.slots());
  for (uint32_t slot = 0; slot < cluster_.slots(); ++slot) {
    const placement::NodeState& node = cluster_.state(slot);
    hosts[slot] = {.for_request = node.open,
                   .for_moves = node.open,
                   .cpu_milli = node.cpu_milli,
                   .host_memory = node.host_memory,
                   .gpus = {}};
    const bool suits = (shape.models >> node.model & 1) != 0;
    for (int gpu = 0; gpu < node.gpus; ++gpu)
      hosts[slot].gpus.push_back({.kind = node.model,
                                  .size = node.gpu_memory,
                                  .milli = node.milli[gpu],
                                  .memory = node.memory_bytes[gpu],
                                  .need_milli = suits ? shape.milli : 0,
                                  .need_memory = need_memory(node, shape)});
  }
  std::vector<RunningPart> parts;
  std::vector<std::pair<uint32_t, size_t>> of;  // task, and index in its placement
  for (const auto& [running, state] : running_) add_parts(running, state, now, parts, of);
  const auto plan = placement::plan_defragmentation(hosts, parts,
                                                    {.gpus = request.gpus,
                                                     .one_host = one_host,
                                                     .cpu_milli = request.cpu_milli,
                                                     .host_memory = request.host_memory,
                                                     .milli = static_cast<double>(request.milli)},
                                                    budget);
  moved_.search.push_back(std::max(0.0f, cpu_microseconds() - start));
  if (!plan) return;
  steps_.clear();
  for (const auto& move : plan->moves) {
    const auto [moving, part] = of[move.part];
    Running& running = running_.at(moving);
    if (running.moves()) throw std::runtime_error("a task would move in two parts at once");
    Part to = running.placement.parts[part];
    to.node = cluster_.id(move.host);
    to.gpu_mask = 0;
    for (const uint32_t gpu : move.gpus) to.gpu_mask |= static_cast<uint16_t>(1u << gpu);
    steps_.push_back(moving);
    running.part = part;
    running.to = {{to}, running.placement.group};
    running.arrives = now + parts[move.part].seconds;
    allocate(running.to);
    arrivals_.insert({running.arrives, moving});
  }
  head_ = task;
  place_ = plan->place;
  spent_.push_back({now, static_cast<uint32_t>(plan->moves.size()), plan->bytes});
  ++moved_.begun;
  moved_.moves += static_cast<uint32_t>(plan->moves.size());
  moved_.bytes += plan->bytes;
}

}  // namespace gpupool::sim
