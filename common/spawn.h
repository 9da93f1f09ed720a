// Starts a program in a child process.
#pragma once
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/types.h>

extern char** environ;

namespace gpupool {

// The settings of a child process. It starts with default signal handlers and no signal blocked, and inherits
// the descriptors that are not closed on exec. One thread.
class Spawn {
 public:
  // `flags`: POSIX_SPAWN_SETSID or POSIX_SPAWN_SETPGROUP; the group is then the child's own.
  explicit Spawn(short flags = 0) {
    ::posix_spawn_file_actions_init(&files_);
    ::posix_spawnattr_init(&attributes_);
    sigset_t signals;
    ::sigemptyset(&signals);
    ::posix_spawnattr_setsigmask(&attributes_, &signals);
    ::sigfillset(&signals);
    ::posix_spawnattr_setsigdefault(&attributes_, &signals);
    ::posix_spawnattr_setflags(&attributes_,
                               static_cast<short>(flags | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF));
  }
  ~Spawn() {
    ::posix_spawnattr_destroy(&attributes_);
    ::posix_spawn_file_actions_destroy(&files_);
  }
  Spawn(const Spawn&) = delete;
  Spawn& operator=(const Spawn&) = delete;

  // The child has the descriptor under this number. Calls take effect in their order.
  void give(int descriptor, int number) { ::posix_spawn_file_actions_adddup2(&files_, descriptor, number); }
  // The child's standard input is empty.
  void give_no_input() { ::posix_spawn_file_actions_addopen(&files_, 0, "/dev/null", O_RDONLY, 0); }
  // `words` and `variables` end with a null pointer. Returns 0, with the child's number in `pid`, or an
  // errno.
  int start(const char* program, const char* const* words, pid_t& pid, char* const* variables = environ) {
    return ::posix_spawn(&pid, program, &files_, &attributes_, const_cast<char* const*>(words), variables);
  }

 private:
  posix_spawn_file_actions_t files_;
  posix_spawnattr_t attributes_;
};

}  // namespace gpupool
