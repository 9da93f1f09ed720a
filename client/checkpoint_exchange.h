// One question about a process's sessions and poold's answer (protocol/wire/checkpoint.h), on a connection of its own. The server is not trusted.
// One thread; blocks as long as signs of life come, each within `dead_peer_timeout`.
#pragma once
#include <chrono>
#include <vector>

#include "protocol/transport/transport.h"
#include "protocol/wire/checkpoint.h"

namespace gpupool::client {

// `sessions`: those that the answer tells of. ErrorCode::malformed: what came is no answer.
Result<wire::CheckpointAnswer> exchange_checkpoint(transport::Connection& connection, const wire::CheckpointQuestion& question,
                                                   std::chrono::milliseconds dead_peer_timeout, std::vector<wire::ProcessSession>* sessions);

}  // namespace gpupool::client
