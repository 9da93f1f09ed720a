// How pool-admin ends when it cannot do what it was asked to.
#pragma once
#include <stdexcept>
#include <string>

namespace gpupool::admin {

// The exit status of pool-admin.
enum Exit : int {
  kExitGood = 0,
  kExitRefused = 1,      // poold or the scheduler says no: no such tenant or session, a quota that makes no sense; health: it is not ready
  kExitUsage = 2,
  kExitUnreachable = 3,  // none there, or it does not answer
};

struct Failure : std::runtime_error {
  Failure(Exit status, const std::string& what) : std::runtime_error(what), status(status) {}
  const Exit status;
};

}  // namespace gpupool::admin
