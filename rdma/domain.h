// The device, protection domain and shared receive queue of the connections of one session. Any thread.
//
// Every session has a protection domain of its own, so that keys and queue pairs of one session are useless
// in another, even within one process (a client with several servers).
#pragma once
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "protocol/transport/transport.h"
#include "rdma/device.h"
#include "rdma/verbs.h"

namespace gpupool::transport::rdma {

constexpr uint32_t kBufferBytes = 16 * 1024;    // bytes per message
constexpr uint32_t kMostSharedReceives = 1024;  // per session: 16 MiB

// A registered memory region. Deregistered on destruction.
class Registered {
 public:
  Registered() = default;
  Registered(const Verbs& verbs, ibv_mr* region) : verbs_(&verbs), region_(region) {}
  Registered(Registered&& other) noexcept
      : verbs_(other.verbs_), region_(std::exchange(other.region_, nullptr)) {}
  Registered& operator=(Registered&& other) noexcept {
    std::swap(verbs_, other.verbs_);
    std::swap(region_, other.region_);
    return *this;
  }
  ~Registered() {
    if (region_) verbs_->dereg_mr(region_);
  }
  uint32_t local_key() const { return region_->lkey; }
  uint32_t remote_key() const { return region_->rkey; }

 private:
  const Verbs* verbs_ = nullptr;
  ibv_mr* region_ = nullptr;
};

// Buffers of kBufferBytes in one registered block. A forked child does not inherit them, because the device
// keeps writing to the parent's.
class BufferBlock {
 public:
  BufferBlock(std::byte* memory, size_t count, Registered registered)
      : memory_(memory), count_(count), registered_(std::move(registered)) {}
  ~BufferBlock();
  BufferBlock(const BufferBlock&) = delete;
  BufferBlock& operator=(const BufferBlock&) = delete;
  std::byte* at(size_t index) const { return memory_ + index * kBufferBytes; }
  uint32_t key() const { return registered_.local_key(); }

 private:
  std::byte* memory_;
  size_t count_;
  Registered registered_;
};

struct ReceiveBuffer {
  std::byte* data;
  uint32_t key;
};

class Domain {
 public:
  static Result<std::shared_ptr<Domain>> open(const RdmaOptions& options, const sockaddr_storage& local);
  ~Domain();
  Domain(const Domain&) = delete;
  Domain& operator=(const Domain&) = delete;

  const Verbs& verbs() const { return verbs_; }
  const Device& device() const { return device_; }
  ibv_pd* protection() const { return protection_; }
  ibv_srq* receive_queue() const { return receive_queue_; }

  // Readable when the device has an asynchronous event, which belongs to no transfer. take_events() then
  // fails with ErrorCode::lost if the session cannot go on. Most errors come with a completion too; events
  // are for threads that wait for none.
  int events_descriptor() const { return device_.context->async_fd; }
  Result<void> take_events();

  // ErrorCode::limit: no more memory can be registered (RLIMIT_MEMLOCK).
  Result<Registered> add(void* start, uint64_t bytes, int access, int dma_buf = -1);
  Result<std::unique_ptr<BufferBlock>> make_buffers(size_t count);

  // Adds `count` buffers to the shared receive queue for a connection, which leaves them to others when it
  // ends. A completion has a buffer's address in wr_id; the buffer is the connection's until it posts it
  // again.
  Result<void> add_receive_buffers(uint32_t count);
  void release_receive_buffers(uint32_t count);
  Result<void> post(ReceiveBuffer& buffer);

 private:
  Domain(const Verbs& verbs, Device device) : verbs_(verbs), device_(std::move(device)) {}

  const Verbs& verbs_;
  const Device device_;
  ibv_pd* protection_ = nullptr;
  ibv_srq* receive_queue_ = nullptr;
  std::mutex mutex_;    // guards all below
  std::string broken_;  // why the session cannot go on; empty: it can
  std::vector<std::unique_ptr<BufferBlock>> blocks_;
  std::deque<ReceiveBuffer> buffers_;  // elements keep their address, which is their wr_id
  uint32_t unassigned_buffers_ = 0;    // posted, but counted for no connection
};

}  // namespace gpupool::transport::rdma
