// The rdma transport's connection: TCP until upgrade(), then a stream over a queue pair (stream.h). Threads
// and errors as in protocol/transport/transport.h.
//
// The TCP connection stays open to show whether the peer is alive: when it ends, so does the connection,
// after everything that has arrived. If rdma is not possible, upgrade() stays with TCP
// (RdmaOptions::Use::if_possible) or fails.
//
// A connection that replaces the session's broken one (Options::session) has queue pairs in the session's
// protection domain, so that the keys in commands under way stay good. It never stays with TCP.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "protocol/transport/tcp/connection.h"
#include "rdma/connection_manager.h"
#include "rdma/resources.h"
#include "rdma/stream.h"
#include "rdma/upgrade_messages.h"

namespace gpupool::transport::rdma {

class RdmaConnection final : public tcp::TcpConnection {
 public:
  RdmaConnection(int socket, int wake, std::string peer, const Options& options);
  ~RdmaConnection() override;

  Result<size_t> send_some(std::span<const iovec> buffers) override;
  Result<size_t> receive_some(std::span<std::byte> buffer) override;
  Result<Ready> wait(bool for_receive, bool for_send, Deadline deadline) override;
  Patience patience() const override { return patience_; }
  bool wait_for_end() override;
  void close() override;
  void abandon() override;
  Result<void> upgrade(Side side, Deadline deadline) override;
  std::string carrier() const override { return carrier_; }
  DirectMemory* direct_memory() override { return resources_ ? resources_->transfers.get() : nullptr; }
  std::shared_ptr<SessionResources> session_resources() const override { return resources_; }
  void expect_replacement() override;

 private:
  // The steps of upgrade(). The text returned says why rdma is not possible; it is empty if it still is.
  std::string prepare(Side side);
  std::string prepare_direct(Side side);
  UpgradeOffer make_offer(const std::string& problem) const;
  // Makes transfers and the rest of the session use this connection.
  Result<void> begin(const UpgradeOffer& theirs);
  void forget_rdma();
  bool replaces() const { return session_ != nullptr && !bulk_; }
  Result<std::string> connect_queue_pairs(Side side, const UpgradeOffer& mine, const UpgradeOffer& theirs,
                                          Deadline deadline);
  Result<void> connect_by_manager(uint16_t port, const ConnectionManager::Token& token,
                                  std::span<const ConnectionManager::Pair> pairs, Deadline deadline);
  Result<std::string> exchange_results(const Result<void>& mine, Deadline deadline);
  Result<void> exchange(std::span<const std::byte> mine, std::span<std::byte> theirs, Deadline deadline);
  bool peer_ended();
  void break_now(const Error& why);
  void end_stream();
  Result<void> check_device();
  Error closed_error() const;
  Error name_peer(Error error) const;

  const RdmaOptions options_;
  const bool bulk_;
  const std::shared_ptr<Resources> session_;    // made by an earlier connection of the session, or null
  std::shared_ptr<Domain> domain_;              // shared by the session's connections
  std::unique_ptr<ConnectionManager> manager_;  // must outlive the queue pairs that it has connected
  std::unique_ptr<Stream> stream_;
  std::shared_ptr<DirectTransfers> transfers_;  // null for bulk connections
  DataChannel* direct_ = nullptr;               // in transfers_; used by upgrade() only
  std::shared_ptr<Resources> resources_;        // after upgrade()
  uint64_t failures_before_ = 0;                // Domain::failures()
  std::atomic<bool> upgraded_{false};
  // State of the peer according to the socket: it closed the connection in an orderly way, or was lost.
  enum class Peer : int { there, closed, lost };
  std::atomic<Peer> peer_{Peer::there};
  mutable std::mutex why_mutex_;
  std::string why_lost_;  // guarded by why_mutex_; empty: the socket's end
  std::string carrier_ = "tcp";
  Patience patience_;  // measured by upgrade()
};

}  // namespace gpupool::transport::rdma
