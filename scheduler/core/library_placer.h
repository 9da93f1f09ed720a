// The core's placer on the placement library (scheduler/placement). Keeps the library's picture of the cluster: a node of the pool is there
// as one for each kind of GPU that it has, on which what is not spare is taken by nobody in particular.
#pragma once
#include <map>
#include <memory>
#include <unordered_map>

#include "scheduler/core/placer.h"
#include "scheduler/placement/placer.h"

namespace gpupool::scheduler {

class LibraryPlacer : public Placer {
 public:
  LibraryPlacer();
  void changed(Node& node) override;
  void removed(Node& node) override;
  void arrived(const Demand& demand) override;
  std::optional<std::vector<Spot>> place(const Demand& demand) override;
  bool set_policy(const std::string& name) override;

 private:
  // GPUs of one kind of one node.
  struct Group {
    placement::NodeId id;
    std::vector<uint32_t> gpus;      // of the node
    placement::Placement taken;
    bool open = false;
  };
  struct Kind {
    std::string model;
    uint64_t memory;
  };

  std::vector<Group> groups_of(Node& node);
  placement::Placement taken_of(const Node& node, const Group& group) const;
  std::vector<placement::Request> requests_for(const Demand& demand) const;
  std::optional<placement::Placement> decide(placement::Request request, const Demand& demand);
  placement::Placement mark(const std::set<const Node*>& nodes, const char* group);
  std::optional<std::vector<Spot>> place_on_mixed(const Demand& demand) const;

  placement::Cluster cluster_;
  placement::Placer::Options options_;
  std::unique_ptr<placement::Placer> placer_;
  std::map<std::string, Kind> kinds_;                      // by the library's name
  std::unordered_map<const Node*, std::vector<Group>> groups_;
  std::unordered_map<uint32_t, std::pair<Node*, size_t>> by_slot_;  // of the library: which group
  std::map<std::string, Node*> mixed_;  // nodes with several groups, by name
};

}  // namespace gpupool::scheduler
