// Connects queue pairs with the RDMA connection manager (librdmacm, loaded when wanted), which knows the fabric's paths:
// routes between subnets, service levels. Where it is not to be had, upgrade.cc lets the sides tell each other their addresses.
//
// One thread. What it has connected stays known to the fabric until it is destroyed, after the queue pairs.
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

  // Empty where librdmacm or its device is missing.
  static std::unique_ptr<ConnectionManager> open();
  ~ConnectionManager();
  ConnectionManager(const ConnectionManager&) = delete;
  ConnectionManager& operator=(const ConnectionManager&) = delete;

  // The server's side, at its end of a TCP connection. False: this address is not the device's.
  bool listen(const sockaddr_storage& local, const Device& device);
  uint16_t port() const { return port_; }
  const Token& token() const { return token_; }  // what its client shows
  // `client`: its socket, on which it says something before all pairs have asked only if it gives up.
  Result<void> accept(std::span<const Pair> pairs, int client, const RdmaOptions& options, Deadline deadline);

  // The client's.
  Result<void> connect(const sockaddr_storage& local, sockaddr_storage server, uint16_t port, const Token& token,
                       std::span<const Pair> pairs, const RdmaOptions& options, Deadline deadline);

 private:
  ConnectionManager() = default;
  Result<rdma_cm_id*> make_id();
  // The next event; destroyed by acknowledging it. An error when `client` (if not -1) becomes readable before.
  Result<rdma_cm_event*> next(Deadline deadline, int client = -1);
  Result<void> await(rdma_cm_id* id, int kind, Deadline deadline);
  Result<void> connect_one(rdma_cm_id* id, const Pair& pair, uint32_t place, const Token& token, const RdmaOptions& options,
                           Deadline deadline);
  Result<void> accept_one(rdma_cm_id* id, const Pair& pair, const RdmaOptions& options);

  rdma_event_channel* channel_ = nullptr;
  std::vector<rdma_cm_id*> ids_;
  uint16_t port_ = 0;
  Token token_{};
};

}  // namespace gpupool::transport::rdma
