// What the connections of one session share: the device, a protection domain, and a shared receive queue.
//
// A protection domain of its own for each session: keys and queue pairs of one session are nothing to another, not even
// within one process (a client with several servers). Any thread.
#pragma once
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "protocol/transport/transport.h"
#include "rdma/device.h"
#include "rdma/verbs.h"

namespace gpupool::transport::rdma {

constexpr uint32_t kBufferBytes = 16 * 1024;       // of one message
constexpr uint32_t kMostSharedReceives = 1024;     // of a session: 16 MiB

// Memory of this process that the device may use.
class Registered {
 public:
  Registered() = default;
  Registered(const Verbs& verbs, ibv_mr* region) : verbs_(&verbs), region_(region) {}
  Registered(Registered&& other) noexcept : verbs_(other.verbs_), region_(std::exchange(other.region_, nullptr)) {}
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

// Buffers of kBufferBytes in one registered piece. A forked child does not get them: the device goes on writing to the parent's.
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

  // Readable when the device has something to say that belongs to no transfer; take_events() then tells whether the session
  // can go on. Most errors come with a completion; these are for who waits for none.
  int events_descriptor() const { return device_.context->async_fd; }
  Result<void> take_events();

  // ErrorCode::limit: more than may be registered.
  Result<Registered> add(void* start, uint64_t bytes, int access, int dma_buf = -1);
  Result<std::unique_ptr<BufferBlock>> make_buffers(size_t count);

  // A connection needs `count` more buffers in the shared receive queue; when it ends, it leaves them to others. Completions
  // name a buffer by wr_id; it is the connection's until it posts it again.
  Result<void> join(uint32_t count);
  void leave(uint32_t count);
  Result<void> post(ReceiveBuffer& buffer);

 private:
  Domain(const Verbs& verbs, Device device) : verbs_(verbs), device_(std::move(device)) {}

  const Verbs& verbs_;
  const Device device_;
  ibv_pd* protection_ = nullptr;
  ibv_srq* receive_queue_ = nullptr;
  std::mutex mutex_;  // what follows
  std::string broken_;  // why, when it is
  std::vector<std::unique_ptr<BufferBlock>> blocks_;
  std::deque<ReceiveBuffer> buffers_;  // stay where they are
  uint32_t spare_ = 0;                 // posted, and counted for no connection
};

}  // namespace gpupool::transport::rdma
