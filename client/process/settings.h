// The client's settings from the environment: how this process uses its servers. An invalid value is logged
// and ignored. Read once per call of settings_from_environment(); plain data afterwards.
#pragma once
#include <chrono>
#include <optional>
#include <string>

#include "protocol/compression/governor.h"
#include "protocol/transport/transport.h"

namespace gpupool::client {

// GPUPOOL_TRANSPORT: the transport for sessions with servers of tcp:// addresses. rdma:// and shm://
// addresses name theirs.
enum class Carrier {
  automatic,  // shared memory on this host, else RDMA where both sides have it, else TCP
  tcp,
  rdma,
};

struct Settings {
  std::string tenant;  // GPUPOOL_TENANT; empty: of the token or certificate
  std::string token;   // GPUPOOL_TOKEN_FILE or GPUPOOL_TOKEN; never logged
  std::string server;  // address, one of those in GPUPOOL
  unsigned index = 0;  // index in GPUPOOL
  Carrier carrier = Carrier::automatic;
  transport::TlsOptions tls;    // GPUPOOL_TLS_CA, GPUPOOL_TLS_CERT, GPUPOOL_TLS_KEY
  transport::RdmaOptions rdma;  // GPUPOOL_RDMA_...; Session sets `use`
  bool shared_memory = true;    // GPUPOOL_SHM=0: not with a server on this host
  // GPUPOOL_BULK_CONNECTIONS, the most to open; not set: depends on the carrier.
  std::optional<unsigned> bulk_connections;
  compression::Policy compression = compression::Policy::automatic;  // GPUPOOL_COMPRESSION
  bool every_call_waits = false;                                     // GPUPOOL_SYNC=1
  bool launch_blocking = false;  // CUDA_LAUNCH_BLOCKING=1: a launch returns when its kernel is done
  std::chrono::milliseconds connect_timeout{5000};     // GPUPOOL_CONNECT_TIMEOUT_MS
  std::chrono::milliseconds dead_peer_timeout{15000};  // GPUPOOL_DEAD_PEER_TIMEOUT_MS
};

// Returns the current token from GPUPOOL_TOKEN_FILE or GPUPOOL_TOKEN, for processes that outlive a token.
std::string token_from_environment();

// All settings except `server` and `index`.
Settings settings_from_environment();

}  // namespace gpupool::client
