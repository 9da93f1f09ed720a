// Checks which layers of the workers' confinement are effective on this host, and why others are not, so that
// an operator learns it before a client does. Used for warnings at poold's start and for poold --check-host.
// check_layers() forks, so it is called before other threads start.
#pragma once
#include <string>
#include <vector>

#include "server/confinement/cgroups.h"
#include "server/confinement/worker_users.h"

namespace gpupool::server {

struct Layer {
  enum class State { holds, missing, unused };  // unused: the options do not ask for it
  std::string name;
  State state = State::missing;
  std::string text;  // what is effective, or why it is not and what follows
};

struct ConfinementSettings {
  Sandbox sandbox = Sandbox::on;
  std::string users;    // --worker-users
  bool rdma = false;    // workers use RDMA, and this host has a device
  bool filters = true;  // this build filters system calls
  WorkerLimits limits{};
};

std::vector<Layer> check_layers(const ConfinementSettings& settings);

// Prints a line for each layer. Returns true if none is missing.
bool print_layers(const std::vector<Layer>& layers);

}  // namespace gpupool::server
