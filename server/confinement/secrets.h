// poold's own secrets (the TLS key, the node's token) that a worker could read. Any thread.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "server/confinement/layers.h"

namespace gpupool::server {

struct Secret {
  std::string name;  // of the option
  std::string file;
};

// Why a worker could read each of them; those that it could not are left out. A file that is not there is left out, too. `readable`: folders
// that are left to workers besides the system's.
std::vector<std::string> readable_secrets(const std::vector<Secret>& secrets, const ConfinementWish& wish, const std::vector<std::string>& readable);

}  // namespace gpupool::server
