// One-sided transfers (protocol/transport/direct_memory.h) over a queue pair of their own, so that no command
// waits behind them. Threads and errors as there.
//
// The client's side only keeps the queue pair open and registers memory. The peer can reach only memory that
// was registered with Access::remote. Workers register none this way, so a client cannot access its worker's
// memory.
#pragma once
#include <memory>
#include <mutex>
#include <unordered_map>

#include "protocol/transport/direct_memory.h"
#include "rdma/queue_pair.h"

namespace gpupool::transport::rdma {

class DataChannel final : public DirectMemory {
 public:
  static Result<std::unique_ptr<DataChannel>> make(std::shared_ptr<Domain> domain, Side side);
  ~DataChannel() override;

  QueuePair& pair() { return *pair_; }

  Result<Region> add(void* start, uint64_t bytes, Access access, int dma_buf) override;
  void remove(const Region& region) override;
  Result<void> read(const Transfer& transfer) override;
  Result<void> write(const Transfer& transfer) override;
  Result<void> flush(const Transfer& transfer) override;
  Result<size_t> completed(std::span<uint64_t> cookies) override;
  Result<void> wait(Deadline deadline) override;
  void interrupt() override;
  // Any thread. Pending transfers fail, and the peer can no longer reach any memory.
  void close() { pair_->fail(); }

 private:
  DataChannel(std::unique_ptr<QueuePair> pair, int wake) : pair_(std::move(pair)), wake_(wake) {}
  Result<void> post(const Transfer& transfer, ibv_wr_opcode opcode);
  bool nothing_done();

  std::mutex mutex_;  // guards regions_ and next_id_
  std::unordered_map<uint64_t, Registered> regions_;
  uint64_t next_id_ = 1;
  // Declared after regions_, because it must be destroyed before they are deregistered.
  std::unique_ptr<QueuePair> pair_;
  const int wake_;
  // A completion that wait() has found, for completed().
  ibv_wc early_{};
  bool has_early_ = false;
};

}  // namespace gpupool::transport::rdma
