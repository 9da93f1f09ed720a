// A forked child process, for tests of memory shared between processes. The child runs `body` and exits with
// its result; parent and child exchange single characters through pipes. The destructor kills a child that is
// still running.
#pragma once
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "tests/support/catch.h"

class Child {
 public:
  class Side {  // the child's end of the pipes
   public:
    Side(int in, int out) : in_(in), out_(out) {}
    void tell(char c) { (void)!write(out_, &c, 1); }
    char hear() {
      char c = 0;
      return read(in_, &c, 1) == 1 ? c : '\0';
    }

   private:
    int in_, out_;
  };

  explicit Child(const std::function<int(Side&)>& body) {
    int to[2], from[2];
    REQUIRE(pipe(to) == 0);
    REQUIRE(pipe(from) == 0);
    pid_ = fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      close(to[1]);
      close(from[0]);
      Side side(to[0], from[1]);
      _exit(body(side));
    }
    close(to[0]);
    close(from[1]);
    in_ = from[0];
    out_ = to[1];
  }
  ~Child() {
    if (pid_ > 0) kill_now();
    close(in_);
    close(out_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void tell(char c) { REQUIRE(write(out_, &c, 1) == 1); }
  char hear() {
    char c = 0;
    return read(in_, &c, 1) == 1 ? c : '\0';
  }
  int wait() {
    int status = -1;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  void kill_now() {
    kill(pid_, SIGKILL);
    wait();
  }
  void signal(int number) { kill(pid_, number); }
  void stop() {  // returns once the process is stopped; SIGCONT continues it
    kill(pid_, SIGSTOP);
    waitpid(pid_, nullptr, WUNTRACED);
  }

 private:
  int pid_ = -1, in_ = -1, out_ = -1;
};
