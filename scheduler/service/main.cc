// The daemon pool-scheduler; see pool-scheduler --help.
#include <absl/synchronization/mutex.h>

#include <cstdio>
#include <exception>

#include "scheduler/service/daemon.h"

int main(int count, char** words) {
  using namespace gpupool::scheduler;
  // Distributions build Abseil, which gRPC uses, with deadlock detection, which takes some percent of a
  // grant's time.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  try {
    const auto parsed = parse_options(count, words);
    if (const auto* early = std::get_if<EarlyExit>(&parsed)) return early->status;
    return run_daemon(std::get<Options>(parsed));
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "pool-scheduler: %s\n", failure.what());
    return kExitFailure;
  }
}
