// Decides which node owns a GPU whose UUID several nodes report, by the age of their claims and by the
// operators' decisions (trust_gpu()).
//
// The core cannot verify a UUID, so a faulty or malicious node may report the UUID of another node's GPU.
// This must not take the other node out of service: only the GPU is withheld from leases, never the node. A
// claim prevails over claims that are younger by an hour or more (kSettlesAfter). Without a prevailing claim
// the GPU is withheld on all nodes that report it, until an operator decides or only one node reports it.
#include "common/text/names.h"
#include "scheduler/core/core.h"

namespace gpupool::scheduler {
namespace {

constexpr Time kSettlesAfter = 3'600'000;

struct Claimant {
  Node* node;
  Gpu* gpu;
};

// Returns the claimant on which the GPU may be leased; null if it is withheld on all of them.
const Claimant* owner_of(const std::vector<Claimant>& claimants) {
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

std::string reason(const Claimant& loser, const std::vector<Claimant>& claimants, const Claimant* owner) {
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

}  // namespace

void Core::judge_claims(const std::string& uuid) {
  std::vector<Claimant> claimants;
  const auto names = claimants_.find(uuid);
  if (names == claimants_.end()) return;
  for (const std::string& name : names->second) {
    Node& node = nodes_.at(name);
    claimants.push_back({&node, &*std::find_if(node.gpus.begin(), node.gpus.end(),
                                               [&](const Gpu& gpu) { return gpu.uuid == uuid; })});
  }
  const Claimant* const owner = owner_of(claimants);
  for (const Claimant& one : claimants) {
    std::string why = &one == owner ? "" : reason(one, claimants, owner);
    if (why == one.gpu->withheld_because) continue;
    const bool was_withheld = one.gpu->allocations.withheld;
    one.gpu->allocations.withheld = !why.empty();
    one.gpu->withheld_because = std::move(why);
    if (one.gpu->allocations.withheld)
      note("gpu_withheld", {{"node", one.node->name()}, {"gpu", uuid}, {"reason", one.gpu->withheld_because}},
           Note::Level::warning);
    else
      note("gpu_not_withheld", {{"node", one.node->name()}, {"gpu", uuid}});
    if (!was_withheld) counters_.set_gpu_disputes(counters_.gpu_disputes() + 1);
    impossible_.clear();
    recheck_waiting_ = true;
    changed(*one.node, was_withheld);
  }
}

Result<void> Core::trust_gpu(const std::string& name, const std::string& uuid, Time now) {
  const auto known = known_node(name);
  if (!known) return known.error();
  const auto names = claimants_.find(uuid);
  if (names == claimants_.end() || !names->second.contains(name)) {
    return Error{ErrorCode::invalid, "node '" + name + "' does not report GPU '" + brief_name(uuid) +
                                         "': use a UUID shown by pool-admin gpus"};
  }
  for (const std::string& claimant : names->second) {
    for (Gpu& gpu : nodes_.at(claimant).gpus) {
      if (gpu.uuid == uuid) gpu.claim.trusted = claimant == name;
    }
    dirty_nodes_.insert(claimant);
  }
  note("gpu_trusted", {{"node", name}, {"gpu", uuid}});
  judge_claims(uuid);
  for (const std::string& claimant : names->second) check_node(nodes_.at(claimant), now);
  return {};
}

}  // namespace gpupool::scheduler
