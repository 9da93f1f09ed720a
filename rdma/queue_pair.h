// A reliable queue pair with its completion queue, from creation to readiness for sending. A failed connect()
// leaves it unusable until reset(). Not thread-safe, but for fail(): its owner (stream.h, direct_transfers.h)
// serialises posting and polling.
#pragma once
#include <functional>
#include <memory>
#include <mutex>

#include "rdma/address.h"
#include "rdma/domain.h"

namespace gpupool::transport::rdma {

class QueuePair {
 public:
  struct Size {
    uint32_t sends = 0;
    uint32_t receives = 0;      // pending completions of shared receives; 0: it receives nothing
    uint32_t send_parts = 1;    // elements of the gather list, limited by the device
    uint32_t inline_bytes = 0;  // limited by the device
    int remote_access = 0;      // IBV_ACCESS_REMOTE_...: the peer's rights to memory that it has keys of
  };
  static Result<std::unique_ptr<QueuePair>> make(std::shared_ptr<Domain> domain, const Size& size);
  ~QueuePair();
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  Address address() const;
  // Fills in the attributes for the queue pair's state in `state`. False on failure (connection_manager.h).
  using Path = std::function<bool(ibv_qp_attr& state, int& mask)>;
  // Connects along `path` if there is one, else by the peer's address.
  Result<void> connect(const Address& peer, const RdmaOptions& options, const Path& path = nullptr);
  // Returns to the initial state, so that connect() can be tried in another way.
  Result<void> reset();
  // Nothing is sent or received any more; posted requests complete with an error. For good: connect() and
  // reset() fail from now on, also in another thread.
  void fail();

  Domain& domain() const { return *domain_; }
  ibv_qp* get() const { return pair_; }
  ibv_cq* completions() const { return completions_; }
  uint32_t inline_bytes() const { return inline_bytes_; }
  uint32_t send_parts() const { return send_parts_; }

  // The first completion after arm() makes events_descriptor() readable; take_events() makes it unreadable
  // again.
  void arm() { ibv_req_notify_cq(completions_, 0); }
  int events_descriptor() const { return events_->fd; }
  void take_events();

 private:
  explicit QueuePair(std::shared_ptr<Domain> domain) : domain_(std::move(domain)) {}
  Result<void> initialise();
  Result<void> move_to(ibv_qp_attr& state, int mask, const char* doing);
  void describe_path(ibv_qp_attr& state, const Address& peer, const RdmaOptions& options) const;

  const std::shared_ptr<Domain> domain_;
  ibv_comp_channel* events_ = nullptr;
  ibv_cq* completions_ = nullptr;
  ibv_qp* pair_ = nullptr;
  uint32_t inline_bytes_ = 0;
  uint32_t send_parts_ = 1;
  uint32_t first_packet_ = 0;
  int remote_access_ = 0;
  std::mutex mutex_;  // guards has_failed_, and changes of the state
  bool has_failed_ = false;
};

}  // namespace gpupool::transport::rdma
