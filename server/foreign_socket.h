// Reads sockets whose other end belongs to a client or a worker, without ever taking a descriptor that was sent with the bytes (SCM_RIGHTS). One
// that is received and dropped is closed by the kernel on the reading thread, and that may wait as long as its sender likes (a TCP socket with
// SO_LINGER and unsent data, a file of a FUSE file system).
#pragma once
#include <asio/error_code.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <cstddef>
#include <functional>
#include <span>

#include "protocol/wire/result.h"

namespace gpupool::server {

// For each such socket before it is read: asks the kernel to refuse descriptors, and has urgent bytes come in their order, so that looking ahead
// and reading agree on what is next.
void refuse_descriptors(int socket);

// What is there, at most the buffer's size; never blocks. ErrorCode::limit: nothing yet; closed: the end; malformed: descriptors came with the
// next bytes or right behind them, and all stay unread; lost: the connection broke.
Result<size_t> receive_bytes(int socket, std::span<std::byte> buffer);

// Fills the buffer, then calls `then` with how much of it was filled: asio::error::eof at the end, no_permission where descriptors came,
// operation_aborted after `stream` was closed or released. One read at a time.
using Received = std::function<void(const asio::error_code& status, size_t count)>;
void async_receive(asio::posix::stream_descriptor& stream, std::span<std::byte> buffer, Received then);
// The same for at least one byte.
void async_receive_some(asio::posix::stream_descriptor& stream, std::span<std::byte> buffer, Received then);

}  // namespace gpupool::server
