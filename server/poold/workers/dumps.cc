#include "server/poold/workers/dumps.h"

#include <utility>

namespace gpupool::server {
namespace {

constexpr std::chrono::milliseconds kAnswerTime{2'000};
constexpr const char* kEnded = "the worker has exited";

}  // namespace

Result<void> Dumps::ask(uint64_t session, Dumped answered) {
  Worker* const worker = workers_.serving(session);
  if (!worker) return Error{ErrorCode::unavailable, "there is no session " + std::to_string(session)};
  std::shared_ptr<Dump>& dump = dumps_[session];
  if (!dump) dump = std::make_shared<Dump>(context_);
  dump->waiting.push_back(std::move(answered));
  if (dump->waiting.size() > 1) return {};
  if (dump->question == 0) {
    const auto sent = send_control<ControlKind::dump_wanted>(worker->socket(), {.question = next_question_});
    if (!sent) {  // closed: the worker has ended, but SIGCHLD has not arrived
      const bool ended = sent.error().code == ErrorCode::closed;
      answer(*dump, *worker,
             Error{ErrorCode::unavailable, ended ? kEnded : "the worker does not read its control socket"});
      return {};
    }
    dump->question = next_question_++;
  }
  dump->deadline.start(kAnswerTime, [this, session, dump] {
    const Worker* const worker = workers_.serving(session);
    if (!worker) return;
    answer(*dump, *worker,
           Error{ErrorCode::unavailable,
                 "the worker did not answer within " + std::to_string(kAnswerTime.count() / 1000) + " s"});
  });
  return {};
}

// An answer that comes after its callers have timed out goes to later callers, or is dropped.
bool Dumps::answered(Worker& worker, const ControlMessage& message) {
  const auto asked = dumps_.find(worker.session);
  const std::shared_ptr<Dump> dump = asked == dumps_.end() ? nullptr : asked->second;
  if (!dump || dump->question == 0 || message.body<packet::DumpQuestion>().question != dump->question) {
    return workers_.end(worker, "unexpected dump message");
  }
  dump->question = 0;
  dump->deadline.stop();
  answer(*dump, worker, message.payload);
  return true;
}

void Dumps::session_ended(const Worker& worker) {
  const auto ended = dumps_.extract(worker.session);
  if (ended.empty()) return;
  ended.mapped()->deadline.stop();
  answer(*ended.mapped(), worker, Error{ErrorCode::unavailable, kEnded});
}

void Dumps::save(uint64_t session, upgrade::Session& to) const {
  if (const auto asked = dumps_.find(session); asked != dumps_.end())
    to.set_dump_question(asked->second->question);
}

void Dumps::restore(uint64_t session, const upgrade::Session& from) {
  if (from.dump_question() == 0) return;
  std::shared_ptr<Dump>& dump = dumps_[session];
  dump = std::make_shared<Dump>(context_);
  dump->question = from.dump_question();
}

void Dumps::stop() {
  for (auto& [session, dump] : dumps_) dump->deadline.stop();
}

void Dumps::answer(Dump& dump, const Worker& worker, const Result<std::string>& payload) {
  for (const Dumped& answered : std::exchange(dump.waiting, {})) answered(view_of_(worker), payload);
}

}  // namespace gpupool::server
