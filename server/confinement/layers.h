// The layers of the workers' confinement: which of them hold on this host, and why others do not. For poold's warning at its start and for
// poold --check-host, so that an operator learns it before a client does. Any thread.
#pragma once
#include <string>
#include <vector>

#include "server/confinement/cgroups.h"
#include "server/confinement/worker_users.h"

namespace gpupool::server {

struct Layer {
  enum class State { holds, missing, unused };  // unused: the options do not want it, whether the host has it or not
  std::string name;
  State state = State::missing;
  std::string text;  // what holds, or why it does not and with what effect
};

struct ConfinementWish {
  Sandbox sandbox = Sandbox::on;
  std::string users;      // --worker-users
  bool rdma = false;      // workers use RDMA, of which this host has a device
  bool filters = true;    // this build filters system calls
  WorkerLimits limits{};
};

std::vector<Layer> check_layers(const ConfinementWish& wish);

// One line each, for people. True if no layer is missing.
bool print_layers(const std::vector<Layer>& layers);

}  // namespace gpupool::server
