#include "server/poold/start.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <new>
#include <utility>

#include "common/log/log.h"
#include "common/version.h"
#include "protocol/environment.h"
#include "protocol/transport/tls/context.h"
#include "server/poold/admin/audit.h"
#include "server/poold/check_host.h"
#include "server/poold/daemon.h"
#include "server/poold/install_paths.h"
#include "server/poold/listeners.h"
#include "server/poold/reload.h"
#include "server/poold/suspended_options.h"
#include "server/poold/upgrade/successor.h"
#include "server/poold/workers/suspensions.h"

namespace gpupool::server {
namespace {

constexpr std::chrono::milliseconds kLastLines{1'000};  // limit for the final log flush

void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// Opens a program, and returns a path that stays valid when the file is replaced; empty if it cannot.
std::string open_program(const std::string& program) {
  const int opened = ::open(program.c_str(), O_RDONLY | O_CLOEXEC);
  const int file = ::fcntl(opened, F_DUPFD_CLOEXEC, kFirstFreeDescriptor);
  ::close(opened);
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  return file >= 0 && ::access(path.c_str(), X_OK) == 0 ? path : "";
}

// Exports the RDMA options to the workers' environment. They override variables that poold inherited.
void export_rdma_settings(const ServerOptions& options) {
  for (const auto& [variable, text] : options.rdma_settings) {
    if (!set_environment(variable.c_str(), text)) throw std::bad_alloc();
  }
}

// The parts of a start that can fail, without effect on others: for a program that is about to be installed.
int check_upgrade(const ServerOptions& options, const upgrade::State& state) {
  if (const auto keys = read_public_keys(options.pool.public_keys); !keys) return fail(keys.error().message);
  if (listens_with_tls(options)) {
    if (const auto tls = transport::tls::Context::server(options.tls); !tls) return fail(tls.error().message);
  }
  if (const auto opened = Audit(options.audit_file).open(); !opened) return fail(opened.error().message);
  if (const auto checked = check_listeners(options, state.listeners()); !checked)
    return fail(checked.error().message);
  for (const upgrade::SuspendedSession& session : state.pool().suspended()) {
    if (const auto checked = Suspensions::check(session); !checked) return fail(checked.error().message);
  }
  std::puts(kVersion);
  return std::fflush(stdout) == 0 ? 0 : kExitFailure;
}

}  // namespace

int start_daemon(const ServerOptions& options, const std::vector<std::string>& arguments) {
  (void)::signal(SIGPIPE, SIG_IGN);
  raise_descriptor_limit();
  const auto device = device_library_path(options.device);
  if (!device) return fail(device.error().message);
  const auto program = worker_program_path();
  if (!program) return fail(program.error().message);
  // Workers of the same user must not read this process's secrets from its memory.
  ::prctl(PR_SET_DUMPABLE, options.sandbox == Sandbox::off ? 1 : 0, 0, 0, 0);
  if (const auto checked = check_secrets(options, *device); !checked) return fail(checked.error().message);
  const auto suspended = suspended_files(options);
  if (!suspended) return fail(suspended.error().message);
  const auto received = receive_state();
  if (!received) return fail(received.error().message);
  const upgrade::State* const previous = *received ? &(*received)->state : nullptr;
  if (previous && (*received)->only_check) return check_upgrade(options, *previous);
  if (previous) close_on_exec(*previous);
  PreviousListeners listening = previous ? previous->listeners() : PreviousListeners();
  auto listeners = open_listeners(options, listening);
  if (!listeners) return fail(listeners.error().message);
  log::start(STDERR_FILENO, options.log_level, options.log_format, "poold");
  const auto warn_of_confinement = check_confinement(options, *device);
  log::write_in_background();
  warn_of_confinement();
  if (options.shared_memory) listen_beside_tcp(options, *listeners, listening);
  close_previous(listening);
  export_rdma_settings(options);
  const int status = serve(options, {.arguments = arguments,
                                     .listeners = std::move(*listeners),
                                     .program = {.program = *program,
                                                 .executed = open_program(*program),
                                                 .device = *device,
                                                 .user = options.worker_users,
                                                 .sandbox = options.sandbox,
                                                 .idle_context = options.idle_contexts,
                                                 .tls = listens_with_tls(options),
                                                 .rdma = options.rdma,
                                                 .log_level = options.log_level},
                                     .suspended = *suspended,
                                     .cgroups = open_cgroups(options, previous),
                                     .previous = previous});
  (void)log::flush(kLastLines);
  return status;
}

}  // namespace gpupool::server
