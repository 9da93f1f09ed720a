#include "scheduler/placement/cluster.h"

#include <algorithm>

namespace gpupool::placement {
namespace {

Error invalid(std::string message) {
  return {ErrorCode::invalid, std::move(message)};
}

NodeState state_of(const NodeSpec& spec, uint8_t model) {
  NodeState state;
  state.cpu_milli = spec.cpu_milli;
  state.host_memory = spec.host_memory;
  state.gpu_memory = spec.gpu_memory;
  state.gpus = static_cast<uint8_t>(spec.gpus);
  state.model = model;
  state.open = true;
  for (int gpu = 0; gpu < spec.gpus; ++gpu) {
    state.milli[gpu] = kWholeGpu;
    state.memory_bytes[gpu] = spec.gpu_memory;
  }
  return state;
}

}  // namespace

Result<NodeId> Cluster::add(const NodeSpec& spec) {
  if (spec.gpus < 0 || spec.gpus > kMaxGpusPerNode) {
    return invalid("node '" + spec.name + "' has " + std::to_string(spec.gpus) + " GPUs; must be from 0 to " +
                   std::to_string(kMaxGpusPerNode));
  }
  if (spec.cpu_milli < 0 || spec.host_memory < 0)
    return invalid("node '" + spec.name + "': CPU and memory must not be negative");
  if (by_name_.contains(spec.name)) return invalid("duplicate node '" + spec.name + "'");
  const size_t model = std::find(models_.begin(), models_.end(), spec.model) - models_.begin();
  if (model == kMaxModels) return invalid("more than " + std::to_string(kMaxModels) + " models of GPU");
  const bool larger = spec.gpu_memory > extremes_.gpu_memory || spec.cpu_milli > extremes_.cpu_milli ||
                      spec.gpus > extremes_.gpus;
  if (model == models_.size() || larger) ++extremes_version_;
  if (model == models_.size()) models_.push_back(spec.model);
  extremes_ = {std::max(extremes_.gpu_memory, spec.gpu_memory), std::max(extremes_.cpu_milli, spec.cpu_milli),
               std::max(extremes_.gpus, spec.gpus)};

  uint32_t slot = slots();
  if (unused_.empty()) {
    nodes_.emplace_back();
    states_.emplace_back();
  } else {
    slot = unused_.back();
    unused_.pop_back();
  }
  Node& node = nodes_[slot];
  node.spec = spec;
  node.zone = place_number(spec.zone);
  node.rack = place_number(spec.zone + '\0' + spec.rack);
  node.present = true;
  node.drained = false;
  states_[slot] = state_of(spec, static_cast<uint8_t>(model));
  const Shape all{.gpus = static_cast<uint16_t>(spec.gpus),
                  .memory_bytes = spec.gpu_memory,
                  .models = uint64_t{1} << model,
                  .cpu_milli = spec.cpu_milli,
                  .host_memory = spec.host_memory};
  const auto [family, is_new] = family_of_.try_emplace(all, static_cast<uint32_t>(families_.size()));
  if (is_new) families_.push_back({states_[slot], 0});
  node.family = family->second;
  ++families_[node.family].nodes;
  by_name_.emplace(spec.name, slot);
  total_milli_ += spec.gpus * kWholeGpu;
  free_milli_ += spec.gpus * kWholeGpu;
  changed(slot);
  return id(slot);
}

Result<void> Cluster::remove(NodeId node) {
  if (!has(node)) return invalid("unknown node");
  Node& gone = nodes_[node.slot];
  total_milli_ -= gone.spec.gpus * kWholeGpu;
  free_milli_ -= states_[node.slot].free_milli();
  by_name_.erase(gone.spec.name);
  for (auto group = groups_.begin(); group != groups_.end();) {
    group->second.erase(node.slot);
    group = group->second.empty() ? groups_.erase(group) : std::next(group);
  }
  --families_[gone.family].nodes;
  gone.present = false;
  ++gone.generation;
  gone.spec = {};
  states_[node.slot] = {};
  unused_.push_back(node.slot);
  changed(node.slot);
  return {};
}

Result<void> Cluster::set_drained(NodeId node, bool drained) {
  if (!has(node)) return invalid("unknown node");
  if (nodes_[node.slot].drained == drained) return {};
  nodes_[node.slot].drained = drained;
  states_[node.slot].open = !drained;
  changed(node.slot);
  return {};
}

Result<void> Cluster::check_free(const Part& part) const {
  if (!has(part.node)) return invalid("a node of the placement was removed");
  const NodeState& state = states_[part.node.slot];
  const std::string& name = spec(part.node).name;
  if (!state.open) return invalid("node '" + name + "' is drained");
  if (part.milli > kWholeGpu || part.cpu_milli < 0 || part.host_memory < 0 ||
      part.gpu_mask >> state.gpus != 0 || (part.gpu_mask != 0 && part.milli == 0)) {
    return invalid("node '" + name + "': invalid placement part");
  }
  if (state.cpu_milli < part.cpu_milli) return invalid("node '" + name + "' has too few processors free");
  if (state.host_memory < part.host_memory) return invalid("node '" + name + "' has too little memory free");
  for (int gpu = 0; gpu < state.gpus; ++gpu) {
    if ((part.gpu_mask >> gpu & 1) == 0) continue;
    if (state.milli[gpu] < part.milli || state.memory_bytes[gpu] < part.memory_bytes ||
        (part.milli == kWholeGpu && part.memory_bytes != state.gpu_memory)) {
      return invalid("GPU " + std::to_string(gpu) + " of node '" + name + "' has too little free");
    }
  }
  return {};
}

void Cluster::take(const Part& part, bool give_back) {
  NodeState& state = states_[part.node.slot];
  const int sign = give_back ? 1 : -1;
  state.cpu_milli += sign * part.cpu_milli;
  state.host_memory += sign * part.host_memory;
  for (int gpu = 0; gpu < state.gpus; ++gpu) {
    if ((part.gpu_mask >> gpu & 1) == 0) continue;
    state.milli[gpu] = static_cast<uint16_t>(state.milli[gpu] + sign * part.milli);
    state.memory_bytes[gpu] =
        give_back ? state.memory_bytes[gpu] + part.memory_bytes : state.memory_bytes[gpu] - part.memory_bytes;
    free_milli_ += sign * part.milli;
  }
  changed(part.node.slot);
}

Result<void> Cluster::allocate(const Placement& placement) {
  for (size_t i = 0; i < placement.parts.size(); ++i) {
    if (Result<void> checked = check_free(placement.parts[i]); !checked) {
      for (size_t j = 0; j < i; ++j) take(placement.parts[j], true);
      return checked;
    }
    take(placement.parts[i], false);  // before checking the next part, which may be on the same node
  }
  if (!placement.group.empty()) {
    for (const Part& part : placement.parts) ++groups_[placement.group][part.node.slot];
  }
  return {};
}

Result<void> Cluster::release(const Placement& placement) {
  // Check and take part by part, as in allocate(): releasing more than was allocated would exceed the totals.
  for (size_t i = 0; i < placement.parts.size(); ++i) {
    const Part& part = placement.parts[i];
    if (!has(part.node)) continue;
    const NodeSpec& spec = this->spec(part.node);
    const NodeState& state = states_[part.node.slot];
    bool fits = part.gpu_mask >> state.gpus == 0 && part.cpu_milli >= 0 && part.host_memory >= 0 &&
                part.cpu_milli <= spec.cpu_milli - state.cpu_milli &&
                part.host_memory <= spec.host_memory - state.host_memory;
    for (int gpu = 0; fits && gpu < state.gpus; ++gpu) {
      if ((part.gpu_mask >> gpu & 1) == 0) continue;
      fits = state.milli[gpu] + part.milli <= kWholeGpu &&
             part.memory_bytes <= spec.gpu_memory - state.memory_bytes[gpu];
    }
    if (!fits) {
      for (size_t j = 0; j < i; ++j) {
        if (has(placement.parts[j].node)) take(placement.parts[j], false);
      }
      return invalid("node '" + spec.name + "': more released than allocated");
    }
    take(part, true);
  }
  if (const auto group = groups_.find(placement.group); !placement.group.empty() && group != groups_.end()) {
    for (const Part& part : placement.parts) {
      const auto count = group->second.find(part.node.slot);
      if (has(part.node) && count != group->second.end() && --count->second == 0) group->second.erase(count);
    }
    if (group->second.empty()) groups_.erase(group);
  }
  return {};
}

std::optional<NodeId> Cluster::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return std::nullopt;
  return id(found->second);
}

