// Sends and receives the pieces of bulk copies on a connection (wire::BulkHeader), compressed where that is
// faster. Used by the bulk connections of the client library and of workers. A PieceSender belongs to the
// connection's sending thread, a PieceReader to its receiving thread. Fails as the connection does, or with
// ErrorCode::malformed.
#pragma once
#include <bit>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "protocol/compression/governor.h"
#include "protocol/transport/resume/resumable_connection.h"
#include "protocol/transport/transport.h"
#include "protocol/wire/frame.h"

namespace gpupool::compression {

// Memory that grows with the longest piece so far.
class PieceBuffer {
 public:
  // Invalidates the span of an earlier call if this one needs more.
  std::span<std::byte> take(size_t bytes) {
    if (bytes > size_) {
      size_ = std::bit_ceil(bytes);
      memory_ = std::make_unique_for_overwrite<std::byte[]>(size_);
    }
    return {memory_.get(), bytes};
  }
  std::byte* data() const { return memory_.get(); }

 private:
  std::unique_ptr<std::byte[]> memory_;
  size_t size_ = 0;
};

class PieceSender {
 public:
  // `resumable`: the connection below those that are passed to send(), if the peer may resume it.
  explicit PieceSender(Policy policy, transport::ResumableConnection* resumable = nullptr)
      : governor_(policy), resumable_(resumable) {}
  // Sends one piece. `header` has the uncompressed length, `parts` the piece's bytes, at most
  // kBulkChunkBytes. Blocks as send_all() does. `lent`: memory around the parts that stays as it is until
  // take_back(), which spares a connection that the peer can resume a copy of them.
  Result<void> send(transport::Connection& connection, wire::BulkHeader header, std::span<const iovec> parts,
                    std::span<const std::byte> lent = {});
  // Sends a piece whose memory may be freed or change as soon as the peer has received all of it.
  Result<void> send_last(transport::Connection& connection, wire::BulkHeader header,
                         std::span<const iovec> parts);
  // For the connection's receiving thread: tells the peer how much has arrived, if that is due. Never blocks;
  // what the connection does not accept now is sent by the next call, or before the next piece. While a piece
  // is being sent, its sender tells the peer after it.
  void acknowledge();
  // The peer has acknowledged this many bytes. False: the connection cannot be resumed.
  bool acknowledged(uint64_t position);
  // Returns the bytes sent since the last call, headers included, as they went over the connection.
  uint64_t take_sent() { return std::exchange(sent_, 0); }

 private:
  enum class Lifetime { after_return, until_received };  // of a piece's memory
  Result<void> send(transport::Connection& connection, wire::BulkHeader header, std::span<const iovec> parts,
                    Lifetime lifetime);
  Result<void> send_all(transport::Connection& connection, std::span<const iovec> parts,
                        transport::Clock::duration* blocked, std::span<const std::byte> last = {});
  // Call with sending_ held.
  void acknowledge_locked();
  bool send_acknowledgement();  // false: some of it is unsent
  std::span<const std::byte> join_parts(std::span<const iovec> parts, size_t bytes);

  Governor governor_;
  transport::ResumableConnection* const resumable_;
  std::mutex sending_;  // one header and what belongs to it at a time
  wire::BulkHeader acknowledgement_;
  size_t unsent_ = 0;  // bytes of acknowledgement_ that were not accepted yet
  uint64_t sent_ = 0;
  PieceBuffer packed_, joined_;
};

class PieceReader {
 public:
  // `sender`: of the same connection, if the peer may resume it; acknowledges what is received.
  explicit PieceReader(transport::Connection& connection, PieceSender* sender = nullptr)
      : connection_(connection), sender_(sender) {}
  // Receives the next piece's header. The caller then calls read() or skip() once. ErrorCode::closed: the
  // peer sends no more pieces. With `copy_keys` the header may also announce a copy's key
  // (wire::kBulkCopyKey), which read() receives like a piece.
  Result<wire::BulkHeader> next(bool copy_keys = false);
  // True if the header's length is possible for a piece of `piece_bytes`.
  bool fits(uint64_t piece_bytes) const {
    return compressed() ? header_.length < piece_bytes : header_.length == piece_bytes;
  }
  // Receives the piece's bytes into `piece`, which has exactly the piece's size. ErrorCode::malformed: the
  // block does not decompress to that size.
  Result<void> read(std::span<std::byte> piece);
  // Receives and discards the piece's bytes.
  Result<void> skip();

 private:
  bool compressed() const { return (header_.flags & wire::kBulkCompressed) != 0; }
  Result<std::span<const std::byte>> receive_packed();

  transport::Connection& connection_;
  PieceSender* const sender_;
  wire::BulkHeader header_;
  PieceBuffer packed_;
};

}  // namespace gpupool::compression
