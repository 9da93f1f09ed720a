// pool-admin's exit statuses, and the exception that carries one; main() prints it and exits with its status.
#pragma once
#include <stdexcept>
#include <string>

#include "common/text/printable.h"

namespace gpupool::admin {

// Exit statuses of pool-admin.
enum Exit : int {
  kExitGood = 0,
  kExitRefused = 1,  // rejected by the server; `health`: not ready; `dump`: no answer from the worker;
                     // `migrate`: the session has not migrated
  kExitUsage = 2,
  kExitUnreachable = 3,  // poold or scheduler not running, or not answering
};

// Maximum size of a gRPC reply: limits the memory that a server can make pool-admin use. Suffices for some
// hundred thousand leases.
constexpr int kMaxReplyBytes = 256 << 20;

// Makes its text printable and limits its length, because parts of it may come from the server.
struct Failure : std::runtime_error {
  Failure(Exit status, const std::string& what)
      : std::runtime_error(printable_message(what)), status(status) {}
  const Exit status;
};

}  // namespace gpupool::admin
