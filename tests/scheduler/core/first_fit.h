// A first-fit placer, so that tests of the core can predict placements.
#pragma once
#include "scheduler/core/placer.h"

namespace gpupool::scheduler {

class FirstFit : public Placer {
 public:
  explicit FirstFit(Nodes& nodes) : nodes_(nodes) {}
  void changed(Node&) override {}
  void removed(Node&) override {}
  void arrived(const Demand&) override {}
  std::optional<std::vector<GpuSlot>> place(const Demand& demand) override;
  bool set_policy(const std::string&) override { return true; }

 private:
  Nodes& nodes_;
};

}  // namespace gpupool::scheduler
