// The blocks of one thread block cluster: where their shared windows lie, and the barrier of all their threads.
//
// All blocks of a cluster live on one worker, so this is plain data of one host thread. Owned by the blocks together. A block
// that is over has left: its window is no longer found here. A block launched without a cluster is one of its own, made
// when it asks for it.
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
  // The window of a block; 0 when there is no such block any more.
  uint64_t shared_base(uint32_t rank) const { return rank < size_ ? members_[rank].base : 0; }
  uint32_t shared_bytes() const { return shared_bytes_; }
  uint32_t rank_of(uint64_t address) const;  // whose window it lies in; size() when in none

  // --- barrier.cluster ---
  uint32_t phase() const { return phase_; }
  void arrive();
  void thread_ends(bool has_arrived);  // in this phase, without having waited
  bool stuck() const;                  // nobody in the cluster can go on

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
