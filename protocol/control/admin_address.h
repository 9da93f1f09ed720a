// Where a poold's admin socket is when nobody says, for poold and for pool-admin.
#pragma once
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

namespace gpupool::admin {

// A service's own folder where systemd made one, root's beside those of other daemons, anybody else's in their run-time folder.
// Not /run/gpupool, which is shared with containers: whoever is root in one would be an administrator.
inline std::string socket_folder() {
  const char* const given = std::getenv("RUNTIME_DIRECTORY");
  if (given && *given) return std::string(given).substr(0, std::string_view(given).find(':'));
  if (::geteuid() == 0) return "/run/poold";
  const char* const own = std::getenv("XDG_RUNTIME_DIR");
  return own && *own ? std::string(own) + "/poold" : "/tmp/poold-" + std::to_string(::geteuid());
}

// `name`: poold's first port, or its process id where it has none.
inline std::string default_socket(uint64_t name) { return socket_folder() + "/poold-" + std::to_string(name) + ".sock"; }

}  // namespace gpupool::admin
