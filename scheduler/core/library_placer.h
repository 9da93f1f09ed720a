// The core's Placer, implemented with the placement library (scheduler/placement). Mirrors the pool into a
// placement::Cluster: a node becomes one library node per kind of GPU (model and memory), and everything
// allocated or reserved on it becomes one anonymous Placement. The core's thread; does not fail.
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
  std::optional<std::vector<GpuSlot>> place(const Demand& demand) override;
  bool set_policy(const std::string& name) override;

 private:
  // The GPUs of one kind on one node: one node of the library.
  struct Group {
    placement::NodeId id;
    std::vector<uint32_t> gpus;  // indexes in Node::gpus
    placement::Placement taken;  // everything allocated or reserved there
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
  std::optional<std::vector<GpuSlot>> place_on_mixed(const Demand& demand) const;

  placement::Cluster cluster_;
  placement::Placer::Options options_;
  std::unique_ptr<placement::Placer> placer_;
  std::map<std::string, Kind> kinds_;  // by name_of(), the library's model name
  std::unordered_map<const Node*, std::vector<Group>> groups_;
  std::unordered_map<uint32_t, std::pair<Node*, size_t>> by_slot_;  // library slot -> node, index in groups_
  std::map<std::string, Node*> mixed_;                              // nodes with several groups, by name
};

}  // namespace gpupool::scheduler
