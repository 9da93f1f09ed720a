// What must be true of a pool in which nothing runs: asked of the scheduler, of each poold, and of the machines themselves.
// One thread.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/chaos/machines.h"

namespace gpupool::testing {

class Audit {
 public:
  explicit Audit(std::vector<GpuMachine*> poolds) : poolds_(std::move(poolds)) {}

  // Waits until the pool has all its machines and nothing runs; empty: it is so, else what is not. `scheduler`: of the one that leads.
  std::vector<std::string> await_quiet(pool::PoolAdmin::Stub& scheduler, const std::vector<const Host*>& clients, std::chrono::milliseconds patience);

 private:
  std::vector<std::string> look(pool::PoolAdmin::Stub& scheduler, const std::vector<const Host*>& clients);
  void look_at_scheduler(pool::PoolAdmin::Stub& scheduler, std::vector<std::string>& wrong) const;
  void look_at_poold(const GpuMachine& machine, std::vector<std::string>& wrong);

  struct Usual {  // of a poold at rest, when it was first seen
    size_t descriptors, files;
  };
  const std::vector<GpuMachine*> poolds_;
  std::map<std::string, Usual> usual_;
};

}  // namespace gpupool::testing
