// Sends poold one question about a process's sessions and receives the answer (protocol/wire/checkpoint.h) on
// a dedicated connection. The server is not trusted. Used by CheckpointedProcess. One thread; blocks while
// poold sends keep-alive preambles, each within `dead_peer_timeout`.
#pragma once
#include <chrono>
#include <vector>

#include "protocol/transport/transport.h"
#include "protocol/wire/checkpoint.h"

namespace gpupool::client {

// `sessions` receives those in the answer. ErrorCode::malformed: the answer violates the protocol.
Result<wire::CheckpointAnswer> exchange_checkpoint(transport::Connection& connection,
                                                   const wire::CheckpointQuestion& question,
                                                   std::chrono::milliseconds dead_peer_timeout,
                                                   std::vector<wire::ProcessSession>* sessions);

}  // namespace gpupool::client
