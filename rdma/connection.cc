#include "rdma/connection.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "protocol/transport/deadline.h"
#include "protocol/transport/rdma_backend.h"

namespace gpupool::transport::rdma {
namespace {

// How long close() waits for the peer's device to acknowledge the last message. A live peer does so at once.
constexpr std::chrono::milliseconds kCloseTimeout{500};

}  // namespace

RdmaConnection::RdmaConnection(int socket, int wake, std::string peer, const Options& options)
    : TcpConnection(socket, wake, std::move(peer), options),
      options_(options.rdma),
      bulk_(options.bulk),
      session_(std::dynamic_pointer_cast<Resources>(options.session)),
      domain_(session_ ? session_->domain : nullptr) {}

// Not close(): the session may go on with another connection.
RdmaConnection::~RdmaConnection() {
  end_stream();
  if (transfers_) transfers_->drop(this);
}

Error RdmaConnection::name_peer(Error error) const {
  return {error.code, peer() + ": " + error.message};
}

Result<size_t> RdmaConnection::send_some(std::span<const iovec> buffers) {
  if (!upgraded_.load(std::memory_order_acquire)) return TcpConnection::send_some(buffers);
  auto sent = stream_->send_some(buffers);
  if (!sent) return name_peer(sent.error());
  if (*sent == 0 && peer_.load(std::memory_order_acquire) != Peer::there) {
    const Error why = closed_error();
    return Error{ErrorCode::lost,
                 why.code == ErrorCode::lost ? why.message : "lost the connection to " + peer()};
  }
  return sent;
}

Result<size_t> RdmaConnection::receive_some(std::span<std::byte> buffer) {
  if (!upgraded_.load(std::memory_order_acquire)) return TcpConnection::receive_some(buffer);
  // Checked before receiving, so that all data from before the peer's end has arrived.
  const bool over = peer_.load(std::memory_order_acquire) != Peer::there;
  auto received = stream_->receive_some(buffer);
  if (!received) return name_peer(received.error());
  if (*received == 0 && !buffer.empty() && over) return closed_error();
  return received;
}

// After upgrade() the socket carries no data, so it becomes readable only at its end.
bool RdmaConnection::peer_ended() {
  char byte = 0;
  while (true) {
    const ssize_t received = ::recv(socket(), &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    if (received < 0 && errno == EINTR) continue;
    if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    Peer there = Peer::there;  // keep what break_now() has found
    peer_.compare_exchange_strong(there, received == 0 ? Peer::closed : Peer::lost);
    return true;
  }
}

// Makes this side see a broken connection, and the peer an end. Takes no lock that a caller may hold.
void RdmaConnection::break_now(const Error& why) {
  {
    const std::lock_guard lock(why_mutex_);
    if (why_lost_.empty()) why_lost_ = why.message;
  }
  Peer there = Peer::there;
  peer_.compare_exchange_strong(there, Peer::lost);
  ::shutdown(socket(), SHUT_RDWR);
}

bool RdmaConnection::wait_for_end() {
  return TcpConnection::wait_for_end() && peer_.load(std::memory_order_acquire) != Peer::lost;
}

Error RdmaConnection::closed_error() const {
  const bool closed = peer_.load(std::memory_order_acquire) == Peer::closed;
  const std::lock_guard lock(why_mutex_);
  if (!closed && !why_lost_.empty()) return {ErrorCode::lost, peer() + ": " + why_lost_};
  return {closed ? ErrorCode::closed : ErrorCode::lost,
          closed ? peer() + " closed the connection" : "lost the connection to " + peer()};
}

Result<Connection::Ready> RdmaConnection::wait(bool for_receive, bool for_send, Deadline deadline) {
  if (!upgraded_.load(std::memory_order_acquire)) return TcpConnection::wait(for_receive, for_send, deadline);
  const bool wishes = for_receive || for_send;
  while (true) {
    const auto ready = wishes ? stream_->prepare_to_wait(for_receive, for_send) : Ready::none;
    if (ready != Ready::none) return ready;
    // The next call reports it.
    if (wishes && (peer_.load(std::memory_order_acquire) != Peer::there || closed())) {
      stream_->stop_waiting(for_receive, for_send);
      return for_receive && for_send ? Ready::both : for_receive ? Ready::receive : Ready::send;
    }
    pollfd polled[6] = {{wake(for_receive, for_send), POLLIN, 0},
                        {wishes ? stream_->events_descriptor() : -1, POLLIN, 0},
                        {wishes ? socket() : -1, POLLIN, 0},
                        {for_receive ? stream_->wake_descriptor(true) : -1, POLLIN, 0},
                        {for_send ? stream_->wake_descriptor(false) : -1, POLLIN, 0},
                        {wishes ? domain_->events_descriptor() : -1, POLLIN, 0}};
    const int count = ::poll(polled, std::size(polled), poll_limit(deadline));
    const int error = errno;
    if (wishes) stream_->stop_waiting(for_receive, for_send);
    if (count < 0 && error != EINTR) return failure(error, "waiting for");
    if (count > 0 && polled[2].revents != 0) peer_ended();
    const bool event = wishes && domain_->failures() != failures_before_;
    if (event || (count > 0 && polled[5].revents != 0)) {
      if (auto good = check_device(); !good) return name_peer(good.error());
    }
    const bool interrupted = count > 0 && polled[0].revents != 0 && take_interrupt();
    if (interrupted || passed(deadline)) {
      return wishes ? stream_->look(for_receive, for_send) : Ready::none;
    }
  }
}

Result<void> RdmaConnection::check_device() {
  if (auto good = domain_->take_events(); !good) return good;
  if (domain_->failures() == failures_before_) return {};
  return Error{ErrorCode::lost, domain_->device().name + " reports that a queue pair of the session failed"};
}

void RdmaConnection::end_stream() {
  if (upgraded_.load(std::memory_order_acquire) && !closed() && !peer_ended())
    stream_->end(Clock::now() + kCloseTimeout);
}

void RdmaConnection::close() {
  end_stream();
  if (transfers_) transfers_->close();
  TcpConnection::close();
}

void RdmaConnection::abandon() {
  if (closed()) return;
  if (transfers_) transfers_->drop(this);
  if (upgraded_.load(std::memory_order_acquire)) stream_->abandon();
  TcpConnection::close();
}

void RdmaConnection::expect_replacement() {
  if (transfers_) transfers_->keep();
}

Result<std::unique_ptr<Connection>> adopt(int descriptor, const Options& options) {
  auto plain = tcp::adopt(descriptor, options);
  if (!plain) return plain.error();
  const std::string peer = (*plain)->peer();
  const int socket = (*plain)->release_descriptor();
  const int wake = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake < 0) return refuse_descriptor(socket, ErrorCode::unavailable, "cannot create an eventfd", errno);
  return std::unique_ptr<Connection>(std::make_unique<RdmaConnection>(socket, wake, peer, options));
}

}  // namespace gpupool::transport::rdma
