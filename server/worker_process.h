// Starts one worker process with its control socket, and says how one ended.
#pragma once
#include <sys/types.h>

#include <functional>
#include <string>

#include "protocol/wire/result.h"
#include "server/confinement/worker_users.h"
#include "server/log/log.h"
#include "server/quota/session_page.h"
#include "server/quota/shared_page.h"

namespace gpupool::server {

struct WorkerProgram {
  std::string program;
  std::string device;  // path of the device library
  std::string user;       // that the worker becomes when poold is root, a name or a number; empty: it stays root
  bool own_user = false;  // no other process is that user's
  Sandbox sandbox = Sandbox::on;
  std::string cache_folders;  // the folder with all tenants' folders for the cache of NVIDIA's driver; empty: there are none
  uint64_t cache_bytes = 0;   // that the driver may keep in one
  std::string cgroup, cgroup_settings;  // enter_cgroup()'s; empty: none
  bool tls = false;  // there will be tls connections
  bool rdma = true;    // offered; how, its environment says (GPUPOOL_RDMA_...)
  log::Level log_level = log::Level::info;
};

struct StartedWorker {
  pid_t pid = -1;
  int control = -1;  // poold's end of the control socket, non-blocking; the caller's to close
  int output = -1;   // likewise the end of the socket that is its stdout, stderr and log
  std::shared_ptr<quota::SharedPage<quota::SessionPage>> page;
};

// The worker gets nothing but stdin from /dev/null, a socket to poold (as 1, 2 and the log), the control socket and its session's page.
Result<StartedWorker> start_worker(const WorkerProgram& program);
void kill_worker(pid_t pid);
bool worker_has_ended(pid_t pid, int* wait_status);

// How WorkerPool starts workers, kills them and learns of their ends. A test may have workers that are no processes.
struct WorkerProcesses {
  std::function<Result<StartedWorker>(const WorkerProgram&)> start = start_worker;
  std::function<void(pid_t)> kill = kill_worker;
  // True: it has ended, and `wait_status` is as waitpid() says. It is not asked about again.
  std::function<bool(pid_t, int* wait_status)> has_ended = worker_has_ended;
};

// Why a worker's session is over: "the client left", "killed by signal 11 (Segmentation fault)", "exit status
// 3".
std::string end_text(int wait_status);

}  // namespace gpupool::server
