#include "server/poold/workers/workers.h"

#include <sys/socket.h>

#include "common/log/log.h"
#include "server/sockets/descriptor_closer.h"

namespace gpupool::server {

// Logs worker_gone once all descriptors of the worker are closed. Tests count poold's descriptors after that
// line.
Worker::~Worker() {
  close_control();
  output->finish();
  client.process.reset();
  page.reset();
  after_closing([pid = pid] { log::debug("worker_gone", {{"worker", pid}}); });
}

void Worker::close_control() {
  if (!control.is_open()) return;
  ::shutdown(control.native_handle(), SHUT_RDWR);
  close_without_blocking(control.release());
}

Worker* Workers::serving(uint64_t session) const {
  for (const auto& [pid, worker] : workers_) {
    if (worker->state == Worker::Stage::serving && worker->session == session) return worker.get();
  }
  return nullptr;
}

unsigned Workers::count(Worker::Stage stage) const {
  return static_cast<unsigned>(std::count_if(
      workers_.begin(), workers_.end(), [stage](const auto& entry) { return entry.second->state == stage; }));
}

bool Workers::end(Worker& worker, const std::string& why) {
  worker.failure = why;
  if (worker.ended) {  // its PID may belong to another process by now
    log::warning("worker_sent_nonsense",
                 {{"worker", worker.pid}, {"session", worker.session}, {"reason", why}});
    return false;
  }
  log::error("worker_ended_by_poold", {{"worker", worker.pid}, {"session", worker.session}, {"reason", why}});
  processes_.kill(worker.pid);
  return false;
}

bool Workers::check_sent(Worker& worker, const Result<void>& sent) {
  return sent || sent.error().code != ErrorCode::limit || end(worker, sent.error().message);
}

}  // namespace gpupool::server
