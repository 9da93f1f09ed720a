// Sets whether the peer of a Unix socket may send descriptors (SCM_RIGHTS), where the kernel lets the
// receiver decide (SO_PASSRIGHTS, Linux 6.16). Connections inherit the setting from their listener. Older
// kernels always accept descriptors, so a receiver that must not take one also has to peek before it reads.
// Any thread; failures are ignored.
#pragma once
#include <sys/socket.h>

namespace gpupool::transport {

#if defined(SO_PASSRIGHTS)
constexpr int kPassRights = SO_PASSRIGHTS;
#elif defined(__hppa__) || defined(__sparc__) || defined(__alpha__) || defined(__mips__)
constexpr int kPassRights = -1;  // these number socket options differently
#else
constexpr int kPassRights = 83;
#endif

inline void allow_descriptors(int socket, bool allow) {
  const int value = allow ? 1 : 0;
  (void)::setsockopt(socket, SOL_SOCKET, kPassRights, &value, sizeof value);
}

}  // namespace gpupool::transport
