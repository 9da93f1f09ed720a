// The pool's worker processes by PID, and what every part of the pool does with one: find it by its session,
// and end it. WorkerPool adds and removes workers. poold's thread.
#pragma once
#include <algorithm>
#include <map>
#include <memory>
#include <string>

#include "common/result.h"
#include "server/poold/workers/worker.h"

namespace gpupool::server {

class Workers {
 public:
  using ByPid = std::map<pid_t, std::shared_ptr<Worker>>;

  // `processes` must outlive this object.
  explicit Workers(const WorkerProcesses& processes) : processes_(processes) {}
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  ByPid& all() { return workers_; }
  const ByPid& all() const { return workers_; }
  // Returns the worker that serves the session, or null.
  Worker* serving(uint64_t session) const;
  // Calls `visit` with each worker that serves a session.
  template <class F>
  void for_each_serving(F&& visit) const {
    for (const auto& [pid, worker] : workers_) {
      if (worker->state == Worker::Stage::serving) visit(*worker);
    }
  }
  unsigned count(Worker::Stage stage) const;
  // Kills a worker that breaks the control protocol. Returns false: nothing more may be read from it.
  bool end(Worker& worker, const std::string& why);
  // Ends a worker that does not drain its socket, by the result of sending to it; returns false then. A
  // worker that has exited is left to WorkerPool, which gets SIGCHLD.
  bool check_sent(Worker& worker, const Result<void>& sent);

 private:
  const WorkerProcesses& processes_;
  ByPid workers_;
};

}  // namespace gpupool::server
