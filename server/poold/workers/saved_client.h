// Clients in upgrade::State (server/poold/upgrade/state.proto). poold's thread.
#pragma once
#include "server/poold/upgrade/state.pb.h"
#include "server/poold/workers/client.h"

namespace gpupool::server {

// What poold keeps of a client that a worker serves.
void save(const Client& from, upgrade::Client& to);
// Takes ownership of the descriptor of the client's process.
Client restored(const upgrade::Client& from);

}  // namespace gpupool::server
