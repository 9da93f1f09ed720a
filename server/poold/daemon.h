// Puts poold's parts together and runs the event loop until a signal ends it. start.h calls it on the main
// thread.
#pragma once
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "server/confinement/cgroups.h"
#include "server/poold/listeners.h"
#include "server/poold/options.h"
#include "server/poold/upgrade/state.pb.h"
#include "server/poold/workers/suspended_files.h"
#include "server/poold/workers/worker_process.h"

namespace gpupool::server {

struct Prepared {
  std::vector<std::string> arguments;  // of main(), for upgrades
  Listeners listeners;
  WorkerProgram program;
  SuspendedFiles::Settings suspended;
  std::shared_ptr<Cgroups> cgroups;          // null: none
  const upgrade::State* previous = nullptr;  // what this process's previous program knew; null: none
};

// Returns the exit status, as start_daemon() does.
int serve(const ServerOptions& options, Prepared prepared);

// Prints why poold cannot start, and returns the exit status.
inline int fail(const std::string& why) {
  std::fprintf(stderr, "poold: %s\n", why.c_str());
  return kExitFailure;
}

}  // namespace gpupool::server
