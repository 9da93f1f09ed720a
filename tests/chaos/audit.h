// Checks that an idle pool has no leases, sessions, memory, processes or files left: queries the scheduler,
// each poold and the machines themselves. One thread.
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

  // Waits until the pool is complete and idle. Returns the remaining violations; empty if there are none.
  // `scheduler` is the leader's stub.
  std::vector<std::string> await_idle(pool::PoolAdmin::Stub& scheduler,
                                      const std::vector<const Host*>& clients,
                                      std::chrono::milliseconds timeout);

 private:
  std::vector<std::string> check(pool::PoolAdmin::Stub& scheduler, const std::vector<const Host*>& clients);
  void check_scheduler(pool::PoolAdmin::Stub& scheduler, std::vector<std::string>& wrong) const;
  void check_poold(const GpuMachine& machine, std::vector<std::string>& wrong);

  struct Usual {  // resources of an idle poold at the first check
    size_t descriptors, files;
  };
  const std::vector<GpuMachine*> poolds_;
  std::map<std::string, Usual> usual_;
};

}  // namespace gpupool::testing
