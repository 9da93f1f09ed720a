// What sessions of one tenant share (worker/offers.h): one worker's question goes to another, and the answer back. poold keeps
// nothing but who has asked whom; the secret in the name is the other worker's to check.
#include <unistd.h>

#include "server/worker_pool.h"

namespace gpupool::server {

WorkerPool::Worker* WorkerPool::serving(uint64_t session) {
  for (const auto& [pid, worker] : workers_) {
    if (worker->state == Stage::serving && worker->session == session) return worker.get();
  }
  return nullptr;
}

bool WorkerPool::share_missing(Worker& asking, uint64_t request) {
  const auto sent = send_control(asking.control.native_handle(), {.kind = ControlKind::share_missing, .share_request = request}, "", -1);
  // It asks and does not listen; one that has ended is no such case.
  if (!sent && sent.error().code == ErrorCode::limit) return end_worker(asking, sent.error().message);
  return true;
}

bool WorkerPool::ask_for_share(Worker& asking, const ControlHeader& wanted) {
  asking.share_asked = {};
  Worker* const owner = serving(wanted.share_session);
  if (!owner || owner == &asking || owner->client.tenant != asking.client.tenant || owner->client.lease != asking.client.lease) {
    return share_missing(asking, wanted.share_request);
  }
  const auto sent = send_control(owner->control.native_handle(),
                                 {.kind = ControlKind::share_wanted,
                                  .share_secret = wanted.share_secret,
                                  .share_session = owner->session,
                                  .share_asker = asking.session,
                                  .share_request = wanted.share_request},
                                 "", -1);
  if (!sent) return share_missing(asking, wanted.share_request);  // it does not listen: no reason to end either
  asking.share_asked = {owner->session, wanted.share_request};
  return true;
}

bool WorkerPool::give_share(Worker& owner, const ControlMessage& answer) {
  const ControlHeader& header = answer.header;
  // Who has asked may have given up, or ended, or never was: nobody gets what they have not asked this worker for.
  Worker* const asking = serving(header.share_asker);
  if (asking && asking != &owner && asking->share_asked == Worker::ShareAsked{owner.session, header.share_request}) {
    asking->share_asked = {};
    ControlHeader passed = header;
    passed.share_asker = asking->session;
    const auto sent = send_control(asking->control.native_handle(), passed, "", answer.descriptor);
    if (!sent && sent.error().code == ErrorCode::limit) end_worker(*asking, sent.error().message);
  }
  if (answer.descriptor >= 0) ::close(answer.descriptor);
  return true;
}

void WorkerPool::answer_for(const Worker& gone) {
  for (const auto& [pid, worker] : workers_) {
    if (worker->state != Stage::serving || worker->share_asked.session != gone.session || gone.session == 0) continue;
    share_missing(*worker, worker->share_asked.request);
    worker->share_asked = {};
  }
}

}  // namespace gpupool::server
