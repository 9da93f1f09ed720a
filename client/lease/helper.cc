#include "client/lease/helper.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "common/spawn.h"

namespace gpupool::client {
namespace {

constexpr size_t kLongestAnswer = 64 * 1024;

// Starts it in a new session, so that it does not get the terminal's signals. Returns 0 or an errno.
int spawn(const std::string& holder, const std::string& address, const std::string& program, int answer,
          pid_t& pid) {
  Spawn child(POSIX_SPAWN_SETSID);
  child.give_no_input();
  child.give(answer, STDOUT_FILENO);
  char self[16];
  std::snprintf(self, sizeof self, "%d", static_cast<int>(::getpid()));
  const char* const words[] = {holder.c_str(), address.c_str(), program.c_str(), self, nullptr};
  return child.start(holder.c_str(), words, pid);
}

}  // namespace

Result<std::string> acquire_lease(const std::string& holder, const std::string& address,
                                  const std::string& program) {
  int answer[2];
  if (::pipe2(answer, O_CLOEXEC) != 0)
    return Error{ErrorCode::unavailable,
                 std::string("cannot create a pipe: ") + std::generic_category().message(errno)};
  pid_t pid = -1;
  const int error = spawn(holder, address, program, answer[1], pid);
  ::close(answer[1]);
  if (error != 0) {
    ::close(answer[0]);
    return Error{ErrorCode::unavailable,
                 "cannot start " + holder + ": " + std::generic_category().message(error)};
  }
  // It forks and exits at once, so that it is not our child; a SIGCHLD handler of the program may have reaped
  // it first.
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  std::string line;
  char part[1024];
  for (ssize_t length = 1; line.find('\n') == std::string::npos && line.size() < kLongestAnswer;) {
    length = ::read(answer[0], part, sizeof part);
    if (length < 0 && errno == EINTR) continue;
    if (length <= 0) break;
    line.append(part, static_cast<size_t>(length));
  }
  ::close(answer[0]);
  if (line.empty() || line.back() != '\n')
    return Error{ErrorCode::refused, "pool-lease exited without an answer"};
  line.pop_back();
  constexpr std::string_view kGranted = "granted ", kRefused = "refused ", kInvalid = "invalid ";
  if (line.starts_with(kGranted)) return line.substr(kGranted.size());
  if (line.starts_with(kInvalid)) return Error{ErrorCode::invalid, line.substr(kInvalid.size())};
  return Error{ErrorCode::refused, line.starts_with(kRefused) ? line.substr(kRefused.size()) : line};
}

}  // namespace gpupool::client
