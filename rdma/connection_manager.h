// Connects queue pairs through the RDMA connection manager (librdmacm, loaded with dlopen()), which knows the
// fabric's paths: routes between subnets, service levels. Used by upgrade.cc, which has the sides exchange
// addresses instead where there is no manager. Fails with ErrorCode::unavailable.
//
// One thread. The fabric keeps the connections until this object is destroyed, which must be after the queue
// pairs.
#pragma once
#include <sys/socket.h>

#include <array>
#include <memory>
#include <vector>

#include "rdma/queue_pair.h"

struct rdma_cm_id;
struct rdma_cm_event;
struct rdma_event_channel;

namespace gpupool::transport::rdma {

class ConnectionManager {
 public:
  using Token = std::array<uint8_t, 16>;
  struct Pair {
    QueuePair* mine;
    Address theirs;
  };

  // Returns null if librdmacm or its device is missing.
  static std::unique_ptr<ConnectionManager> open();
  ~ConnectionManager();
  ConnectionManager(const ConnectionManager&) = delete;
  ConnectionManager& operator=(const ConnectionManager&) = delete;

  // Server: listens at the address of its end of the TCP connection. False: the address is not one of the
  // device's.
  bool listen(const sockaddr_storage& local, const Device& device);
  uint16_t port() const { return port_; }
  const Token& token() const { return token_; }  // to be presented by the client
  // Server: connects all pairs as the client requests them. `client` is the TCP socket, on which the client
  // sends something before it has requested all pairs only if it gives up; accept() then fails.
  Result<void> accept(std::span<const Pair> pairs, int client, const RdmaOptions& options, Deadline deadline);

  // Client: requests a connection for each pair, in order.
  Result<void> connect(const sockaddr_storage& local, sockaddr_storage server, uint16_t port,
                       const Token& token, std::span<const Pair> pairs, const RdmaOptions& options,
                       Deadline deadline);

 private:
  ConnectionManager() = default;
  Result<rdma_cm_id*> make_id();
  // Returns the next event, to be released with rdma_ack_cm_event(). Fails if `client` (unless -1) becomes
  // readable first.
  Result<rdma_cm_event*> next(Deadline deadline, int client = -1);
  Result<void> await(rdma_cm_id* id, int kind, Deadline deadline);
  Result<void> connect_one(rdma_cm_id* id, const Pair& pair, uint32_t pair_index, const Token& token,
                           const RdmaOptions& options, Deadline deadline);
  Result<void> accept_one(rdma_cm_id* id, const Pair& pair, const RdmaOptions& options);

  rdma_event_channel* channel_ = nullptr;
  std::vector<rdma_cm_id*> ids_;
  uint16_t port_ = 0;
  Token token_{};
};

}  // namespace gpupool::transport::rdma
