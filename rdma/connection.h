// The rdma transport's connection: TCP until upgrade(), then a stream over a queue pair (stream.h). Threads
// and errors as in protocol/transport/transport.h.
//
// The TCP connection stays open to show whether the peer is alive: when it ends, so does the connection,
// after everything that has arrived. If rdma is not possible, upgrade() stays with TCP
// (RdmaOptions::Use::if_possible) or fails.
#pragma once
#include <atomic>
#include <memory>

#include "protocol/transport/tcp/connection.h"
#include "rdma/connection_manager.h"
#include "rdma/data_channel.h"
#include "rdma/stream.h"
#include "rdma/upgrade_messages.h"

namespace gpupool::transport::rdma {

class RdmaConnection final : public tcp::TcpConnection {
 public:
  RdmaConnection(int socket, int wake, std::string peer, const Options& options);
  ~RdmaConnection() override { close(); }

  Result<size_t> send_some(std::span<const iovec> buffers) override;
  Result<size_t> receive_some(std::span<std::byte> buffer) override;
  Result<Ready> wait(bool for_receive, bool for_send, Deadline deadline) override;
  Patience patience() const override { return patience_; }
  void close() override;
  Result<void> upgrade(Side side, Deadline deadline) override;
  std::string carrier() const override { return carrier_; }
  DirectMemory* direct_memory() override { return direct_.get(); }

 private:
  // The steps of upgrade(). The text returned says why rdma is not possible; it is empty if it still is.
  std::string prepare(Side side);
  Result<std::string> connect_queue_pairs(Side side, const UpgradeOffer& mine, const UpgradeOffer& theirs,
                                          Deadline deadline);
  Result<void> connect_by_manager(uint16_t port, const ConnectionManager::Token& token,
                                  std::span<const ConnectionManager::Pair> pairs, Deadline deadline);
  Result<std::string> exchange_results(const Result<void>& mine, Deadline deadline);
  Result<void> exchange(std::span<const std::byte> mine, std::span<std::byte> theirs, Deadline deadline);
  bool peer_ended();
  Error closed_error() const;
  Error name_peer(Error error) const;

  const RdmaOptions options_;
  const bool bulk_;
  std::shared_ptr<Domain> domain_;              // shared by the session's connections
  std::unique_ptr<ConnectionManager> manager_;  // must outlive the queue pairs that it has connected
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<DataChannel> direct_;
  std::atomic<bool> upgraded_{false};
  // State of the peer according to the socket: it closed the connection in an orderly way, or was lost.
  enum class Peer : int { there, closed, lost };
  std::atomic<Peer> peer_{Peer::there};
  std::string carrier_ = "tcp";
  Patience patience_;  // measured by upgrade()
};

}  // namespace gpupool::transport::rdma
