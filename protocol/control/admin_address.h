// Default path of the admin socket, for poold, which makes it, and pool-admin, which connects to it. Uses
// getenv(); cannot fail.
#pragma once
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

namespace gpupool::admin {

// Returns systemd's RUNTIME_DIRECTORY, /run/poold for root, or a folder below XDG_RUNTIME_DIR or /tmp. It is
// not /run/gpupool, which is shared with containers: root in a container would then administer poold.
inline std::string socket_folder() {
  const char* const given = std::getenv("RUNTIME_DIRECTORY");
  if (given && *given) return std::string(given).substr(0, std::string_view(given).find(':'));
  if (::geteuid() == 0) return "/run/poold";
  const char* const own = std::getenv("XDG_RUNTIME_DIR");
  return own && *own ? std::string(own) + "/poold" : "/tmp/poold-" + std::to_string(::geteuid());
}

// `name` is poold's first port, or its process id if it listens on no port.
inline std::string default_socket(uint64_t name) {
  return socket_folder() + "/poold-" + std::to_string(name) + ".sock";
}

}  // namespace gpupool::admin
