#include "scheduler/core/claims.h"

#include <algorithm>
#include <utility>

namespace gpupool::scheduler {
namespace {

constexpr Time kSettlesAfter = 3'600'000;

}  // namespace

// Returns the claimant on which the GPU may be leased; null if it is withheld on all of them.
const Claims::Claimant* Claims::owner_of(const std::vector<Claimant>& claimants) {
  const Claimant* oldest = nullptr;
  for (const Claimant& one : claimants) {
    if (one.gpu->claim.trusted) return &one;
    if (!oldest || one.gpu->claim.since < oldest->gpu->claim.since) oldest = &one;
  }
  const bool holds = std::all_of(claimants.begin(), claimants.end(), [&](const Claimant& one) {
    return &one == oldest || one.gpu->claim.since - oldest->gpu->claim.since >= kSettlesAfter;
  });
  return holds ? oldest : nullptr;
}

std::string Claims::reason(const Claimant& loser, const std::vector<Claimant>& claimants,
                           const Claimant* owner) {
  const std::string& uuid = loser.gpu->uuid;
  const std::string decide = "; find out which node has it, then run pool-admin nodes trust NODE --gpu " +
                             uuid + " (on softgpu, give each poold a SOFTGPU_INSTANCE of its own)";
  if (owner && owner->gpu->claim.trusted)
    return uuid + " gets no leases on this node: an operator assigned it to node '" + owner->node->name() +
           "'";
  if (owner)
    return uuid + " gets no leases on this node: node '" + owner->node->name() + "' reported it earlier" +
           decide;
  const auto other = std::find_if(claimants.begin(), claimants.end(),
                                  [&](const Claimant& one) { return one.node != loser.node; });
  return uuid + " gets no leases: node '" + other->node->name() + "' reports it as well" + decide;
}

void Claims::remove(const std::string& uuid, const std::string& node) {
  auto& names = claimants_[uuid];
  names.erase(node);
  if (names.empty()) claimants_.erase(uuid);
}

bool Claims::has(const std::string& uuid, const std::string& node) const {
  const auto names = claimants_.find(uuid);
  return names != claimants_.end() && names->second.contains(node);
}

std::set<std::string> Claims::nodes_with(const std::string& uuid) const {
  const auto names = claimants_.find(uuid);
  return names == claimants_.end() ? std::set<std::string>() : names->second;
}

void Claims::trust(const std::string& uuid, const std::string& node) {
  for (const Claimant& one : claimants(uuid)) one.gpu->claim.trusted = one.node->name() == node;
}

std::vector<Claims::Claimant> Claims::claimants(const std::string& uuid) {
  std::vector<Claimant> claimants;
  for (const std::string& name : nodes_with(uuid)) {
    Node& node = nodes_.at(name);
    claimants.push_back({&node, node.find_gpu(uuid)});
  }
  return claimants;
}

std::vector<Claims::Change> Claims::judge(const std::string& uuid) {
  const std::vector<Claimant> all = claimants(uuid);
  const Claimant* const owner = owner_of(all);
  std::vector<Change> changes;
  for (const Claimant& one : all) {
    std::string why = &one == owner ? "" : reason(one, all, owner);
    if (why == one.gpu->withheld_because) continue;
    changes.push_back({one.node, one.gpu, one.gpu->allocations.withheld});
    one.gpu->allocations.withheld = !why.empty();
    one.gpu->withheld_because = std::move(why);
  }
  return changes;
}

}  // namespace gpupool::scheduler
