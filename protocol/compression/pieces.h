// Pieces of bulk copies on a connection, compressed where that pays (wire::BulkHeader). A PieceSender and a PieceReader
// each belong to the one thread that sends, or receives, on their connection.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "protocol/compression/governor.h"
#include "protocol/transport/transport.h"
#include "protocol/wire/frame.h"

namespace gpupool::compression {

class PieceSender {
 public:
  explicit PieceSender(Policy policy) : governor_(policy) {}
  // `header` with the uncompressed length; `parts`: its bytes, at most kBulkChunkBytes. Blocks as send_all() does.
  Result<void> send(transport::Connection& connection, wire::BulkHeader header, std::span<const iovec> parts);
  // Bytes of what it was given to send since the last call, as they went over the connection.
  uint64_t take_sent() { return std::exchange(sent_, 0); }

 private:
  std::span<const std::byte> in_one(std::span<const iovec> parts, size_t bytes);
  std::span<std::byte> room();

  Governor governor_;
  uint64_t sent_ = 0;
  std::unique_ptr<std::byte[]> packed_;  // both made when first wanted
  std::unique_ptr<std::byte[]> joined_;
};

class PieceReader {
 public:
  explicit PieceReader(transport::Connection& connection) : connection_(connection) {}
  // The next piece's header; its bytes are then read once. ErrorCode::closed: no piece comes any more. With `copy_keys` it may be that of
  // a copy's key (wire::kBulkCopyKey), which read() takes as a piece.
  Result<wire::BulkHeader> next(bool copy_keys = false);
  // Is the header's length possible for a piece of this size?
  bool fits(uint64_t piece_bytes) const {
    return compressed() ? header_.length < piece_bytes : header_.length == piece_bytes;
  }
  // Into exactly the piece's memory. Malformed: these are not its bytes.
  Result<void> read(std::span<std::byte> piece);
  // To nowhere.
  Result<void> skip();

 private:
  bool compressed() const { return (header_.flags & wire::kBulkCompressed) != 0; }
  Result<std::span<const std::byte>> receive_packed();

  transport::Connection& connection_;
  wire::BulkHeader header_;
  std::unique_ptr<std::byte[]> packed_;  // made when first wanted
};

}  // namespace gpupool::compression
