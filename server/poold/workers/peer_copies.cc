#include "server/poold/workers/peer_copies.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "protocol/peers/proof.h"
#include "server/handover/peer_answer.h"
#include "server/sockets/descriptor_closer.h"
#include "server/sockets/tcp_pair.h"

namespace gpupool::server {

bool PeerCopies::wanted(Worker& asking, const packet::PeerWanted& wanted) {
  const auto answered = [this, session = asking.session, request = wanted.request](
                            const PeerConnections::Opened& opened) { answer(session, request, opened); };
  // An rdma connection begins between two cards.
  Worker* const here = wanted.target.rdma == 0 ? receiver_here(asking, wanted.target) : nullptr;
  if (here && connections_.may_begin(asking.session)) {
    if (const auto pair = make_tcp_pair()) {
      connect_here(*here, wanted, *pair, answered);
      return true;
    }
  }
  return connections_.open(asking.session, wanted.target, answered) ||
         workers_.end(asking, "too many pending connections to other servers");
}

// The worker whose session receives the copy, if it is one of this poold's and the target has the copy's key.
Worker* PeerCopies::receiver_here(const Worker& asking, const wire::PeerTarget& target) const {
  Worker* found = nullptr;
  const std::string_view id(reinterpret_cast<const char*>(target.session_id.data()),
                            target.session_id.size());
  for (const auto& [pid, worker] : workers_.all()) {
    if (worker->state == Worker::Stage::serving && worker->session_id == id &&
        worker->session != asking.session &&
        peers::same(peers::copy_key(worker->bulk_token, target.copy), target.key))
      found = worker.get();
  }
  return found;
}

// A connection between two workers, which needs neither a network nor --peers, nor encryption.
void PeerCopies::connect_here(Worker& receiver, const packet::PeerWanted& wanted,
                              const std::array<int, 2>& pair, const PeerConnections::Answer& answered) {
  packet::Bulk bulk{.copy = wanted.target.copy, .from_peer = 1};
  std::string_view("tcp").copy(bulk.transport.data(), bulk.transport.size() - 1);
  const auto sent = send_control<ControlKind::bulk>(receiver.socket(), bulk, "", pair[1]);
  close_without_blocking(pair[1]);
  if (sent) {
    answered({.descriptor = pair[0], .protection = {.within_host = true}});
  } else {
    ::close(pair[0]);
    answered({});
  }
}

void PeerCopies::answer(uint64_t session, uint64_t request, const PeerConnections::Opened& opened) {
  if (Worker* const asking = workers_.serving(session)) {
    const packet::PeerAnswer body{.request = request};
    (void)workers_.check_sent(
        *asking, opened.descriptor >= 0
                     ? send_control<ControlKind::peer_found>(asking->socket(), body,
                                                             to_payload(opened.protection), opened.descriptor)
                     : send_control<ControlKind::peer_missing>(asking->socket(), body));
  }
  close_without_blocking(opened.descriptor);  // the worker may hold it, too
}

std::optional<PeerCopy> PeerCopies::find(const wire::PeerHello& hello) const {
  std::optional<PeerCopy> found;
  workers_.for_each_serving([&](const Worker& worker) {
    std::array<uint8_t, 16> id{};
    if (found || worker.session_id.size() != id.size()) return;
    std::copy(worker.session_id.begin(), worker.session_id.end(), id.begin());
    uint64_t copy = 0;
    if (peers::names(hello, id, &copy))
      found = PeerCopy{worker.session, copy, peers::copy_key(worker.bulk_token, copy)};
  });
  return found;
}

}  // namespace gpupool::server
