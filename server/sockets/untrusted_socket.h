// Reads sockets whose other end belongs to a client or a worker, without ever receiving a descriptor sent
// with the data (SCM_RIGHTS). The kernel closes a received and dropped descriptor on the reading thread,
// which its sender can make block (a TCP socket with SO_LINGER and unsent data, a file of a FUSE file
// system). poold uses it, on its thread.
#pragma once
#include <asio/error_code.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <cstddef>
#include <functional>
#include <span>

#include "common/result.h"

namespace gpupool::server {

// Call this before reading such a socket. Asks the kernel to refuse descriptors (Linux 6.16), and delivers
// urgent bytes in order, so that peeking and reading agree on the next bytes.
void refuse_descriptors(int socket);

// Returns the bytes available, at most the buffer's size; never blocks. ErrorCode::limit: nothing yet;
// closed: end of the stream; malformed: descriptors came with the next bytes or right behind them, and all
// stay unread; lost: the connection broke.
Result<size_t> receive_bytes(int socket, std::span<std::byte> buffer);

// Fills the buffer, then calls `then` with the number of bytes received. asio::error::eof: end of the stream;
// no_permission: descriptors came; operation_aborted: `stream` was closed or released. One read at a time.
using Received = std::function<void(const asio::error_code& status, size_t count)>;
void async_receive(asio::posix::stream_descriptor& stream, std::span<std::byte> buffer, Received then);
// Like async_receive(), but calls `then` after at least one byte.
void async_receive_some(asio::posix::stream_descriptor& stream, std::span<std::byte> buffer, Received then);

}  // namespace gpupool::server
