// Whether the other end of a Unix socket may send descriptors (SCM_RIGHTS), where the kernel lets the receiver decide (Linux 6.16). Connections
// inherit the setting from their listener. Older kernels accept descriptors in any case, so a receiver that must not take one also has to look
// before it reads.
#pragma once
#include <sys/socket.h>

namespace gpupool::transport {

#if defined(SO_PASSRIGHTS)
constexpr int kPassRights = SO_PASSRIGHTS;
#elif defined(__hppa__) || defined(__sparc__) || defined(__alpha__) || defined(__mips__)
constexpr int kPassRights = -1;  // numbers options differently
#else
constexpr int kPassRights = 83;
#endif

inline void allow_descriptors(int socket, bool allow) {
  const int value = allow ? 1 : 0;
  (void)::setsockopt(socket, SOL_SOCKET, kPassRights, &value, sizeof value);
}

}  // namespace gpupool::transport
