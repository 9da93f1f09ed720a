// One worker process, with its session while it serves a client. WorkerPool changes it; the parts of the pool
// (shares.h, memory_mover.h, ...) read it and keep what they know of a session themselves, by its number.
// poold's thread.
#pragma once
#include <sys/types.h>

#include <array>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "common/version.h"
#include "protocol/wire/frame.h"
#include "server/confinement/worker_users.h"
#include "server/handover/handover.h"
#include "server/poold/workers/breaks.h"
#include "server/poold/workers/client.h"
#include "server/poold/workers/worker_log.h"
#include "server/poold/workers/worker_process.h"
#include "server/quota/accounts.h"

namespace gpupool::server {

struct Worker {
  using Clock = std::chrono::steady_clock;
  enum class Stage { starting, idle, serving };

  Worker(asio::io_context& context, StartedWorker started)
      : pid(started.pid),
        control(context, started.control),
        output(std::make_shared<WorkerLog>(context, started.output, started.pid)),
        page(std::move(started.page)),
        deadline(context),
        since(Clock::now()) {}
  ~Worker();
  void close_control();  // the worker then sees the end of the socket and exits
  // The control socket, for send_control().
  int socket() { return control.native_handle(); }

  pid_t pid;
  uint32_t control_version = kControlVersion;       // of its program
  std::string version = kVersion;                   // likewise
  bool inherited = false;                           // started by this process's previous program
  std::string cgroup;                               // empty: none
  std::unique_ptr<WorkerUsers::ReservedUser> user;  // returned when the process has been waited for
  asio::posix::stream_descriptor control;
  const std::shared_ptr<WorkerLog> output;
  std::shared_ptr<quota::SharedPage<quota::SessionPage>> page;
  std::unique_ptr<quota::Accounts::Place> account_slot;  // quota account; while serving
  asio::steady_timer deadline;
  Stage state = Stage::starting;
  bool ended = false;
  Clock::time_point since;  // when `state` began
  uint64_t session = 0;
  std::string session_id;  // while serving
  std::string bulk_token;  // while serving
  std::string resume_key;  // while serving
  // The last accepted attempt to resume each of the session's connections.
  std::array<uint64_t, Breaks::kLinks> resume_attempts{};
  std::chrono::milliseconds resume_timeout{0};  // of the session
  Breaks breaks;
  Client client;                                  // while serving; without descriptor and Hello
  std::chrono::system_clock::time_point started;  // of the session
  std::string ending;                             // reason given to end_session(); empty: not called
  // How the session ends because its client has migrated it: "migrated to ADDRESS"; empty: it has not.
  std::string migrated;
  std::string failure;
};

}  // namespace gpupool::server
