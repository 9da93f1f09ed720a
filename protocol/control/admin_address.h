// Where a poold's admin socket is when nobody says, for poold and for pool-admin.
#pragma once
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

namespace gpupool::admin {

// Root's is where init systems make folders for daemons; anybody else's in their own run-time folder.
inline std::string socket_folder() {
  if (::geteuid() == 0) return "/run/gpupool";
  const char* const own = std::getenv("XDG_RUNTIME_DIR");
  return own && *own ? std::string(own) + "/gpupool" : "/tmp/gpupool-" + std::to_string(::geteuid());
}

// `name`: poold's first port, or its process id where it has none.
inline std::string default_socket(uint64_t name) { return socket_folder() + "/poold-" + std::to_string(name) + ".sock"; }

}  // namespace gpupool::admin
