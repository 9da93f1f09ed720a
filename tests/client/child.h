// Runs a part of a test in a child process, for code whose state exists once in a process and is made from
// the environment. Start threads only in children: a process without threads may fork.
#pragma once
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>

#include "tests/support/processes.h"

namespace gpupool::client::test {

struct ChildResult {
  std::string result;  // what `body` has returned, or "exception: ..."
  std::string errors;  // the child's stderr
};

// Calls `body` in a child with these changes of the environment.
// `at_exit`: the child calls exit() afterwards, not _exit(), so that destructors run.
inline ChildResult in_child(const testing::Environment& environment, const std::function<std::string()>& body,
                            bool at_exit = false) {
  int results[2], errors[2];
  if (::pipe(results) != 0 || ::pipe(errors) != 0) throw std::runtime_error("no pipe");
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("cannot fork");
  if (child == 0) {
    ::dup2(errors[1], STDERR_FILENO);
    for (const int end : {results[0], errors[0], errors[1]}) ::close(end);
    std::string result;
    try {
      for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
      result = body();
    } catch (const std::exception& error) {
      result = std::string("exception: ") + error.what();
    }
    [[maybe_unused]] const ssize_t written = ::write(results[1], result.data(), result.size());
    ::close(results[1]);
    if (at_exit) std::exit(0);
    ::_exit(0);
  }
  ::close(results[1]);
  ::close(errors[1]);
  const auto read_all = [](int from) {
    std::string text;
    char part[4096];
    for (ssize_t length = 0; (length = ::read(from, part, sizeof part)) > 0;)
      text.append(part, static_cast<size_t>(length));
    ::close(from);
    return text;
  };
  ChildResult got;
  got.result = read_all(results[0]);
  got.errors = read_all(errors[0]);
  int status = -1;
  if (::waitpid(child, &status, 0) != child || status != 0)
    throw std::runtime_error("the child ended with status " + std::to_string(status) + ": " + got.errors);
  return got;
}

}  // namespace gpupool::client::test
