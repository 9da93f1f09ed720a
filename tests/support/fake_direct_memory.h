// A fake transport::DirectMemory for tests in one process: both sides register memory here, and memcpy
// replaces RDMA when a transfer completes. Checks keys, bounds and access rights as an RDMA card does; a
// violation breaks the connection. Any thread.
#pragma once
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <string>

#include "protocol/transport/direct_memory.h"

namespace gpupool::testing {

class FakeDirectMemory final : public transport::DirectMemory {
 public:
  Result<Region> add(void* start, uint64_t bytes, Access access, int dma_buf = -1) override;
  void remove(const Region& region) override;
  Result<void> read(const Transfer& transfer) override { return post(Kind::read, transfer); }
  Result<void> write(const Transfer& transfer) override { return post(Kind::write, transfer); }
  Result<void> flush(const Transfer& transfer) override { return post(Kind::flush, transfer); }
  Result<size_t> completed(std::span<uint64_t> cookies) override;
  Result<void> wait(transport::Deadline deadline) override;
  void interrupt() override;

  // After hold() transfers complete only by let_go(): the next `count` ones, or all from then on.
  void hold();
  void let_go(size_t count);
  void let_go();
  void break_connection();
  // Waits until at least `count` transfers are posted and incomplete. Returns false after ten seconds.
  bool await_posted(size_t count);

  size_t regions();
  uint64_t registered_bytes();
  size_t most_under_way();
  // Limits the number of registered bytes.
  void set_limit(uint64_t bytes);
  // Returns true if the local side has used memory that is not registered, removed an unknown region, or
  // posted too many transfers.
  bool misused();

 private:
  enum class Kind { read, write, flush };
  struct Known {
    uint64_t start;
    uint64_t bytes;
    Access access;
    uint64_t id;
  };
  struct Posted {
    Kind kind;
    Transfer transfer;
  };
  Result<void> post(Kind kind, const Transfer& transfer);
  void run();  // requires mutex_
  bool covers(uint32_t key, uint64_t address, uint64_t bytes, bool remote) const;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint32_t, Known> known_;  // by key
  std::deque<Posted> posted_;
  std::deque<uint64_t> done_;
  uint64_t next_ = 1;
  uint64_t bytes_ = 0;
  uint64_t limit_ = ~uint64_t{0};
  size_t may_complete_ = ~size_t{0};
  size_t most_under_way_ = 0;
  bool interrupted_ = false;
  bool misused_ = false;
  std::string broken_;
};

}  // namespace gpupool::testing
