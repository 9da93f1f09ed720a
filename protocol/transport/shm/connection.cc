#include "protocol/transport/shm/connection.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "protocol/transport/deadline.h"
#include "protocol/transport/peer_order.h"
#include "protocol/transport/shm/address.h"

namespace gpupool::transport::shm {
namespace {

constexpr short kBroken = POLLERR | POLLHUP | POLLNVAL;

}  // namespace

ShmConnection::~ShmConnection() {
  if (upgraded_ && socket() >= 0) rings_.out->control().writer_closed.store(1, std::memory_order_seq_cst);
  if (rings_.memory) ::munmap(rings_.memory, rings_.size);
  if (rings_.sender_doorbells >= 0) ::close(rings_.sender_doorbells);
  for (const int descriptor : descriptors_) ::close(descriptor);
}

Error ShmConnection::corrupt_rings() const {
  return {ErrorCode::malformed, peer() + " corrupted the shared memory"};
}

bool ShmConnection::peer_ended() {
  return peer_gone_.load(std::memory_order_acquire) ||
         rings_.in->control().writer_closed.load(std::memory_order_seq_cst) != 0;
}

void ShmConnection::ring_doorbell(int socket) {
  const char bell = 0;
  while (::send(socket, &bell, 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno == EINTR) continue;
    // If the socket is full, unread doorbells wake the peer.
    if (errno != EAGAIN && errno != EWOULDBLOCK) peer_gone_.store(true, std::memory_order_release);
    return;
  }
}

Result<size_t> ShmConnection::send_some(std::span<const iovec> buffers) {
  if (!upgraded_.load(std::memory_order_acquire)) return SocketConnection::send_some(buffers);
  if (closed()) return failure(0, "sending to");
  if (peer_ended()) return failure(EPIPE, "sending to");
  tsan_release_to_peers();
  const auto sent = rings_.out->write(buffers, [this] { ring_doorbell(socket()); });
  if (!sent) return corrupt_rings();
  return *sent;
}

Result<size_t> ShmConnection::receive_some(std::span<std::byte> buffer) {
  if (!upgraded_.load(std::memory_order_acquire)) return SocketConnection::receive_some(buffer);
  if (buffer.empty()) return size_t{0};
  const auto take = [&] {
    return rings_.in->read(buffer, [this] { ring_doorbell(rings_.sender_doorbells); });
  };
  auto received = take();
  if (received && *received == 0) {
    if (closed()) return failure(0, "receiving from");
    if (!peer_ended()) return size_t{0};
    received = take();  // bytes written before the peer's end
    if (received && *received == 0) return Error{ErrorCode::closed, peer() + " closed the connection"};
  }
  if (!received) return corrupt_rings();
  tsan_acquire_from_peers();
  return *received;
}

Connection::Ready ShmConnection::ready_now(bool for_receive, bool for_send) {
  const bool ended = closed() || peer_ended();  // the next call on the connection reports the error
  const bool receive = for_receive && (ended || rings_.in->available() != size_t{0});
  const bool send = for_send && (ended || rings_.out->room() != size_t{0});
  return receive && send ? Ready::both : receive ? Ready::receive : send ? Ready::send : Ready::none;
}

Result<Connection::Ready> ShmConnection::wait(bool for_receive, bool for_send, Deadline deadline) {
  if (!upgraded_.load(std::memory_order_acquire))
    return SocketConnection::wait(for_receive, for_send, deadline);
  std::atomic<uint32_t>& reader_sleeps = rings_.in->control().reader_sleeps;
  std::atomic<uint32_t>& writer_sleeps = rings_.out->control().writer_sleeps;
  while (true) {
    if (for_receive) reader_sleeps.store(1, std::memory_order_seq_cst);
    if (for_send) writer_sleeps.store(1, std::memory_order_seq_cst);
    // The peer publishes its index before it checks the sleep flag; this side sets the flag before it checks
    // the index. So either the peer rings, or this side sees the new index.
    Ready ready = ready_now(for_receive, for_send);
    bool interrupted = false;
    if (ready == Ready::none) {
      pollfd polled[3] = {
          {for_receive || for_send ? socket() : -1, static_cast<short>(for_receive ? POLLIN : 0), 0},
          {for_send ? rings_.sender_doorbells : -1, POLLIN, 0},
          {wake(for_receive, for_send), POLLIN, 0}};
      if (::poll(polled, 3, poll_limit(deadline)) < 0 && errno != EINTR) return failure(errno, "waiting for");
      interrupted = polled[2].revents != 0 && take_interrupt();
      if ((polled[0].revents & POLLIN) != 0) {
        if (auto taken = receive_doorbells(); !taken) return taken.error();
      }
      if ((polled[1].revents & POLLIN) != 0) {
        char bells[64];
        if (::recv(rings_.sender_doorbells, bells, sizeof bells, MSG_DONTWAIT) == 0) {
          peer_gone_.store(true, std::memory_order_release);
        }
      }
      if (((polled[0].revents | polled[1].revents) & kBroken) != 0)
        peer_gone_.store(true, std::memory_order_release);
      ready = ready_now(for_receive, for_send);
    }
    if (ready != Ready::none || interrupted || passed(deadline)) {
      if (for_receive) reader_sleeps.store(0, std::memory_order_relaxed);
      if (for_send) writer_sleeps.store(0, std::memory_order_relaxed);
      return ready;
    }
  }
}

// Writing to a ring succeeds even if the peer is dead; only the sockets show that.
void ShmConnection::check_peer_alive() {
  if (!upgraded_.load(std::memory_order_acquire)) return;
  pollfd polled[2] = {{socket(), 0, 0}, {rings_.sender_doorbells, 0, 0}};
  if (::poll(polled, 2, 0) > 0 && ((polled[0].revents | polled[1].revents) & kBroken) != 0) {
    peer_gone_.store(true, std::memory_order_release);
  }
}

void ShmConnection::close() {
  if (upgraded_.load(std::memory_order_acquire) && !closed()) {
    rings_.out->control().writer_closed.store(1, std::memory_order_seq_cst);
  }
  SocketConnection::close();  // wakes waiting threads on both sides
}

int ShmConnection::release_descriptor() {
  if (rings_.sender_doorbells >= 0) ::close(std::exchange(rings_.sender_doorbells, -1));
  return SocketConnection::release_descriptor();
}

Result<void> ShmConnection::send_descriptor(int descriptor, Deadline deadline) {
  const std::byte bell{};
  return send_descriptors({&descriptor, 1}, {&bell, 1}, deadline);
}

Result<int> ShmConnection::receive_descriptor(Deadline deadline) {
  while (true) {
    if (auto taken = receive_doorbells(); !taken) return taken.error();
    if (!descriptors_.empty()) {
      const int descriptor = descriptors_.front();
      descriptors_.pop_front();
      return descriptor;
    }
    if (peer_gone_) return Error{ErrorCode::lost, "lost the connection to " + peer()};
    if (passed(deadline))
      return Error{ErrorCode::malformed, "timed out waiting for a descriptor from " + peer()};
    pollfd polled{socket(), POLLIN, 0};
    if (::poll(&polled, 1, poll_limit(deadline)) < 0 && errno != EINTR) return failure(errno, "waiting for");
  }
}

Result<std::unique_ptr<Connection>> adopt(int descriptor, const Options& options) {
  constexpr const char* kDoing = "cannot take over a connection";
  Address address;
  address.size = sizeof address.bytes;
  if (::getpeername(descriptor, reinterpret_cast<sockaddr*>(&address.bytes), &address.size) != 0) {
    const int error = errno;
    return refuse_descriptor(descriptor, error == ENOTCONN ? ErrorCode::lost : ErrorCode::invalid, kDoing,
                             error);
  }
  int type = 0;
  socklen_t size = sizeof type;
  if (address.bytes.sun_family != AF_UNIX ||
      ::getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_STREAM) {
    return refuse_descriptor(descriptor, ErrorCode::invalid, kDoing, EPROTOTYPE);
  }
  if (!prepare_socket(descriptor))
    return refuse_descriptor(descriptor, ErrorCode::unavailable, kDoing, errno);
  const int wake = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake < 0)
    return refuse_descriptor(descriptor, ErrorCode::unavailable, "cannot create an eventfd", errno);
  return std::unique_ptr<Connection>(
      std::make_unique<ShmConnection>(descriptor, wake, peer_text(descriptor, address), options));
}

}  // namespace gpupool::transport::shm
