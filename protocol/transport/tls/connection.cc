#include "protocol/transport/tls/connection.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "protocol/transport/deadline.h"
#include "protocol/transport/gather.h"
#include "protocol/transport/tcp/listener.h"

namespace gpupool::transport::tls {
namespace {

// Bytes per call; then the other direction gets the lock.
constexpr size_t kMostAtOnce = 16 * Stream::kMostBytes;

// Appends the list's bytes, without the first `skip`, until `out` has `most` bytes.
void gather(std::span<const iovec> list, size_t skip, size_t most, std::vector<std::byte>& out) {
  for (const iovec& part : list) {
    const size_t skipped = std::min(skip, part.iov_len);
    skip -= skipped;
    const size_t count = std::min(part.iov_len - skipped, most - out.size());
    const auto* const first = static_cast<const std::byte*>(part.iov_base) + skipped;
    if (count != 0) out.insert(out.end(), first, first + count);
    if (out.size() == most) return;
  }
}

}  // namespace

TlsConnection::TlsConnection(int socket, int wake, std::string peer, const Options& options,
                             std::unique_ptr<Stream> stream, bool with_worker)
    : TcpConnection(socket, wake, std::move(peer), options),
      stream_(std::move(stream)),
      with_worker_(with_worker) {}

Error TlsConnection::name_peer(const Error& error) const {
  if (closed()) return failure(0, "using");
  if (error.code == ErrorCode::closed) return {ErrorCode::closed, peer() + " closed the connection"};
  return {error.code, peer() + ": " + error.message};
}

Result<size_t> TlsConnection::send_some(std::span<const iovec> buffers) {
  const size_t whole = size_of(buffers);
  size_t accepted = std::min(already_sent_, whole);
  already_sent_ -= accepted;
  while (accepted < std::min(whole, kMostAtOnce)) {
    if (partial_record_.empty()) gather(buffers, accepted, Stream::kMostBytes, partial_record_);
    Result<size_t> sent = size_t{0};
    {
      const std::lock_guard lock(mutex_);
      sent = stream_->send_some(partial_record_);
    }
    if (!sent) return name_peer(sent.error());
    if (*sent == 0) break;
    partial_record_.erase(partial_record_.begin(),
                          partial_record_.begin() + static_cast<std::ptrdiff_t>(*sent));
    const size_t taken = std::min(*sent, whole - accepted);
    accepted += taken;
    already_sent_ += *sent - taken;
  }
  return accepted;
}

// Replaces poold's stream, which poold has ended, by the worker's.
Result<void> TlsConnection::switch_to_worker_stream() {
  const auto secret = stream_->secret();
  if (!secret) return secret.error();
  auto next = Stream::with_psk(Side::client, socket(), *secret);
  if (!next) return next.error();
  stream_ = std::move(*next);
  with_worker_ = true;
  return {};
}

Result<size_t> TlsConnection::receive_once(std::span<std::byte> buffer) {
  const std::lock_guard lock(mutex_);
  auto received = stream_->receive_some(buffer);
  if (received || received.error().code != ErrorCode::closed || with_worker_) return received;
  if (!stream_->is_ended())
    return Error{ErrorCode::lost, "the server closed the connection during the hello"};
  if (auto switched = switch_to_worker_stream(); !switched) return switched.error();
  return stream_->receive_some(buffer);
}

Result<size_t> TlsConnection::receive_some(std::span<std::byte> buffer) {
  size_t total = 0;
  while (!ended_ && total < std::min(buffer.size(), kMostAtOnce)) {
    const auto received = receive_once(buffer.subspan(total));
    if (!received) ended_ = received.error();
    if (!received || *received == 0) break;
    total += *received;
  }
  if (total == 0 && ended_) return name_peer(*ended_);
  return total;
}

Result<Connection::Ready> TlsConnection::wait(bool for_receive, bool for_send, Deadline deadline) {
  bool opening = false, to_send = false, has_received = false;
  {
    const std::lock_guard lock(mutex_);
    opening = !stream_->is_open();
    to_send = stream_->wants_to_send();
    has_received = stream_->has_received() || (for_receive && ended_);
  }
  if (for_receive && has_received) {
    if (!for_send) return Ready::receive;
    const auto room = TcpConnection::wait(false, true, Clock::now());
    return room && *room == Ready::send ? Ready::both : Ready::receive;
  }
  if (!opening || (!for_receive && !for_send)) return TcpConnection::wait(for_receive, for_send, deadline);
  const auto ready = TcpConnection::wait(!to_send, to_send, deadline);
  if (!ready || *ready == Ready::none) return ready;
  return for_receive && for_send ? Ready::both : for_receive ? Ready::receive : Ready::send;
}

void TlsConnection::close() {
  if (!closed()) {
    const std::lock_guard lock(mutex_);
    stream_->end();
  }
  TcpConnection::close();
}

// Waits for the switch to the worker's stream. As a rule the hello exchange has done it already.
Result<void> TlsConnection::upgrade(Side, Deadline deadline) {
  while (true) {
    Result<bool> open = false;
    bool over = false;
    {
      const std::lock_guard lock(mutex_);
      open = stream_->open();
      over = with_worker_;
    }
    if (!open) return name_peer(open.error());
    if (*open && over) return {};
    if (*open) {
      std::byte byte{};
      const auto received = receive_once({&byte, 1});
      if (!received) return name_peer(received.error());
      if (*received != 0)
        return Error{ErrorCode::malformed,
                     peer() + " sent data before it handed the connection over to a worker"};
      const std::lock_guard lock(mutex_);
      if (with_worker_) continue;
    }
    const auto ready = wait(true, false, deadline);
    if (!ready) return ready.error();
    if (*ready == Ready::none && passed(deadline))
      return Error{ErrorCode::lost, "timed out waiting for " + peer()};
  }
}

std::string TlsConnection::carrier() const {
  const std::lock_guard lock(mutex_);
  return "tls (" + stream_->cipher() + ")";
}

namespace {

// Moves the socket of a tcp connection into a TlsConnection; `make` makes its stream.
template <class Make>
Result<std::unique_ptr<Connection>> wrap(Connection& plain, const Options& options, bool with_worker,
                                         Make make) {
  const std::string peer = plain.peer();
  const int socket = plain.release_descriptor();
  auto stream = make(socket);
  const int wake = stream ? ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1;
  if (wake < 0) {
    const int error = errno;
    Error refused = refuse_descriptor(socket, ErrorCode::unavailable, "cannot create an eventfd", error);
    return stream ? refused : stream.error();
  }
  return std::unique_ptr<Connection>(
      std::make_unique<TlsConnection>(socket, wake, peer, options, std::move(*stream), with_worker));
}

}  // namespace

Result<std::unique_ptr<Connection>> connect(const Endpoint& endpoint, const Options& options) {
  Options plain_options = options;
  plain_options.prefer_shared_memory = false;  // a tls:// address asks for TLS, also on this host
  auto plain = tcp::connect(endpoint, plain_options);
  if (!plain) return plain;
  auto context = Context::client(options.tls);
  if (!context)
    return Error{context.error().code,
                 "cannot connect to " + endpoint.text() + ": " + context.error().message};
  return wrap(**plain, options, false,
              [&](int socket) { return Stream::client(std::move(*context), socket, endpoint.host); });
}

Result<std::unique_ptr<Connection>> adopt(int descriptor, const Options& options) {
  auto plain = tcp::adopt(descriptor, options);
  if (!plain) return plain;
  Secret secret{};
  if (options.tls.secret.size() != secret.size()) {
    return Error{ErrorCode::invalid, "cannot take over a TLS connection without its secret of 32 bytes"};
  }
  std::memcpy(secret.data(), options.tls.secret.data(), secret.size());
  return wrap(**plain, options, true,
              [&](int socket) { return Stream::with_psk(options.tls.side, socket, secret); });
}

Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint, const Options& options) {
  return tcp::listen_for(endpoint, options, tcp::adopt);
}

}  // namespace gpupool::transport::tls
