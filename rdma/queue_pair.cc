#include "rdma/queue_pair.h"

#include <fcntl.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "rdma/upgrade_messages.h"

namespace gpupool::transport::rdma {
namespace {

// 7 means forever on some devices (Soft-RoCE): a dead peer would never be noticed.
constexpr uint8_t kRetries = 6;
// Credits ensure that a receive buffer is always posted (credits.h), so only a misbehaving peer is not ready.
constexpr uint8_t kReceiverNotReadyRetries = 1;
constexpr uint8_t kReceiverNotReadyTimer = 12;  // 0.64 ms
constexpr uint8_t kHopLimit = 64;
constexpr uint8_t kReads = 16;  // most RDMA reads at a time

}  // namespace

Result<std::unique_ptr<QueuePair>> QueuePair::make(std::shared_ptr<Domain> domain, const Size& size) {
  const Verbs& verbs = domain->verbs();
  const Device& device = domain->device();
  std::unique_ptr<QueuePair> made(new QueuePair(std::move(domain)));
  made->events_ = verbs.create_comp_channel(device.context);
  if (!made->events_) return verb_failure("cannot create a completion channel", errno);
  ::fcntl(made->events_->fd, F_SETFL, ::fcntl(made->events_->fd, F_GETFL) | O_NONBLOCK);
  const int entries = static_cast<int>(std::max(1u, size.sends + size.receives));
  made->completions_ = verbs.create_cq(device.context, entries, nullptr, made->events_, 0);
  if (!made->completions_) return verb_failure("cannot create a completion queue", errno);
  ibv_qp_init_attr wish{};
  wish.send_cq = wish.recv_cq = made->completions_;
  wish.srq = size.receives != 0 ? made->domain_->receive_queue() : nullptr;
  wish.qp_type = IBV_QPT_RC;
  wish.cap.max_send_wr = size.sends;
  wish.cap.max_send_sge = std::clamp(size.send_parts, 1u, static_cast<uint32_t>(device.limits.max_sge));
  wish.cap.max_recv_sge = 1;
  wish.cap.max_recv_wr = size.receives != 0 ? 0 : 1;
  // The device's limit for inline data is found by asking for less until it accepts.
  for (wish.cap.max_inline_data = size.inline_bytes;; wish.cap.max_inline_data /= 2) {
    ibv_qp_init_attr attempt = wish;
    made->pair_ = verbs.create_qp(made->domain_->protection(), &attempt);
    if (made->pair_) {
      made->inline_bytes_ = attempt.cap.max_inline_data;
      made->send_parts_ = std::max(1u, std::min(attempt.cap.max_send_sge, wish.cap.max_send_sge));
      break;
    }
    if (wish.cap.max_inline_data == 0) return verb_failure("cannot create a queue pair", errno);
  }
  made->remote_access_ = size.remote_access;
  if (::getrandom(&made->first_packet_, sizeof made->first_packet_, 0) != sizeof made->first_packet_) {
    return verb_failure("getrandom failed", errno);
  }
  made->first_packet_ &= 0xffffff;
  if (auto initialised = made->initialise(); !initialised) return initialised.error();
  return made;
}

Result<void> QueuePair::initialise() {
  ibv_qp_attr state{};
  state.qp_state = IBV_QPS_INIT;
  state.pkey_index = domain_->address().partition_index;
  state.port_num = domain_->device().port;
  state.qp_access_flags = static_cast<unsigned>(remote_access_);
  return move_to(state, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
                 "cannot initialize a queue pair");
}

Result<void> QueuePair::move_to(ibv_qp_attr& state, int mask, const char* doing) {
  const std::lock_guard lock(mutex_);
  if (has_failed_) return Error{ErrorCode::closed, "the queue pair was closed on this side"};
  if (const int error = domain_->verbs().modify_qp(pair_, &state, mask)) return verb_failure(doing, error);
  return {};
}

Result<void> QueuePair::reset() {
  ibv_qp_attr state{};
  state.qp_state = IBV_QPS_RESET;
  if (auto moved = move_to(state, IBV_QP_STATE, "cannot reset a queue pair"); !moved) return moved;
  return initialise();
}

QueuePair::~QueuePair() {
  const Verbs& verbs = domain_->verbs();
  if (pair_) verbs.destroy_qp(pair_);
  if (completions_) verbs.destroy_cq(completions_);
  if (events_) verbs.destroy_comp_channel(events_);
}

Address QueuePair::address() const {
  const PortAddress port = domain_->address();
  Address address;
  address.queue_pair = pair_->qp_num;
  address.packet_sequence = first_packet_;
  std::memcpy(address.gid.data(), port.gid.raw, address.gid.size());
  address.lid = port.lid;
  address.mtu = static_cast<uint8_t>(port.mtu);
  address.reads = static_cast<uint8_t>(std::clamp(domain_->device().limits.max_qp_rd_atom, 1, int{kReads}));
  return address;
}

void QueuePair::describe_path(ibv_qp_attr& state, const Address& peer, const RdmaOptions& options) const {
  const PortAddress port = domain_->address();
  state.path_mtu = std::min(port.mtu, static_cast<ibv_mtu>(peer.mtu));
  state.dest_qp_num = peer.queue_pair;
  state.rq_psn = peer.packet_sequence & 0xffffff;
  state.ah_attr.port_num = domain_->device().port;
  state.ah_attr.sl = static_cast<uint8_t>(options.service_level);
  state.ah_attr.dlid = peer.lid;
  // A GID is also needed between InfiniBand subnets, which have different prefixes.
  state.ah_attr.is_global = port.ethernet || std::memcmp(peer.gid.data(), port.gid.raw, 8) != 0;
  std::memcpy(state.ah_attr.grh.dgid.raw, peer.gid.data(), peer.gid.size());
  state.ah_attr.grh.sgid_index = port.gid_index;
  state.ah_attr.grh.hop_limit = kHopLimit;
}

Result<void> QueuePair::connect(const Address& peer, const RdmaOptions& options, const Path& path) {
  const Device& device = domain_->device();
  if (!is_possible(peer)) {
    return Error{ErrorCode::malformed, "the peer sent an invalid queue pair address"};
  }
  const Error no_path{ErrorCode::unavailable, "rdma_init_qp_attr failed"};
  ibv_qp_attr state{};
  int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  state.qp_state = IBV_QPS_RTR;
  if (!path)
    describe_path(state, peer, options);
  else if (!path(state, mask))
    return no_path;
  state.max_dest_rd_atomic = static_cast<uint8_t>(std::clamp(device.limits.max_qp_rd_atom, 1, int{kReads}));
  state.min_rnr_timer = kReceiverNotReadyTimer;
  if (options.traffic_class != 0)
    state.ah_attr.grh.traffic_class = static_cast<uint8_t>(options.traffic_class);
  mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  if (auto moved = move_to(state, mask, "cannot move a queue pair to RTR"); !moved) return moved;
  state = {};
  mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
  state.qp_state = IBV_QPS_RTS;
  state.sq_psn = first_packet_;
  if (path && !path(state, mask)) return no_path;
  state.timeout = static_cast<uint8_t>(options.timeout_exponent);
  state.retry_cnt = kRetries;
  state.rnr_retry = kReceiverNotReadyRetries;
  state.max_rd_atomic =
      static_cast<uint8_t>(std::clamp<int>(peer.reads, 1, std::max(1, device.limits.max_qp_init_rd_atom)));
  mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  return move_to(state, mask, "cannot move a queue pair to RTS");
}

void QueuePair::fail() {
  const std::lock_guard lock(mutex_);
  has_failed_ = true;
  ibv_qp_attr state{};
  state.qp_state = IBV_QPS_ERR;
  domain_->verbs().modify_qp(pair_, &state, IBV_QP_STATE);
}

void QueuePair::take_events() {
  ibv_cq* queue = nullptr;
  void* owner = nullptr;
  unsigned taken = 0;
  while (domain_->verbs().get_cq_event(events_, &queue, &owner) == 0) ++taken;
  if (taken != 0) domain_->verbs().ack_cq_events(completions_, taken);
}

}  // namespace gpupool::transport::rdma
