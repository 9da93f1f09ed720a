// Finds poold's own secrets (the TLS key, the node's token, suspended sessions) that a worker could read. Any
// thread.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "server/confinement/layers.h"

namespace gpupool::server {

struct Secret {
  std::string name;  // of the option
  std::string file;  // or folder
};

// Returns a message for each secret that a worker could read. Files that do not exist are skipped.
// `readable`: folders that workers may read besides the system's.
std::vector<std::string> readable_secrets(const std::vector<Secret>& secrets,
                                          const ConfinementSettings& settings,
                                          const std::vector<std::string>& readable);

}  // namespace gpupool::server
