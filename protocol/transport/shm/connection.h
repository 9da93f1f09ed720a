// The shm transport's connection. A Unix stream socket carries the hello; from upgrade() on, two rings in a
// memfd carry the bytes. Threads and errors as in transport.h.
//
// After upgrade() the socket carries descriptors and doorbells (a byte that wakes a sleeping receiver), and
// its end means that the peer has closed or died. A second socket pair carries the doorbells of sleeping
// senders, so that two threads of one side never take each other's. The memfd is sealed: neither peer can
// shrink it.
#pragma once
#include <atomic>
#include <deque>
#include <memory>
#include <optional>

#include "protocol/transport/shm/ring.h"
#include "protocol/transport/socket/connection.h"

namespace gpupool::transport::shm {

constexpr size_t kRingBytes = 1u << 20;
constexpr size_t kMostDescriptors = 16;  // received, but not yet fetched by receive_descriptor()

class ShmConnection final : public SocketConnection {
 public:
  using SocketConnection::SocketConnection;
  ~ShmConnection() override;

  Result<size_t> send_some(std::span<const iovec> buffers) override;
  Result<size_t> receive_some(std::span<std::byte> buffer) override;
  Result<Ready> wait(bool for_receive, bool for_send, Deadline deadline) override;
  void check_peer_alive() override;
  void close() override;
  int release_descriptor() override;
  Result<void> upgrade(Side side, Deadline deadline) override;
  std::string carrier() const override { return "shared memory"; }
  bool shares_memory() const override { return true; }
  bool outlives_break() const override { return upgraded_.load(std::memory_order_acquire); }
  Result<void> send_descriptor(int descriptor, Deadline deadline) override;
  Result<int> receive_descriptor(Deadline deadline) override;

 private:
  struct Rings {
    std::byte* memory = nullptr;
    size_t size = 0;
    int sender_doorbells = -1;  // socket pair: doorbells for and from senders
    std::optional<RingWriter> out;
    std::optional<RingReader> in;
  };

  Result<void> send_rings(Deadline deadline);
  Result<void> receive_rings(Deadline deadline);
  Result<void> map(int memory, size_t ring_bytes, Side side);
  Result<void> send_descriptors(std::span<const int> descriptors, std::span<const std::byte> bytes,
                                Deadline deadline);
  Result<void> receive_doorbells();  // reads pending doorbells and descriptors
  Ready ready_now(bool for_receive, bool for_send);
  bool peer_ended();
  void ring_doorbell(int socket);
  Error corrupt_rings() const;

  Rings rings_;
  std::atomic<bool> upgraded_{false};
  std::atomic<bool> peer_gone_{false};
  std::deque<int> descriptors_;  // used by the receiving thread only
};

Result<std::unique_ptr<Connection>> connect(const Endpoint& endpoint, const Options& options);
Result<std::unique_ptr<Connection>> adopt(int descriptor, const Options& options);
// Connects to the poold that listens on this tcp address of this host, if it runs as root or as this
// process's user. Returns null if there is none.
std::unique_ptr<Connection> connect_shm_of_tcp(const std::string& numeric_host, uint16_t port,
                                               const Options& options);

}  // namespace gpupool::transport::shm
