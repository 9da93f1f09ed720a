// What the environment says of how this process uses its servers. A wrong value is complained about, and counts as not set.
#pragma once
#include <chrono>
#include <optional>
#include <string>

#include "protocol/compression/governor.h"
#include "protocol/transport/transport.h"

namespace gpupool::client {

// GPUPOOL_TRANSPORT: what carries a session with a server of a tcp:// address. rdma:// and shm:// addresses say it themselves.
enum class Carrier {
  automatic,  // shared memory on this host; rdma where both sides can; else tcp
  tcp,
  rdma,
};

struct Settings {
  std::string tenant;                                     // GPUPOOL_TENANT; empty: the token's, the certificate's
  std::string token;                                      // of the file in GPUPOOL_TOKEN_FILE, else GPUPOOL_TOKEN; never logged
  std::string server;                                     // of those in GPUPOOL
  unsigned index = 0;                                     // its place there
  Carrier carrier = Carrier::automatic;
  transport::TlsOptions tls;                              // GPUPOOL_TLS_CA, GPUPOOL_TLS_CERT, GPUPOOL_TLS_KEY
  transport::RdmaOptions rdma;                            // GPUPOOL_RDMA_...; `use` is the session's to choose
  bool shared_memory = true;                              // GPUPOOL_SHM=0: no shared memory with a server on this host
  std::optional<unsigned> bulk_connections;               // GPUPOOL_BULK_CONNECTIONS, at most; not set: what suits the carrier
  compression::Policy compression = compression::Policy::automatic;  // GPUPOOL_COMPRESSION
  bool every_call_waits = false;                          // GPUPOOL_SYNC=1
  bool launch_blocking = false;                           // CUDA_LAUNCH_BLOCKING=1: a launch returns when its kernel is done
  std::chrono::milliseconds connect_timeout{5000};        // GPUPOOL_CONNECT_TIMEOUT_MS
  std::chrono::milliseconds dead_peer_timeout{15000};     // GPUPOOL_DEAD_PEER_TIMEOUT_MS
};

// The tenant's token as it is now, of GPUPOOL_TOKEN_FILE or GPUPOOL_TOKEN: for those who live longer than a token.
std::string token_from_environment();

// All but `server` and `index`.
Settings settings_from_environment();

}  // namespace gpupool::client
