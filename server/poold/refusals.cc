#include "server/poold/refusals.h"

#include <utility>

namespace gpupool::server {

void Refusals::refuse(Client client, const Refusal& refusal) {
  const bool answered = denials_.take(client.admission_peer);
  if (answered && all_denials_.take())
    audit_.denied(client, refusal);
  else
    unaudited_.note();
  if (answered || refusal.status != control::HelloReply::DENIED)
    return acceptor_.refuse(std::move(client), refusal);
  acceptor_.drop(std::move(client));
}

}  // namespace gpupool::server
