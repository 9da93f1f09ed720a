// Child processes that confine themselves as a worker does. in_child() runs checks in a child and returns the
// number of the first one that failed; a Victim only answers, so that a test can see that it is alive.
#pragma once
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <utility>

#include "tests/support/catch.h"
#include "tests/support/processes.h"

namespace gpupool::testing {

// Numbers the checks and keeps the number of the first failed one; 0: none failed.
class Checks {
 public:
  void operator()(bool good) {
    ++number_;
    if (!good && first_bad_ == 0) first_bad_ = number_;
  }
  int first_bad() const { return first_bad_; }

 private:
  int number_ = 0;
  int first_bad_ = 0;
};

// Returns the number of the first failed check, 0 if none failed, or 1000 plus the signal that ended the
// child.
template <class Body>
int in_child(const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    Checks checks;
    body(checks);
    ::_exit(checks.first_bad());
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

inline bool refused(long result, int error = EPERM) {
  return result < 0 && errno == error;
}

class Victim {
 public:
  // `confine` runs in the child and returns false on failure.
  explicit Victim(const std::function<bool()>& confine) {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[0]);
      ::_exit(confine() ? answer(ends[1]) : 1);
    }
    ::close(ends[1]);
    socket_ = ends[0];
    REQUIRE(lives());
  }
  ~Victim() {
    ::close(socket_);
    ::waitpid(pid_, nullptr, 0);
  }
  Victim(const Victim&) = delete;
  Victim& operator=(const Victim&) = delete;

  pid_t pid() const { return pid_; }
  bool lives() const {
    char byte = 'x';
    pollfd answer{.fd = socket_, .events = POLLIN, .revents = 0};
    return ::send(socket_, &byte, 1, MSG_NOSIGNAL) == 1 &&
           ::poll(&answer, 1, static_cast<int>(kPatience.count())) == 1 && ::recv(socket_, &byte, 1, 0) == 1;
  }

 private:
  static int answer(int socket) {
    char byte = 0;
    while (::recv(socket, &byte, 1, 0) == 1 && ::send(socket, &byte, 1, MSG_NOSIGNAL) == 1) {
    }
    return 0;
  }

  pid_t pid_ = -1;
  int socket_ = -1;
};

}  // namespace gpupool::testing
