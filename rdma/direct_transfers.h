// One-sided transfers (protocol/transport/direct_memory.h) of one session, on the DataChannel of whichever
// connection carries the session. Threads and errors as there; functions for connections: any thread.
//
// Keeps every transfer until it completes. If the session's connection may be replaced (keep()), a break
// looks as if nothing had completed yet: the transfers that are pending are posted again on the next
// connection's channel. Nobody has been told of them, and their memory stays as it is until then, so a
// transfer that took place before the break may take place once more.
//
// No write comes late: the client destroys its queue pair in drop(), before its hello tells the worker that
// the connection has broken, and the worker posts nothing again before that. Memory registered with
// Access::remote is what the peer can reach. Workers register none this way.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "protocol/transport/direct_memory.h"
#include "rdma/data_channel.h"

namespace gpupool::transport::rdma {

class DirectTransfers final : public DirectMemory {
 public:
  static Result<std::shared_ptr<DirectTransfers>> make(std::shared_ptr<Domain> domain);
  ~DirectTransfers() override;
  DirectTransfers(const DirectTransfers&) = delete;
  DirectTransfers& operator=(const DirectTransfers&) = delete;

  Result<Region> add(void* start, uint64_t bytes, Access access, int dma_buf) override;
  void remove(const Region& region) override;
  Result<void> read(const Transfer& transfer) override { return add_and_post(transfer, IBV_WR_RDMA_READ); }
  Result<void> write(const Transfer& transfer) override { return add_and_post(transfer, IBV_WR_RDMA_WRITE); }
  Result<void> flush(const Transfer& transfer) override;
  Result<size_t> completed(std::span<uint64_t> cookies) override;
  Result<void> wait(Deadline deadline) override;
  void interrupt() override;

  // For connections, which are told apart by `owner`.
  //
  // Takes the channel of a connection that is being set up; close() reaches it from now on. Fails after
  // close().
  Result<void> take(const void* owner, std::unique_ptr<DataChannel> channel);
  // The channel is connected: transfers use it, the pending ones first. `broken` is called, with a lock held,
  // if a transfer finds the channel broken.
  Result<void> begin(const void* owner, std::function<void(const Error&)> broken);
  // Destroys the connection's channel, if it is here. Transfers then wait for another channel, or fail.
  void drop(const void* owner);
  // From now on a break makes transfers wait.
  void keep();
  // The session is over: transfers fail, and the peer can no longer reach any memory.
  void close();

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Posted {
    Transfer transfer;
    ibv_wr_opcode opcode;
  };
  DirectTransfers(std::shared_ptr<Domain> domain, int wake) : domain_(std::move(domain)), wake_(wake) {}
  Result<void> add_and_post(const Transfer& transfer, ibv_wr_opcode opcode);
  // Call with mutex_ held.
  void collect();
  void take_failure(ibv_wc_status status);
  void break_channel(Error why);
  void end(Error why);
  // Destroys the channel when no thread uses it in wait(): then the device uses no memory by it.
  void destroy(std::unique_ptr<DataChannel> channel, Lock& lock);
  bool can_use_channel() const { return channel_ && !is_broken_ && !over_; }

  const std::shared_ptr<Domain> domain_;
  const int wake_;

  std::mutex regions_mutex_;  // guards regions_ and next_id_
  std::unordered_map<uint64_t, Registered> regions_;
  uint64_t next_id_ = 1;

  std::mutex mutex_;  // guards all below
  std::condition_variable left_;
  const DataChannel* used_ = nullptr;  // a thread in wait() uses it
  bool is_kept_ = false;
  bool is_broken_ = false;  // channel_ is useless, and its connection knows
  std::optional<Error> over_;
  std::deque<Posted> pending_;
  std::deque<uint64_t> done_;  // cookies for completed()
  std::function<void(const Error&)> tell_broken_;
  const void* next_owner_ = nullptr;
  const void* owner_ = nullptr;
  // Declared after regions_, because they must be destroyed before the regions are deregistered.
  std::unique_ptr<DataChannel> next_;
  std::unique_ptr<DataChannel> channel_;
};

}  // namespace gpupool::transport::rdma
