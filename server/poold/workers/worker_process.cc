#include "server/poold/workers/worker_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "common/spawn.h"
#include "server/handover/handover.h"
#include "server/sockets/untrusted_socket.h"

namespace gpupool::server {
namespace {

Error cannot_start(const std::string& program, int error) {
  return {ErrorCode::unavailable, "cannot start " + program + ": " + std::generic_category().message(error)};
}

const std::string& executed(const WorkerProgram& program) {
  return program.executed.empty() ? program.program : program.executed;
}

// A pair of Unix sockets between poold and a worker.
struct Channel {
  int ours = -1, theirs = -1;
};

// Returns false with errno set. `out` then has the descriptors that were opened.
bool open_channel(int type, Channel& out) {
  int ends[2];
  if (::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends) != 0) return false;
  out = {ends[0], ::fcntl(ends[1], F_DUPFD_CLOEXEC, kFirstFreeDescriptor)};
  const int error = errno;
  ::close(ends[1]);
  errno = error;
  ::fcntl(out.ours, F_SETFL, O_NONBLOCK);
  refuse_descriptors(out.ours);
  return out.theirs >= 0;
}

}  // namespace

Result<StartedWorker> start_worker(const WorkerProgram& program) {
  auto page = quota::SharedPage<quota::SessionPage>::create("gpupool-session");
  if (!page) return page.error();
  Channel control, output;
  int theirs_page = -1;
  if (!open_channel(SOCK_SEQPACKET, control) || !open_channel(SOCK_STREAM, output) ||
      (theirs_page = ::fcntl((*page)->descriptor(), F_DUPFD_CLOEXEC, kFirstFreeDescriptor)) < 0) {
    const int error = errno;
    for (const int descriptor : {control.ours, control.theirs, output.ours, output.theirs}) {
      if (descriptor >= 0) ::close(descriptor);
    }
    return cannot_start(program.program, error);
  }

  Spawn worker;
  worker.give_no_input();
  for (const int number : {STDOUT_FILENO, STDERR_FILENO, kLogDescriptor}) worker.give(output.theirs, number);
  worker.give(control.theirs, kControlDescriptor);
  worker.give(theirs_page, kSessionPageDescriptor);

  const std::string parent = std::to_string(::getpid()), cache_bytes = std::to_string(program.cache_bytes);
  const char* words[] = {"poold-worker",
                         "--device",
                         program.device.c_str(),
                         "--rdma",
                         program.rdma ? "yes" : "no",
                         "--tls",
                         program.tls ? "yes" : "no",
                         "--user",
                         program.user.c_str(),
                         "--own-user",
                         program.own_user ? "yes" : "no",
                         "--idle-context",
                         program.idle_context ? "yes" : "no",
                         "--sandbox",
                         name_of(program.sandbox),
                         "--cache-folders",
                         program.cache_folders.c_str(),
                         "--cache-bytes",
                         cache_bytes.c_str(),
                         "--cgroup",
                         program.cgroup.c_str(),
                         "--cgroup-settings",
                         program.cgroup_settings.c_str(),
                         "--parent",
                         parent.c_str(),
                         "--log-level",
                         log::name_of(program.log_level),
                         nullptr};
  StartedWorker started{.pid = -1, .control = control.ours, .output = output.ours, .page = std::move(*page)};
  const int error = worker.start(executed(program).c_str(), words, started.pid);
  for (const int descriptor : {control.theirs, output.theirs, theirs_page}) ::close(descriptor);
  if (error != 0) {
    ::close(control.ours);
    ::close(output.ours);
    return cannot_start(program.program, error);
  }
  return started;
}

void kill_worker(pid_t pid) {
  ::kill(pid, SIGKILL);
}

bool worker_has_ended(pid_t pid, int* wait_status) {
  return ::waitpid(pid, wait_status, WNOHANG) == pid;
}

std::string end_text(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const int signal = WTERMSIG(wait_status);
    const char* name = ::sigdescr_np(signal);
    return "killed by signal " + std::to_string(signal) +
           (name != nullptr ? " (" + std::string(name) + ")" : "");
  }
  switch (const int status = WEXITSTATUS(wait_status)) {
    case kWorkerOrderly: return "the client disconnected";
    case kWorkerSessionFailed: return "the connection was lost, or the client broke the protocol";
    case kWorkerHandoverFailed: return "the client disconnected before the session started";
    case kWorkerPooldGone: return "poold is shutting down";
    default: return "exit status " + std::to_string(status);
  }
}

}  // namespace gpupool::server
