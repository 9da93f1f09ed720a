#include "server/sockets/byte_stream.h"

#include <asio/write.hpp>

#include "server/sockets/descriptor_closer.h"
#include "server/sockets/untrusted_socket.h"

namespace gpupool::server {
namespace {

auto unless_closed(ByteStream::Then then) {
  return [then = std::move(then)](const asio::error_code& status, size_t) {
    if (status != asio::error::operation_aborted) then(!status);
  };
}

}  // namespace

ByteStream::ByteStream(asio::io_context& context, int descriptor, std::shared_ptr<transport::tls::Stream> tls)
    : stream_(context, descriptor), tls_(std::move(tls)) {}

void ByteStream::read(std::span<std::byte> buffer, Then then) {
  if (tls_) return read_tls(buffer, std::move(then));
  async_receive(stream_, buffer, unless_closed(std::move(then)));
}

void ByteStream::write(std::span<const std::byte> bytes, Then then) {
  if (tls_) return write_tls(bytes, std::move(then));
  asio::async_write(stream_, asio::buffer(bytes.data(), bytes.size()), unless_closed(std::move(then)));
}

void ByteStream::await_readable(std::function<void()> then) {
  // Bytes that OpenSSL has already decrypted do not make the socket readable again.
  if (tls_ && tls_->has_received()) return then();
  stream_.async_wait(asio::posix::stream_descriptor::wait_read,
                     [then = std::move(then)](const asio::error_code& status) {
                       if (!status) then();
                     });
}

void ByteStream::read_tls(std::span<std::byte> rest, Then then) {
  while (!rest.empty()) {
    const auto got = tls_->receive_some(rest);
    if (!got) return then(false);
    if (*got == 0)
      return await_tls([this, rest, then = std::move(then)]() mutable { read_tls(rest, std::move(then)); });
    rest = rest.subspan(*got);
  }
  then(true);
}

void ByteStream::write_tls(std::span<const std::byte> rest, Then then) {
  while (!rest.empty()) {
    const auto sent = tls_->send_some(rest);
    if (!sent) return then(false);
    if (*sent == 0)
      return await_tls([this, rest, then = std::move(then)]() mutable { write_tls(rest, std::move(then)); });
    rest = rest.subspan(*sent);
  }
  then(true);
}

void ByteStream::await_tls(std::function<void()> then) {
  using asio::posix::stream_descriptor;
  stream_.async_wait(tls_->wants_to_send() ? stream_descriptor::wait_write : stream_descriptor::wait_read,
                     [then = std::move(then)](const asio::error_code& status) {
                       if (!status) then();
                     });
}

void ByteStream::close() {
  if (stream_.is_open()) close_connection(stream_.release());
}

}  // namespace gpupool::server
