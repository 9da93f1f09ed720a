#include "server/softgpu/exec/cluster.h"

#include "server/softgpu/exec/block_run.h"

namespace gpupool::softgpu {

void Cluster::join(uint32_t rank, BlockRun* block, uint64_t shared_base, uint32_t shared_bytes,
                   uint32_t threads) {
  members_[rank] = {block, shared_base};
  shared_bytes_ = shared_bytes;
  live_ += threads;
}

void Cluster::leave(const BlockRun* block) {
  for (Member& member : members_)
    if (member.block == block) member = {};
}

uint32_t Cluster::rank_of(uint64_t address) const {
  for (uint32_t rank = 0; rank < size_; ++rank)
    if (members_[rank].block != nullptr && address - members_[rank].base < shared_bytes_) return rank;
  return size_;
}

void Cluster::arrive() {
  ++arrived_;
  complete_if_all_arrived();
}

void Cluster::thread_ends(bool has_arrived) {
  --live_;
  arrived_ -= has_arrived;
  complete_if_all_arrived();
}

void Cluster::complete_if_all_arrived() {
  if (arrived_ == 0 || arrived_ < live_) return;
  arrived_ = 0;
  ++phase_;
  for (Member& member : members_)
    if (member.block != nullptr) member.block->wake_cluster_waiters();
}

bool Cluster::stuck() const {
  for (const Member& member : members_)
    if (member.block != nullptr && member.block->can_go_on()) return false;
  return true;
}

// --- BlockRun: cluster operations ---

Cluster& BlockRun::cluster() {
  if (!cluster_) {
    cluster_ = std::make_shared<Cluster>(1);
    cluster_->join(0, this, context_.shared_base, context_.total_shared_bytes, live_);
  }
  return *cluster_;
}

void BlockRun::leave_cluster() {
  if (!cluster_) return;
  cluster_->leave(this);
  cluster_.reset();
}

bool BlockRun::can_go_on() const {
  return !ready_.empty() || !yielded_.empty() || next_unstarted_ < threads_;
}

void BlockRun::wake_cluster_waiters() {
  while (!cluster_waiting_.empty()) wake(cluster_waiting_.pop());
}

void BlockRun::cluster_arrive(ThreadContext* thread) {
  if (in_loops_) end_with_fault(FaultKind::illegal_instruction, 0);
  auto* slot = reinterpret_cast<ThreadSlot*>(thread);
  if (has_arrived(*slot)) return;  // arriving twice without waiting is undefined in PTX
  Cluster& all = cluster();
  slot->cluster_ticket = all.phase() + 1;
  all.arrive();
}

void BlockRun::cluster_wait(ThreadContext* thread) {
  if (in_loops_) end_with_fault(FaultKind::illegal_instruction, 0);
  auto* slot = reinterpret_cast<ThreadSlot*>(thread);
  if (has_arrived(*slot)) {
    cluster_waiting_.push(slot);
    const uint32_t index = thread->linear_tid / kWarpSize;
    --warps_[index].runnable;
    release_waiting_lanes(warps_[index], index);
    suspend(slot);
  }
  slot->cluster_ticket = 0;
}

uint64_t BlockRun::cluster_window(uint32_t rank) {
  if (!cluster_) return rank == 0 ? context_.shared_base : 0;
  return cluster_->shared_base(rank);
}

uint32_t BlockRun::cluster_rank_of(uint64_t address) {
  if (cluster_) return cluster_->rank_of(address);
  return address - context_.shared_base < context_.total_shared_bytes ? 0 : 1;
}

}  // namespace gpupool::softgpu
