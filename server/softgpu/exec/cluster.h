// The blocks of one thread block cluster: the addresses of their shared windows, and the barrier of all their
// threads.
//
// All blocks of a cluster run on one worker, so only one thread uses the object. The blocks own it together.
// A block that has ended leaves, and its window can no longer be found. A block launched without a cluster
// creates one of size 1 when it first needs one.
#pragma once
#include <cstdint>

#include "server/softgpu/exec/abi.h"

namespace gpupool::softgpu {

class BlockRun;

class Cluster {
 public:
  explicit Cluster(uint32_t size) : size_(size) {}
  uint32_t size() const { return size_; }

  void join(uint32_t rank, BlockRun* block, uint64_t shared_base, uint32_t shared_bytes, uint32_t threads);
  void leave(const BlockRun* block);
  // Address of the block's window; 0 if there is no such block or it has ended.
  uint64_t shared_base(uint32_t rank) const { return rank < size_ ? members_[rank].base : 0; }
  uint32_t shared_bytes() const { return shared_bytes_; }
  uint32_t rank_of(uint64_t address) const;  // block whose window contains it; size(): none

  // --- barrier.cluster ---
  uint32_t phase() const { return phase_; }
  void arrive();
  void thread_ends(bool has_arrived);  // has_arrived: the thread arrived in this phase and has not waited
  bool stuck() const;                  // no thread of the cluster can proceed

 private:
  struct Member {
    BlockRun* block = nullptr;
    uint64_t base = 0;
  };
  void complete_if_all_arrived();

  uint32_t size_;
  Member members_[kMaxClusterBlocks];
  uint32_t shared_bytes_ = 0;
  uint32_t live_ = 0, arrived_ = 0;  // threads
  uint32_t phase_ = 0;
};

}  // namespace gpupool::softgpu
