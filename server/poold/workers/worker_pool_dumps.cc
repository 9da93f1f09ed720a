// The part of WorkerPool that asks workers' control threads what their sessions are doing (worker/dump.h). A
// worker has at most one open question, shared by all callers, so a worker that does not read is sent no
// more.
#include <utility>

#include "server/poold/workers/worker_pool.h"

namespace gpupool::server {
namespace {

constexpr std::chrono::milliseconds kAnswerTime{2'000};
constexpr const char* kEnded = "the worker has exited";

}  // namespace

Result<void> WorkerPool::dump(uint64_t session, Dumped answered) {
  for (const auto& [pid, worker] : workers_) {
    if (worker->state != Stage::serving || worker->session != session) continue;
    ask_for_dump(worker, std::move(answered));
    return {};
  }
  return Error{ErrorCode::unavailable, "there is no session " + std::to_string(session)};
}

void WorkerPool::ask_for_dump(const std::shared_ptr<Worker>& worker, Dumped answered) {
  auto& dump = worker->dump;
  dump.waiting.push_back(std::move(answered));
  if (dump.waiting.size() > 1) return;
  if (dump.question == 0) {
    const auto sent =
        send_control<ControlKind::dump_wanted>(worker->control.native_handle(), {.question = next_question_});
    if (!sent) {  // closed: the worker has ended, but SIGCHLD has not arrived
      const bool ended = sent.error().code == ErrorCode::closed;
      return answer_dump(*worker, Error{ErrorCode::unavailable,
                                        ended ? kEnded : "the worker does not read its control socket"});
    }
    dump.question = next_question_++;
  }
  dump.deadline.start(kAnswerTime, [this, worker] {
    answer_dump(*worker,
                Error{ErrorCode::unavailable, "the worker did not answer within " +
                                                  std::to_string(kAnswerTime.count() / 1000) + " s"});
  });
}

// An answer that comes after its callers have timed out goes to later callers, or is dropped.
bool WorkerPool::take_dump(Worker& worker, const ControlMessage& message) {
  if (worker.dump.question == 0 || message.body<packet::DumpQuestion>().question != worker.dump.question) {
    return end_worker(worker, "unexpected dump message");
  }
  worker.dump.question = 0;
  worker.dump.deadline.stop();
  answer_dump(worker, message.payload);
  return true;
}

void WorkerPool::end_dump(Worker& worker) {
  worker.dump.deadline.stop();
  answer_dump(worker, Error{ErrorCode::unavailable, kEnded});
}

void WorkerPool::answer_dump(Worker& worker, const Result<std::string>& payload) {
  for (const Dumped& answered : std::exchange(worker.dump.waiting, {})) answered(view_of(worker), payload);
}

}  // namespace gpupool::server
