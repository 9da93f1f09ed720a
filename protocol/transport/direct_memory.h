// One-sided access to the peer's memory (RDMA reads and writes), beside the byte stream. Only rdma has it.
//
// The worker performs all transfers. The client registers memory of its program and sends its address and key
// in a command; the worker reads and writes it (server/worker/copies/remote_memory.h). A worker's memory is
// registered without remote access. Keys belong to the connection and end with it.
//
// add(), remove() and interrupt(): any thread. All other calls: one thread at a time.
#pragma once
#include "protocol/transport/transport.h"

namespace gpupool::transport {

class DirectMemory {
 public:
  struct Region {
    uint64_t id = 0;          // for remove()
    uint32_t local_key = 0;   // for this side's own transfers
    uint32_t remote_key = 0;  // for the peer's transfers; 0: the peer has no access
  };
  enum class Access { local, remote };  // remote: the peer may read and write it
  struct Transfer {
    std::byte* local = nullptr;
    uint32_t local_key = 0;
    uint32_t remote_key = 0;
    uint64_t remote = 0;  // address in the peer
    uint32_t bytes = 0;   // at least 1
    uint64_t cookie = 0;  // returned by completed()
  };
  static constexpr size_t kMaxPendingTransfers = 64;  // pending transfers

  virtual ~DirectMemory() = default;
  // Registers [start, start + bytes), which must stay mapped until remove(). `dma_buf` is a descriptor of
  // device memory that the CPU cannot reach, whose first byte is `start`; -1: ordinary memory.
  // ErrorCode::limit: no more memory can be registered (RLIMIT_MEMLOCK).
  virtual Result<Region> add(void* start, uint64_t bytes, Access access, int dma_buf = -1) = 0;
  virtual void remove(const Region& region) = 0;

  // Post a transfer from or to the peer's memory; at most kMaxPendingTransfers may be pending. Transfers
  // complete in the order in which they were posted.
  virtual Result<void> read(const Transfer& transfer) = 0;
  virtual Result<void> write(const Transfer& transfer) = 0;
  // Posts a transfer that completes when all earlier writes are visible to the peer, even to a peer that
  // learns of them over another connection. `transfer` names a byte that was written.
  virtual Result<void> flush(const Transfer& transfer) = 0;
  // Stores the cookies of completed transfers and returns how many, or 0 if there are none. An error: the
  // connection is broken, and nothing completes any more.
  virtual Result<size_t> completed(std::span<uint64_t> cookies) = 0;
  // Blocks until completed() has something, interrupt() is called (or has been called before), or the
  // deadline passes.
  virtual Result<void> wait(Deadline deadline) = 0;
  virtual void interrupt() = 0;  // thread-safe
};

}  // namespace gpupool::transport
