// Starts worker processes with their sockets and session page, and describes how one ended. WorkerPool uses
// it on poold's thread, through WorkerProcesses.
#pragma once
#include <sys/types.h>

#include <functional>
#include <string>

#include "common/log/log.h"
#include "common/result.h"
#include "server/confinement/worker_users.h"
#include "server/quota/session_page.h"
#include "server/quota/shared_page.h"

namespace gpupool::server {

struct WorkerProgram {
  std::string program;
  // What is executed in place of `program`: the same file as a descriptor of poold, so that workers stay of
  // poold's version when another one has been installed. Empty: `program`.
  std::string executed;
  std::string device;     // path of the device library
  std::string user;       // name or number for the worker if poold is root; empty: it stays root
  bool own_user = false;  // no other process runs as that user
  Sandbox sandbox = Sandbox::on;
  std::string cache_folders;  // root of all tenants' folders for the NVIDIA driver's cache; empty: none
  uint64_t cache_bytes = 0;   // limit for the driver's cache in one folder
  std::string cgroup, cgroup_settings;  // for enter_cgroup(); empty: none
  bool idle_context = false;            // make a context on the first GPU before there is a session
  bool tls = false;                     // tls connections may come
  bool rdma = true;  // RDMA is offered; the environment has its settings (GPUPOOL_RDMA_...)
  log::Level log_level = log::Level::info;
};

struct StartedWorker {
  pid_t pid = -1;
  int control = -1;  // poold's end of the control socket, non-blocking; the caller owns it
  int output = -1;   // poold's end of the socket for stdout, stderr and log; likewise
  std::shared_ptr<quota::SharedPage<quota::SessionPage>> page;
};

// The worker inherits stdin from /dev/null, a socket to poold (stdout, stderr and log), the control socket
// and its session page, and nothing else.
Result<StartedWorker> start_worker(const WorkerProgram& program);
void kill_worker(pid_t pid);
bool worker_has_ended(pid_t pid, int* wait_status);

// How WorkerPool starts, kills and reaps workers. Tests substitute workers that are no processes.
struct WorkerProcesses {
  std::function<Result<StartedWorker>(const WorkerProgram&)> start = start_worker;
  std::function<void(pid_t)> kill = kill_worker;
  // Returns true if the worker has ended, with waitpid()'s `wait_status`. WorkerPool then does not call it
  // again for that worker.
  std::function<bool(pid_t, int* wait_status)> has_ended = worker_has_ended;
};

// Describes how a worker ended: "the client disconnected", "killed by signal 11 (Segmentation fault)", "exit
// status 3".
std::string end_text(int wait_status);

}  // namespace gpupool::server
