#include "server/poold/workers/peer_copies.h"

#include <algorithm>
#include <array>

#include "protocol/peers/proof.h"
#include "server/sockets/descriptor_closer.h"

namespace gpupool::server {

bool PeerCopies::wanted(Worker& asking, const packet::PeerWanted& wanted) {
  const auto answered = [this, session = asking.session, request = wanted.request](int descriptor) {
    answer(session, request, descriptor);
  };
  return connections_.open(asking.session, wanted.target, answered) ||
         workers_.end(asking, "too many pending connections to other servers");
}

void PeerCopies::answer(uint64_t session, uint64_t request, int descriptor) {
  if (Worker* const asking = workers_.serving(session)) {
    const packet::PeerAnswer body{.request = request};
    (void)workers_.check_sent(
        *asking, descriptor >= 0
                     ? send_control<ControlKind::peer_found>(asking->socket(), body, "", descriptor)
                     : send_control<ControlKind::peer_missing>(asking->socket(), body));
  }
  close_without_blocking(descriptor);  // the worker may hold it, too
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
