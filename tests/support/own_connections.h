// Cuts the connections of this process, as a network could. For programs that are tested or measured; any
// thread.
#pragma once
#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

namespace gpupool::testing {

// True for a TCP connection, and for a Unix socket that is connected to a name.
inline bool is_connection(int descriptor) {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  if (::getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return false;
  if (peer.ss_family == AF_UNIX) return size > sizeof(sa_family_t);
  return peer.ss_family == AF_INET || peer.ss_family == AF_INET6;
}

inline std::vector<int> own_connections() {
  std::vector<int> found;
  DIR* const folder = ::opendir("/proc/self/fd");
  if (!folder) return found;
  while (const dirent* const entry = ::readdir(folder)) {
    const int descriptor = std::atoi(entry->d_name);
    if (descriptor > STDERR_FILENO && is_connection(descriptor)) found.push_back(descriptor);
  }
  ::closedir(folder);
  return found;
}

inline void cut(const std::vector<int>& connections) {
  for (const int descriptor : connections) ::shutdown(descriptor, SHUT_RDWR);
}

}  // namespace gpupool::testing
