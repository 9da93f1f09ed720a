// Memory that moves between client and worker without either processor touching it: what rdma has beside the byte stream.
//
// The worker does all of it. The client registers memory of its program and tells the worker, in a command, where it is and
// under which key; the worker reads and writes it. A worker's memory is never open to its client: there is no key to it.
// Keys are the connection's and die with it.
//
// add() and remove(): any thread. The rest: one thread at a time, but for interrupt().
#pragma once
#include "protocol/transport/transport.h"

namespace gpupool::transport {

class DirectMemory {
 public:
  struct Region {
    uint64_t id = 0;          // for remove()
    uint32_t local_key = 0;   // for this side's own transfers
    uint32_t remote_key = 0;  // for the peer's; 0: it has no access
  };
  enum class Access { local, remote };  // remote: the peer may read and write it
  struct Transfer {
    std::byte* local = nullptr;
    uint32_t local_key = 0;
    uint32_t remote_key = 0;
    uint64_t remote = 0;  // address in the peer
    uint32_t bytes = 0;   // at least 1
    uint64_t cookie = 0;  // what completed() says of it
  };
  static constexpr size_t kMostUnderWay = 64;  // transfers

  virtual ~DirectMemory() = default;
  // [start, start + bytes), which stays mapped until remove(). `dma_buf`: a descriptor of device memory that the CPU cannot
  // reach, whose first byte is `start`; -1: plain memory. ErrorCode::limit: out of what may be registered (RLIMIT_MEMLOCK).
  virtual Result<Region> add(void* start, uint64_t bytes, Access access, int dma_buf = -1) = 0;
  virtual void remove(const Region& region) = 0;

  // Of the peer's memory; at most kMostUnderWay at a time. They complete in the order in which they were posted.
  virtual Result<void> read(const Transfer& transfer) = 0;
  virtual Result<void> write(const Transfer& transfer) = 0;
  // Completes when what was written before can be seen by the peer, whatever it is told by another connection. The transfer
  // names a byte that was written.
  virtual Result<void> flush(const Transfer& transfer) = 0;
  // Cookies of what is done: 0 of them when nothing is. An error: the connection is broken, nothing completes any more.
  virtual Result<size_t> completed(std::span<uint64_t> cookies) = 0;
  // Until completed() has something, interrupt() is called (present or next wait) or the deadline passes.
  virtual Result<void> wait(Deadline deadline) = 0;
  virtual void interrupt() = 0;  // thread-safe
};

}  // namespace gpupool::transport
