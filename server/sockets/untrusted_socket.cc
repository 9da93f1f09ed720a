#include "server/sockets/untrusted_socket.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <asio/error.hpp>
#include <asio/post.hpp>
#include <cerrno>
#include <system_error>

#include "protocol/transport/socket/descriptors.h"

namespace gpupool::server {
namespace {

template <class Receive>
ssize_t uninterrupted(Receive receive) {
  ssize_t got = 0;
  while ((got = receive()) < 0 && errno == EINTR) {
  }
  return got;
}

Error failure(int error) {
  if (error == EAGAIN || error == EWOULDBLOCK) return {ErrorCode::limit, "nothing to read yet"};
  return {ErrorCode::lost, std::generic_category().message(error)};
}

asio::error_code status_of(ErrorCode code) {
  if (code == ErrorCode::closed) return asio::error::eof;
  return code == ErrorCode::malformed ? asio::error::no_permission : asio::error::connection_reset;
}

void receive(asio::posix::stream_descriptor& stream, std::span<std::byte> buffer, size_t count, size_t least,
             Received then) {
  stream.async_wait(
      asio::posix::stream_descriptor::wait_read,
      [&stream, buffer, count, least, then = std::move(then)](const asio::error_code& status) mutable {
        if (status) return then(status, count);
        const auto got = receive_bytes(stream.native_handle(), buffer.subspan(count));
        if (!got && got.error().code != ErrorCode::limit) return then(status_of(got.error().code), count);
        if (got) count += *got;
        if (count >= least) return then({}, count);
        receive(stream, buffer, count, least, std::move(then));
      });
}

}  // namespace

void refuse_descriptors(int socket) {
  transport::allow_descriptors(socket, false);
  const int on = 1;
  (void)::setsockopt(socket, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on);
}

Result<size_t> receive_bytes(int socket, std::span<std::byte> buffer) {
  if (buffer.empty()) return size_t{0};
  // Without room for descriptors, the kernel only sets MSG_CTRUNC. With MSG_PEEK they stay in the socket,
  // like the bytes.
  iovec part{buffer.data(), buffer.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  const ssize_t there = uninterrupted([&] { return ::recvmsg(socket, &message, MSG_PEEK | MSG_DONTWAIT); });
  if (there < 0) return failure(errno);
  if ((message.msg_flags & MSG_CTRUNC) != 0)
    return Error{ErrorCode::malformed, "descriptors came with the bytes"};
  if (there == 0) return Error{ErrorCode::closed, "the end"};
  const ssize_t got =
      uninterrupted([&] { return ::recv(socket, buffer.data(), static_cast<size_t>(there), MSG_DONTWAIT); });
  if (got < 0) return failure(errno);
  return static_cast<size_t>(got);
}

void async_receive(asio::posix::stream_descriptor& stream, std::span<std::byte> buffer, Received then) {
  if (buffer.empty()) {
    asio::post(stream.get_executor(), [&stream, then = std::move(then)] {
      then(stream.is_open() ? asio::error_code() : asio::error_code(asio::error::operation_aborted), 0);
    });
    return;
  }
  receive(stream, buffer, 0, buffer.size(), std::move(then));
}

void async_receive_some(asio::posix::stream_descriptor& stream, std::span<std::byte> buffer, Received then) {
  receive(stream, buffer, 0, 1, std::move(then));
}

}  // namespace gpupool::server
