// Direct transfers (direct_memory.h) over a queue pair of their own, so that no command waits behind them.
//
// The client's side only holds the queue pair open, and registers memory. The peer has no access to anything that is not
// registered with Access::remote: on the worker's side, where nothing is, to nothing at all.
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
  // Thread-safe. What is under way fails, and the peer reaches nothing any more.
  void close() { pair_->fail(); }

 private:
  DataChannel(std::unique_ptr<QueuePair> pair, int wake) : pair_(std::move(pair)), wake_(wake) {}
  Result<void> post(const Transfer& transfer, ibv_wr_opcode opcode);
  bool nothing_done();

  std::mutex mutex_;  // regions_, next_id_
  std::unordered_map<uint64_t, Registered> regions_;
  uint64_t next_id_ = 1;
  std::unique_ptr<QueuePair> pair_;  // goes before the memory that it uses
  const int wake_;
  // Found by wait(), for completed().
  ibv_wc early_{};
  bool has_early_ = false;
};

}  // namespace gpupool::transport::rdma
