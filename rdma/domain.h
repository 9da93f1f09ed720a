// The device, protection domain and shared receive queue of the connections of one session. Any thread.
//
// Every session has a protection domain of its own, so that keys and queue pairs of one session are useless
// in another, even within one process (a client with several servers).
#pragma once
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
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
  PortAddress address() const {
    const std::lock_guard lock(mutex_);
    return address_;
  }
  std::string text() const;  // "rxe0, port 1, GID 1"
  // A random number other than 0, by which the peer recognises the domain of a connection that replaces a
  // broken one. No secret: it only makes the reason of a refusal clear.
  uint32_t number() const { return number_; }
  // Finds the port's address again, before a connection that replaces a broken one: it may have changed.
  // ErrorCode::refused: the session cannot go on; ErrorCode::unavailable: not now.
  Result<void> look_again(const RdmaOptions& options, const sockaddr_storage& local);
  ibv_pd* protection() const { return protection_; }
  ibv_srq* receive_queue() const { return receive_queue_; }

  // Readable when the device has an asynchronous event, which belongs to no transfer. Most errors come with a
  // completion too; events are for threads that wait for none. take_events() then fails with
  // ErrorCode::refused if the session cannot go on (the device is lost), and with ErrorCode::malformed if the
  // peer has tried to use memory that it may not. Other failures of queue pairs are counted: all connections
  // that are older break.
  int events_descriptor() const { return device_.context->async_fd; }
  Result<void> take_events();
  uint64_t failures() const { return failures_.load(std::memory_order_acquire); }

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
  Domain(const Verbs& verbs, OpenedDevice opened)
      : verbs_(verbs), device_(std::move(opened.device)), address_(opened.address) {}
  void take_event(const ibv_async_event& event);  // call with mutex_ held

  const Verbs& verbs_;
  const Device device_;
  uint32_t number_ = 0;
  ibv_pd* protection_ = nullptr;
  ibv_srq* receive_queue_ = nullptr;
  std::atomic<uint64_t> failures_{0};
  mutable std::mutex mutex_;  // guards all below
  PortAddress address_;
  std::optional<Error> over_;  // why the session cannot go on
  std::vector<std::unique_ptr<BufferBlock>> blocks_;
  std::deque<ReceiveBuffer> buffers_;  // elements keep their address, which is their wr_id
  uint32_t unassigned_buffers_ = 0;    // posted, but counted for no connection
};

}  // namespace gpupool::transport::rdma
