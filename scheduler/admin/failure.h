// How pool-admin ends when it cannot do what it was asked to.
#pragma once
#include <stdexcept>
#include <string>

#include "protocol/text/printable.h"

namespace gpupool::admin {

// The exit status of pool-admin.
enum Exit : int {
  kExitGood = 0,
  kExitRefused = 1,      // poold or the scheduler says no: no such tenant or session, a quota that makes no sense; health: it is not ready
  kExitUsage = 2,
  kExitUnreachable = 3,  // none there, or it does not answer
};

// Messages of gRPC that are longer end the call: bounds what a poold or a scheduler can make pool-admin keep. Some hundred thousand leases.
constexpr int kMostReplyBytes = 256 << 20;

// Its text, part of which is the other side's, is printable and bounded.
struct Failure : std::runtime_error {
  Failure(Exit status, const std::string& what) : std::runtime_error(printable_message(what)), status(status) {}
  const Exit status;
};

}  // namespace gpupool::admin
