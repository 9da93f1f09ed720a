// The part of WorkerPool for memory and events that sessions of one tenant share
// (worker/sharing/exported_handles.h): passes one worker's question to another worker, and the answer back.
// poold keeps only the open question and the asking worker's end of the socket pair that carries the memory's
// descriptor. The owning worker checks the secret in the name.
#include <sys/socket.h>

#include "server/poold/workers/worker_pool.h"
#include "server/sockets/descriptor_closer.h"

namespace gpupool::server {

WorkerPool::Worker* WorkerPool::find_session_worker(uint64_t session) {
  for (const auto& [pid, worker] : workers_) {
    if (worker->state == Stage::serving && worker->session == session) return worker.get();
  }
  return nullptr;
}

bool WorkerPool::share_missing(Worker& asking, uint64_t request) {
  const auto sent = send_control(asking.control.native_handle(),
                                 {.kind = ControlKind::share_missing, .share_request = request}, "", -1);
  // The worker does not drain its socket. A worker that has ended is handled by reap().
  if (!sent && sent.error().code == ErrorCode::limit) return end_worker(asking, sent.error().message);
  return true;
}

bool WorkerPool::ask_for_share(Worker& asking, const ControlHeader& wanted) {
  forget_share(asking);
  Worker* const owner = find_session_worker(wanted.share_session);
  if (!owner || owner == &asking || owner->client.tenant != asking.client.tenant ||
      owner->client.lease != asking.client.lease) {
    return share_missing(asking, wanted.share_request);
  }
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    return share_missing(asking, wanted.share_request);
  asking.pending_share = {owner->session, wanted.share_request, ends[0]};
  const auto sent = send_control(owner->control.native_handle(),
                                 {.kind = ControlKind::share_wanted,
                                  .share_secret = wanted.share_secret,
                                  .share_session = owner->session,
                                  .share_requester = asking.session,
                                  .share_request = wanted.share_request},
                                 "", ends[1]);
  close_without_blocking(ends[1]);
  if (sent) return true;
  forget_share(asking);
  // The owner does not drain its socket: no reason to end either worker.
  return share_missing(asking, wanted.share_request);
}

bool WorkerPool::forward_share_answer(Worker& owner, const ControlHeader& header) {
  // The asking session may have given up or ended, or the answer may be made up: deliver an answer only to a
  // session that has this question open for this worker.
  Worker* const asking = find_session_worker(header.share_requester);
  if (asking && asking != &owner && asking->pending_share.session == owner.session &&
      asking->pending_share.request == header.share_request) {
    ControlHeader passed = header;
    passed.share_requester = asking->session;
    const bool memory = header.kind == ControlKind::share_found && header.share_is_memory != 0;
    const auto sent =
        send_control(asking->control.native_handle(), passed, "", memory ? asking->pending_share.end : -1);
    forget_share(*asking);
    if (!sent && sent.error().code == ErrorCode::limit) end_worker(*asking, sent.error().message);
  }
  return true;
}

void WorkerPool::forget_share(Worker& asking) {
  close_without_blocking(asking.pending_share.end);
  asking.pending_share = {};
}

void WorkerPool::fail_shares_of(const Worker& gone) {
  for (const auto& [pid, worker] : workers_) {
    if (worker->state != Stage::serving || worker->pending_share.session != gone.session || gone.session == 0)
      continue;
    share_missing(*worker, worker->pending_share.request);
    forget_share(*worker);
  }
}

}  // namespace gpupool::server