Distance Cluster::distance(uint32_t a, uint32_t b) const {
  if (a == b) return Distance::host;
  if (nodes_[a].rack == nodes_[b].rack) return Distance::rack;
  return nodes_[a].zone == nodes_[b].zone ? Distance::zone : Distance::any;
}

const std::map<uint32_t, uint32_t>* Cluster::slots_of(const std::string& group) const {
  const auto found = groups_.find(group);
  return found == groups_.end() ? nullptr : &found->second;
}

Shape Cluster::shape_of(const Request& request, int gpus) const {
  const auto part_of = [&](int64_t whole) {
    return request.gpus <= 1 || gpus == request.gpus ? whole
                                                     : (whole + request.gpus - 1) / request.gpus * gpus;
  };
  Shape shape{.gpus = static_cast<uint16_t>(gpus),
              .cpu_milli = part_of(request.cpu_milli),
              .host_memory = part_of(request.host_memory)};
  if (gpus == 0) return shape;
  shape.milli = static_cast<uint16_t>(request.milli);
  shape.memory_bytes = request.memory_bytes;
  if (request.models.empty()) shape.models = ~uint64_t{0};
  for (const std::string& model : request.models) {
    const size_t number = std::find(models_.begin(), models_.end(), model) - models_.begin();
    if (number < models_.size()) shape.models |= uint64_t{1} << number;
  }
  return shape;
}

std::optional<std::span<const uint32_t>> Cluster::changes_since(uint64_t number) const {
  if (number < first_change_) return std::nullopt;
  return std::span(log_).subspan(number - first_change_);
}

void Cluster::changed(uint32_t slot) {
  ++change_;
  // With a longer log, rejudging every node would be as fast.
  const size_t most = std::max<size_t>(2 * states_.size(), 1024);
  if (log_.size() >= most) {
    log_.erase(log_.begin(), log_.begin() + static_cast<std::ptrdiff_t>(most / 2));
    first_change_ += most / 2;
  }
  log_.push_back(slot);
}

uint32_t Cluster::place_number(const std::string& name) {
  return places_.try_emplace(name, static_cast<uint32_t>(places_.size())).first->second;
}

}  // namespace gpupool::placement
