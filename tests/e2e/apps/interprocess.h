// Pairs of programs that share device memory or events. A scenario SCENARIO starts its peer `SCENARIO_other`,
// which inherits one end of a socket as descriptor 3; both pass handles and descriptors over it.
#pragma once
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <ctime>

#include "tests/e2e/apps/scenario.h"

extern char** environ;

namespace app {

inline constexpr int kOther = 3;
inline constexpr unsigned kCount = 5000;

struct Peer {
  int socket = kOther;
  pid_t process = -1;

  template <class T>
  void send(const T& value, int descriptor = -1) const {
    iovec part{const_cast<T*>(&value), sizeof value};
    alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part, message.msg_iovlen = 1;
    if (descriptor >= 0) {
      message.msg_control = space, message.msg_controllen = sizeof space;
      cmsghdr* const control = CMSG_FIRSTHDR(&message);
      control->cmsg_level = SOL_SOCKET, control->cmsg_type = SCM_RIGHTS,
      control->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(control), &descriptor, sizeof descriptor);
    }
    EXPECT(::sendmsg(socket, &message, 0) == static_cast<ssize_t>(sizeof value));
  }
  template <class T>
  T receive(int* descriptor = nullptr) const {
    T value{};
    iovec part{&value, sizeof value};
    alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part, message.msg_iovlen = 1;
    message.msg_control = space, message.msg_controllen = sizeof space;
    EXPECT(::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) == static_cast<ssize_t>(sizeof value));
    if (descriptor) {
      const cmsghdr* const control = CMSG_FIRSTHDR(&message);
      EXPECT(control && control->cmsg_type == SCM_RIGHTS);
      std::memcpy(descriptor, CMSG_DATA(control), sizeof *descriptor);
    }
    return value;
  }
  void say(char step) const { send(step); }
  void await(char step) const { EXPECT(receive<char>() == step); }
  void ends_well() {
    int status = -1;
    EXPECT(::waitpid(process, &status, 0) == process && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
};

// Starts the peer. Call before the first driver call.
inline Peer start(const char* scenario) {
  int ends[2];
  EXPECT(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], kOther);
  char program[] = "/proc/self/exe";
  char* words[] = {program, const_cast<char*>(scenario), nullptr};
  Peer peer{ends[0]};
  EXPECT(::posix_spawn(&peer.process, program, &actions, nullptr, words, environ) == 0);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  return peer;
}

inline unsigned blocks(unsigned count) {
  return (count + 255) / 256;
}

inline void expect_values(CUdeviceptr from, unsigned first, unsigned count = kCount) {
  const auto values = download<uint32_t>(from, count);
  for (uint32_t i = 0; i < count; ++i) EXPECT(values[i] == first + i);
}

inline size_t free_bytes() {
  size_t free = 0, total = 0;
  OK(cuMemGetInfo(&free, &total));
  return free;
}

inline void pause_briefly() {
  const timespec pause{0, 5'000'000};
  ::nanosleep(&pause, nullptr);
}

// Waits until another process has freed its memory.
inline void await_free(size_t bytes) {
  for (int i = 0; i < 4000 && free_bytes() < bytes; ++i) pause_briefly();
  EXPECT(free_bytes() == bytes);
}

inline CUmemAllocationProp shareable(int types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(types);
  return prop;
}
constexpr size_t kGranule = 2u << 20;

}  // namespace app
