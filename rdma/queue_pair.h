// A reliable queue pair with its completion queue, and the way from nothing to ready.
//
// Errors of connect() leave it unusable. Posting and polling: see who owns it (stream.h, data_channel.h).
#pragma once
#include <functional>
#include <memory>

#include "rdma/address.h"
#include "rdma/domain.h"

namespace gpupool::transport::rdma {

class QueuePair {
 public:
  struct Size {
    uint32_t sends = 0;
    uint32_t receives = 0;       // completions of shared receives that may wait; 0: it receives nothing
    uint32_t send_parts = 1;     // gather list, as far as the device goes
    uint32_t inline_bytes = 0;   // as far as the device goes
    int remote_access = 0;       // IBV_ACCESS_REMOTE_...: what the peer may do with memory that it has keys to
  };
  static Result<std::unique_ptr<QueuePair>> make(std::shared_ptr<Domain> domain, const Size& size);
  ~QueuePair();
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  Address address() const;
  // Fills in what is to be set for the state in `state`; false: it cannot (connection_manager.h).
  using Path = std::function<bool(ibv_qp_attr& state, int& mask)>;
  // Along `path` where one is given, else as the address says.
  Result<void> connect(const Address& peer, const RdmaOptions& options, const Path& path = nullptr);
  // As it was made, for another way to connect it.
  Result<void> reset();
  // Nothing is sent or received any more; what was posted completes with an error.
  void fail();

  Domain& domain() const { return *domain_; }
  ibv_qp* get() const { return pair_; }
  ibv_cq* completions() const { return completions_; }
  uint32_t inline_bytes() const { return inline_bytes_; }
  uint32_t send_parts() const { return send_parts_; }

  // What completes after arm() makes events_descriptor() readable, once; take_events() makes it unreadable again.
  void arm() { ibv_req_notify_cq(completions_, 0); }
  int events_descriptor() const { return events_->fd; }
  void take_events();

 private:
  explicit QueuePair(std::shared_ptr<Domain> domain) : domain_(std::move(domain)) {}
  Result<void> initialise();
  void describe_path(ibv_qp_attr& state, const Address& peer, const RdmaOptions& options) const;

  const std::shared_ptr<Domain> domain_;
  ibv_comp_channel* events_ = nullptr;
  ibv_cq* completions_ = nullptr;
  ibv_qp* pair_ = nullptr;
  uint32_t inline_bytes_ = 0;
  uint32_t send_parts_ = 1;
  uint32_t first_packet_ = 0;
  int remote_access_ = 0;
};

}  // namespace gpupool::transport::rdma
