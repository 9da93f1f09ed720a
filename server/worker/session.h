// One client's session inside its own worker process.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>

#include "protocol/transport/transport.h"

namespace gpupool::worker {

class DeviceLibrary;

struct SessionStart {
  std::unique_ptr<transport::Connection> connection;  // HelloReply has been sent
  DeviceLibrary* device = nullptr;                    // initialised; outlives the session
  uint64_t range_base = 0;                            // device addresses reserved for the session, 0: none
  uint64_t range_size = 0;
  uint64_t session_number = 0;                        // for logs; unique within poold's life
  std::chrono::milliseconds dead_peer_timeout{};
  int log_descriptor = -1;                            // what server/log writes to; never 1 or 2, which may be redirected
};

// Serves the session to its end. Returns the worker's exit status: 0 when the client said goodbye or closed the
// connection, 1 when the session was lost or broke the protocol.
int run_session(SessionStart start);

}  // namespace gpupool::worker
