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
  const auto sent =
      send_control<ControlKind::share_missing>(asking.control.native_handle(), {.request = request});
  // The worker does not drain its socket. A worker that has ended is handled by reap().
  if (!sent && sent.error().code == ErrorCode::limit) return end_worker(asking, sent.error().message);
  return true;
}

bool WorkerPool::ask_for_share(Worker& asking, const packet::ShareWanted& wanted) {
  forget_share(asking);
  Worker* const owner = find_session_worker(wanted.session);
  if (!owner || owner == &asking || owner->client.tenant != asking.client.tenant ||
      owner->client.lease != asking.client.lease) {
    return share_missing(asking, wanted.request);
  }
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    return share_missing(asking, wanted.request);
  asking.pending_share = {owner->session, wanted.request, ends[0]};
  const auto sent = send_control<ControlKind::share_wanted>(owner->control.native_handle(),
                                                            {.secret = wanted.secret,
                                                             .session = owner->session,
                                                             .requester = asking.session,
                                                             .request = wanted.request},
                                                            "", ends[1]);
  close_without_blocking(ends[1]);
  if (sent) return true;
  forget_share(asking);
  // The owner does not drain its socket: no reason to end either worker.
  return share_missing(asking, wanted.request);
}

// The asking session may have given up or ended, or the answer may be made up: finds only a session that has
// this question open for this worker.
WorkerPool::Worker* WorkerPool::find_asking(const Worker& owner, uint64_t requester, uint64_t request) {
  Worker* const asking = find_session_worker(requester);
  const bool open = asking && asking != &owner && asking->pending_share.session == owner.session &&
                    asking->pending_share.request == request;
  return open ? asking : nullptr;
}

bool WorkerPool::forward_share(Worker& owner, const packet::ShareFound& found) {
  Worker* const asking = find_asking(owner, found.requester, found.request);
  if (!asking) return true;
  const int end = found.is_memory != 0 ? asking->pending_share.end : -1;
  const auto sent = send_control<ControlKind::share_found>(asking->control.native_handle(), found, "", end);
  forget_share(*asking);
  if (!sent && sent.error().code == ErrorCode::limit) end_worker(*asking, sent.error().message);
  return true;
}

bool WorkerPool::forward_share_missing(Worker& owner, const packet::ShareMissing& missing) {
  Worker* const asking = find_asking(owner, missing.requester, missing.request);
  if (!asking) return true;
  forget_share(*asking);
  share_missing(*asking, missing.request);
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
