// The queue pair of one-sided transfers, apart from the stream's so that no command waits behind them. Used
// by DirectTransfers, which serialises all calls.
//
// The client's side only keeps the queue pair open: the peer reaches the client's registered memory by it.
// The worker's queue pair admits no access, so a client cannot access its worker's memory.
#pragma once
#include <memory>

#include "protocol/transport/direct_memory.h"
#include "rdma/queue_pair.h"

namespace gpupool::transport::rdma {

class DataChannel {
 public:
  static Result<std::unique_ptr<DataChannel>> make(std::shared_ptr<Domain> domain, Side side);
  explicit DataChannel(std::unique_ptr<QueuePair> pair) : pair_(std::move(pair)) {}
  ~DataChannel() { pair_->fail(); }  // the device stops using the program's memory
  DataChannel(const DataChannel&) = delete;
  DataChannel& operator=(const DataChannel&) = delete;

  QueuePair& pair() { return *pair_; }
  Result<void> post(const DirectMemory::Transfer& transfer, ibv_wr_opcode opcode);

 private:
  const std::unique_ptr<QueuePair> pair_;
};

}  // namespace gpupool::transport::rdma
