// The part of WorkerPool for copies between servers: opens connections to other servers for workers
// (peer_connections.h), and finds the session that another server's hello names.
#include <algorithm>
#include <span>

#include "protocol/peers/proof.h"
#include "server/poold/workers/worker_pool.h"
#include "server/sockets/descriptor_closer.h"

namespace gpupool::server {

bool WorkerPool::open_peer(Worker& asking, const packet::PeerWanted& wanted) {
  const auto answer = [this, session = asking.session, request = wanted.request](int descriptor) {
    answer_peer(session, request, descriptor);
  };
  return peers_.open(asking.session, wanted.target, answer) ||
         end_worker(asking, "too many pending connections to other servers");
}

void WorkerPool::answer_peer(uint64_t session, uint64_t request, int descriptor) {
  if (Worker* const asking = find_session_worker(session)) {
    const int socket = asking->control.native_handle();
    const packet::PeerAnswer body{.request = request};
    const auto sent = descriptor >= 0 ? send_control<ControlKind::peer_found>(socket, body, "", descriptor)
                                      : send_control<ControlKind::peer_missing>(socket, body);
    // The worker does not drain its socket. A worker that has ended is handled by reap().
    if (!sent && sent.error().code == ErrorCode::limit) end_worker(*asking, sent.error().message);
  }
  close_without_blocking(descriptor);  // the worker may hold it, too
}

// Computes one hash per session.
std::optional<PeerCopy> WorkerPool::find_peer_copy(const wire::PeerHello& hello) const {
  for (const auto& [pid, worker] : workers_) {
    std::array<uint8_t, 16> id{};
    if (worker->state != Stage::serving || worker->session_id.size() != id.size()) continue;
    std::copy(worker->session_id.begin(), worker->session_id.end(), id.begin());
    uint64_t copy = 0;
    if (peers::names(hello, id, &copy))
      return PeerCopy{worker->session, copy, peers::copy_key(worker->bulk_token, copy)};
  }
  return std::nullopt;
}

}  // namespace gpupool::server
