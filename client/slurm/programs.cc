#include "client/slurm/programs.h"

#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "common/spawn.h"

namespace gpupool::slurm {
namespace {

constexpr size_t kMostOutput = 1 << 20;
constexpr unsigned kCloseOnExec = 1u << 2;  // CLOSE_RANGE_CLOEXEC, since Linux 5.11

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> out;
  for (const std::string& word : words) out.push_back(const_cast<char*>(word.c_str()));
  out.push_back(nullptr);
  return out;
}

Error cannot_start(const std::string& program, int error) {
  return {ErrorCode::unavailable, "cannot start " + program + ": " + std::generic_category().message(error)};
}

std::string read_all(int file) {
  std::string text;
  char part[4096];
  while (text.size() < kMostOutput) {
    const ssize_t length = ::read(file, part, sizeof part);
    if (length < 0 && errno == EINTR) continue;
    if (length <= 0) break;
    text.append(part, static_cast<size_t>(length));
  }
  return text;
}

int await(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return -1;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Returns why the user is the reason that the program does not start; null: the node is.
const char* fault_of_user(int error) {
  if (error == EAGAIN) return "; the user has too many processes on this node: end some";
  if (error == E2BIG) return "; the request is too long: shorten it";
  return nullptr;
}

// The groups of a user, with which a process of the user may read the user's files.
std::vector<gid_t> groups_of(const std::string& user, gid_t group) {
  std::vector<gid_t> groups(64);
  int count = static_cast<int>(groups.size());
  while (::getgrouplist(user.c_str(), group, groups.data(), &count) < 0) {
    if (count <= static_cast<int>(groups.size())) return {group};
    groups.resize(static_cast<size_t>(count));
  }
  groups.resize(static_cast<size_t>(count));
  return groups;
}

// Becomes the user's program. In a child process, which may call only functions that are safe after fork().
// On failure writes errno to `report`, which is otherwise closed by execve().
[[noreturn]] void become(const Holder& holder, const std::vector<gid_t>& groups, char* const* words,
                         char* const* variables, int report) {
  // slurmd is protected from the kernel's search for memory; a user's process is not.
  if (const int score = ::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC); score >= 0) {
    [[maybe_unused]] const ssize_t written = ::write(score, "0", 1);
    ::close(score);
  }
  for (int number = 1; number < NSIG; ++number) (void)::signal(number, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
  const int input = ::open("/dev/null", O_RDONLY);
  const bool good = ::setsid() >= 0 && ::setgroups(groups.size(), groups.data()) == 0 &&
                    ::setresgid(holder.group, holder.group, holder.group) == 0 &&
                    ::setresuid(holder.user, holder.user, holder.user) == 0 && ::chdir("/") == 0 &&
                    input >= 0 && ::dup2(input, STDIN_FILENO) >= 0 &&
                    ::dup2(holder.files.answer, STDOUT_FILENO) >= 0 &&
                    ::dup2(holder.files.log, STDERR_FILENO) >= 0;
  if (good) {
    // Not left to the program, to which the user may attach a debugger before it closes them.
    ::syscall(SYS_close_range, 3u, ~0u, kCloseOnExec);
    ::execve(words[0], words, variables);
  }
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(report, &error, sizeof error);
  ::_exit(127);
}

}  // namespace

Result<Finished> run_program(const std::vector<std::string>& words, char* const* variables, bool quiet) {
  int output[2];
  if (::pipe2(output, O_CLOEXEC) != 0) return cannot_start(words[0], errno);
  Spawn child;
  child.give_no_input();
  child.give(output[1], STDOUT_FILENO);
  const int nowhere = quiet ? ::open("/dev/null", O_WRONLY | O_CLOEXEC) : -1;
  if (nowhere >= 0) child.give(nowhere, STDERR_FILENO);
  pid_t pid = -1;
  const int error =
      child.start(words[0].c_str(), pointers(words).data(), pid, variables != nullptr ? variables : environ);
  ::close(output[1]);
  if (nowhere >= 0) ::close(nowhere);
  Finished finished;
  if (error == 0) finished.output = read_all(output[0]);
  ::close(output[0]);
  if (error != 0) return cannot_start(words[0], error);
  finished.status = await(pid);
  return finished;
}

Result<void> start_holder(const Holder& holder) {
  const std::vector<gid_t> groups = groups_of(holder.user_name, holder.group);
  const std::vector<char*> words = pointers(holder.words), variables = pointers(holder.variables);
  int report[2];
  if (::pipe2(report, O_CLOEXEC) != 0) return cannot_start(holder.words[0], errno);
  const pid_t child = ::fork();
  if (child == 0) become(holder, groups, words.data(), variables.data(), report[1]);
  int error = child < 0 ? errno : 0;
  ::close(report[1]);
  // When this process ends, slurmd kills its process group, which the child must have left by then.
  while (child > 0 && ::read(report[0], &error, sizeof error) < 0 && errno == EINTR) {
  }
  ::close(report[0]);
  const Error failure = cannot_start(holder.words[0], error);
  const char* const fault = child > 0 && error != 0 ? fault_of_user(error) : nullptr;
  if (fault != nullptr) ::dprintf(holder.files.answer, "refused %s%s\n", failure.message.c_str(), fault);
  for (const int file : {holder.files.answer, holder.files.log}) ::close(file);
  if (error != 0 && fault == nullptr) return failure;
  return {};
}

void start_detached(const std::vector<std::string>& words) {
  Spawn child(POSIX_SPAWN_SETSID);
  child.give_no_input();
  pid_t pid = -1;
  (void)child.start(words[0].c_str(), pointers(words).data(), pid);
}

}  // namespace gpupool::slurm
