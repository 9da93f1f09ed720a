// Decides which node owns a GPU whose UUID several nodes report, by the age of their claims and by the
// operators' decisions (trust_gpu()).
//
// The core cannot verify a UUID, so a faulty or malicious node may report the UUID of another node's GPU.
// This must not take the other node out of service: only the GPU is withheld from leases, never the node. A
// claim prevails over claims that are younger by an hour or more (kSettlesAfter). Without a prevailing claim
// the GPU is withheld on all nodes that report it, until an operator decides or only one node reports it.
//
// Owned by Core; its thread.
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "scheduler/core/placer.h"

namespace gpupool::scheduler {

class Claims {
 public:
  // `nodes` must outlive this object.
  explicit Claims(Nodes& nodes) : nodes_(nodes) {}
  Claims(const Claims&) = delete;
  Claims& operator=(const Claims&) = delete;

  void add(const std::string& uuid, const std::string& node) { claimants_[uuid].insert(node); }
  void remove(const std::string& uuid, const std::string& node);
  // True if the node reports the GPU.
  bool has(const std::string& uuid, const std::string& node) const;
  // Returns the names of the nodes that report the GPU.
  std::set<std::string> nodes_with(const std::string& uuid) const;
  // Makes this node the GPU's owner, and no other.
  void trust(const std::string& uuid, const std::string& node);

  struct Change {
    Node* node;
    Gpu* gpu;
    bool was_withheld;
  };
  // Decides on which nodes the GPU is withheld. Returns those where that, or its reason, has changed.
  std::vector<Change> judge(const std::string& uuid);

 private:
  struct Claimant {
    Node* node;
    Gpu* gpu;
  };
  std::vector<Claimant> claimants(const std::string& uuid);
  static const Claimant* owner_of(const std::vector<Claimant>& claimants);
  static std::string reason(const Claimant& loser, const std::vector<Claimant>& claimants,
                            const Claimant* owner);

  Nodes& nodes_;
  std::map<std::string, std::set<std::string>> claimants_;  // GPU UUID -> names of the nodes that report it
};

}  // namespace gpupool::scheduler
