#include "scheduler/core/library_placer.h"

#include <algorithm>

namespace gpupool::scheduler {
namespace {

constexpr const char* kNear = "near";
constexpr const char* kApart = "apart";

std::string name_of(const Gpu& gpu) {
  return gpu.model + '\n' + std::to_string(gpu.allocations.total.memory);
}

}  // namespace

LibraryPlacer::LibraryPlacer() : placer_(std::make_unique<placement::Placer>(cluster_, options_)) {}

bool LibraryPlacer::set_policy(const std::string& name) {
  const auto policy = placement::policy_named(name);
  if (!policy) return false;
  if (*policy == options_.policy) return true;
  options_.policy = *policy;
  placer_ = std::make_unique<placement::Placer>(cluster_, options_);
  return true;
}

// Adds the node to the library. The library supports 64 kinds of GPUs (kMaxModels); GPUs of further kinds are
// left out and never leased.
std::vector<LibraryPlacer::Group> LibraryPlacer::groups_of(Node& node) {
  std::map<std::string, Group> by_kind;
  for (uint32_t gpu = 0; gpu < node.gpus.size(); ++gpu) by_kind[name_of(node.gpus[gpu])].gpus.push_back(gpu);
  std::vector<Group> groups;
  for (auto& [kind, group] : by_kind) {
    const Gpu& first = node.gpus[group.gpus.front()];
    const auto added = cluster_.add({.name = node.name() + '\n' + kind,
                                     .zone = node.inventory.zone(),
                                     .rack = node.inventory.rack(),
                                     .model = kind,
                                     .gpus = static_cast<int>(group.gpus.size()),
                                     .gpu_memory = first.allocations.total.memory,
                                     .cpu_milli = static_cast<int64_t>(node.host.total.cpu_milli),
                                     .host_memory = static_cast<int64_t>(node.host.total.memory)});
    if (!added) continue;
    kinds_[kind] = {first.model, first.allocations.total.memory};
    group.id = *added;
    group.open = true;
    by_slot_[added->slot] = {&node, groups.size()};
    groups.push_back(std::move(group));
  }
  if (groups.size() > 1) mixed_[node.name()] = &node;
  return groups;
}

placement::Placement LibraryPlacer::taken_of(const Node& node, const Group& group) const {
  placement::Placement taken;
  const HostAmount host = less(node.host.total, node.host.spare());
  if (host != HostAmount{})
    taken.parts.push_back({.node = group.id,
                           .cpu_milli = static_cast<int64_t>(host.cpu_milli),
                           .host_memory = static_cast<int64_t>(host.memory)});
  for (size_t i = 0; i < group.gpus.size(); ++i) {
    const Allocations<Amount>& allocations = node.gpus[group.gpus[i]].allocations;
    const Amount used = less(allocations.total, allocations.spare());
    if (used.milli == 0) continue;
    taken.parts.push_back({.node = group.id,
                           .gpu_mask = static_cast<uint16_t>(1u << i),
                           .milli = static_cast<uint16_t>(used.milli),
                           .memory_bytes = used.milli == kWholeGpu ? allocations.total.memory : used.memory});
  }
  return taken;
}

void LibraryPlacer::changed(Node& node) {
  if (!groups_.contains(&node)) groups_[&node] = groups_of(node);
  for (Group& group : groups_[&node]) {
    placement::Placement taken = node.open() ? taken_of(node, group) : group.taken;
    if (taken != group.taken) {
      (void)cluster_.set_drained(group.id, false);
      group.open = true;
      (void)cluster_.release(group.taken);
      // Cannot fail: `taken` never exceeds the node's total. If it did, the library would see the node as
      // idle.
      group.taken = cluster_.allocate(taken) ? std::move(taken) : placement::Placement{};
    }
    if (node.open() != group.open) (void)cluster_.set_drained(group.id, !node.open());
    group.open = node.open();
  }
}

void LibraryPlacer::removed(Node& node) {
  const auto found = groups_.find(&node);
  if (found == groups_.end()) return;
  for (const Group& group : found->second) {
    by_slot_.erase(group.id.slot);
    (void)cluster_.remove(group.id);
  }
  groups_.erase(found);
  mixed_.erase(node.name());
}

// Translates a demand into requests of the library. If memory is implied by the compute share, its amount
// depends on the GPU's size: then there is one request per GPU memory size, smallest first.
std::vector<placement::Request> LibraryPlacer::requests_for(const Demand& demand) const {
  placement::Request request{
      .gpus = static_cast<int>(demand.gpus),
      .milli = static_cast<int>(demand.milli),
      .memory_bytes = demand.memory,
      .models = {},
      .cpu_milli = static_cast<int64_t>(demand.host.cpu_milli),
      .host_memory = static_cast<int64_t>(demand.host.memory),
      .spread = demand.one_host ? placement::Distance::host : placement::Distance::any};
  const bool by_share = demand.memory == 0 && demand.milli < kWholeGpu;
  std::map<uint64_t, std::vector<std::string>> models;  // by memory
  for (const auto& [name, kind] : kinds_) {
    if (demand.suits(kind.model, kind.memory))
      models[by_share ? demand.memory_of(kind.memory) : 0].push_back(name);
  }
  std::vector<placement::Request> requests;
  for (auto& [memory, names] : models) {
    if (by_share) request.memory_bytes = memory;
    request.models.clear();
    if (names.size() < kinds_.size()) request.models = std::move(names);
    requests.push_back(request);
  }
  return requests;
}

void LibraryPlacer::arrived(const Demand& demand) {
  const auto requests = requests_for(demand);
  if (!requests.empty()) placer_->observe(requests.front());
}

// Allocates an empty placement of group `group` on these nodes, so that the group's rules apply to them.
placement::Placement LibraryPlacer::mark(const std::set<const Node*>& nodes, const char* group) {
  placement::Placement marks{.parts = {}, .group = group};
  for (const Node* const node : nodes) {
    const auto found = groups_.find(node);
    if (found == groups_.end() || !node->open()) continue;
    for (const Group& of : found->second) marks.parts.push_back({.node = of.id});
  }
  (void)cluster_.allocate(marks);
  return marks;
}

std::optional<placement::Placement> LibraryPlacer::decide(placement::Request request, const Demand& demand) {
  using placement::Distance;
  if (!demand.apart.empty()) request.rules.push_back({.group = kApart, .apart = true});
  if (demand.near.empty()) return placer_->decide(request);
  request.rules.push_back({.group = kNear});
  for (const Distance within : {Distance::host, Distance::rack, Distance::zone}) {
    request.rules.back().within = within;
    if (auto placed = placer_->decide(request)) return placed;
  }
  request.rules.pop_back();
  return placer_->decide(request);
}

// Finds a node whose GPUs of all kinds together satisfy the demand. The library cannot, because it sees each
// kind as a node of its own.
std::optional<std::vector<GpuSlot>> LibraryPlacer::place_on_mixed(const Demand& demand) const {
  for (const auto& [name, node] : mixed_) {
    if (!node->open() || demand.apart.contains(node) || !demand.host.within(node->host.spare())) continue;
    std::vector<GpuSlot> slots;
    for (uint32_t gpu = 0; gpu < node->gpus.size() && slots.size() < demand.gpus; ++gpu) {
      const Gpu& its = node->gpus[gpu];
      if (demand.suits(its) && demand.of(its).within(its.allocations.spare())) slots.push_back({node, gpu});
    }
    if (slots.size() == demand.gpus) return slots;
  }
  return std::nullopt;
}

std::optional<std::vector<GpuSlot>> LibraryPlacer::place(const Demand& demand) {
  const placement::Placement near = mark(demand.near, kNear), apart = mark(demand.apart, kApart);
  std::optional<placement::Placement> placed;
  for (const placement::Request& request : requests_for(demand)) {
    if ((placed = decide(request, demand))) break;
  }
  (void)cluster_.release(near);
  (void)cluster_.release(apart);
  if (!placed) return demand.one_host && demand.gpus > 1 ? place_on_mixed(demand) : std::nullopt;
  std::vector<GpuSlot> slots;
  for (const placement::Part& part : placed->parts) {
    const auto [node, at] = by_slot_.at(part.node.slot);
    const Group& group = groups_.at(node)[at];
    for (size_t i = 0; i < group.gpus.size(); ++i) {
      if (part.gpu_mask >> i & 1) slots.push_back({node, group.gpus[i]});
    }
  }
  std::sort(slots.begin(), slots.end(), [](const GpuSlot& a, const GpuSlot& b) {
    return a.node != b.node ? a.node->name() < b.node->name() : a.gpu < b.gpu;
  });
  return slots;
}

}  // namespace gpupool::scheduler
