#include "server/poold/workers/shares.h"

#include <sys/socket.h>

#include <vector>

#include "server/sockets/descriptor_closer.h"

namespace gpupool::server {

Shares::~Shares() {
  for (const auto& [asking, question] : questions_) close_without_blocking(question.end);
}

bool Shares::answer_missing(Worker& asking, uint64_t request) {
  return workers_.check_sent(asking,
                             send_control<ControlKind::share_missing>(asking.socket(), {.request = request}));
}

bool Shares::ask(Worker& asking, const packet::ShareWanted& wanted) {
  forget(asking.session);
  Worker* const owner = workers_.serving(wanted.session);
  if (!owner || owner == &asking || owner->client.tenant != asking.client.tenant ||
      owner->client.lease != asking.client.lease) {
    return answer_missing(asking, wanted.request);
  }
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    return answer_missing(asking, wanted.request);
  questions_[asking.session] = {owner->session, wanted.request, ends[0]};
  const auto sent = send_control<ControlKind::share_wanted>(owner->socket(),
                                                            {.secret = wanted.secret,
                                                             .session = owner->session,
                                                             .requester = asking.session,
                                                             .request = wanted.request},
                                                            "", ends[1]);
  close_without_blocking(ends[1]);
  if (sent) return true;
  forget(asking.session);
  // The owner does not drain its socket: no reason to end either worker.
  return answer_missing(asking, wanted.request);
}

void Shares::close_questions() {
  while (!questions_.empty()) {
    const auto [asking, question] = *questions_.begin();
    forget(asking);
    if (Worker* const worker = workers_.serving(asking)) answer_missing(*worker, question.request);
  }
}

// The asking session may have given up or ended, or the answer may be made up: finds only a session that has
// this question open for this worker.
Worker* Shares::find_asking(const Worker& owner, uint64_t requester, uint64_t request) const {
  Worker* const asking = workers_.serving(requester);
  const auto question = questions_.find(requester);
  const bool open = asking && asking != &owner && question != questions_.end() &&
                    question->second.owner == owner.session && question->second.request == request;
  return open ? asking : nullptr;
}

bool Shares::found(Worker& owner, const packet::ShareFound& found) {
  Worker* const asking = find_asking(owner, found.requester, found.request);
  if (!asking) return true;
  const int end = found.is_memory != 0 ? questions_.at(asking->session).end : -1;
  const auto sent = send_control<ControlKind::share_found>(asking->socket(), found, "", end);
  forget(asking->session);
  (void)workers_.check_sent(*asking, sent);
  return true;
}

bool Shares::missing(Worker& owner, const packet::ShareMissing& missing) {
  Worker* const asking = find_asking(owner, missing.requester, missing.request);
  if (!asking) return true;
  forget(asking->session);
  answer_missing(*asking, missing.request);
  return true;
}

void Shares::forget(uint64_t asking) {
  const auto question = questions_.find(asking);
  if (question == questions_.end()) return;
  close_without_blocking(question->second.end);
  questions_.erase(question);
}

void Shares::session_ended(const Worker& gone) {
  forget(gone.session);
  if (gone.session == 0) return;
  std::vector<std::pair<uint64_t, uint64_t>> unanswered;  // asking session, request
  for (const auto& [asking, question] : questions_) {
    if (question.owner == gone.session) unanswered.emplace_back(asking, question.request);
  }
  for (const auto& [asking, request] : unanswered) {
    if (Worker* const worker = workers_.serving(asking)) answer_missing(*worker, request);
    forget(asking);
  }
}

}  // namespace gpupool::server
