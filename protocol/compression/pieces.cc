#include "protocol/compression/pieces.h"

#include <cstring>
#include <vector>

#include "protocol/compression/lz4.h"
#include "protocol/wire/peers.h"

namespace gpupool::compression {
namespace {

using transport::Clock;

}  // namespace

std::span<const std::byte> PieceSender::join_parts(std::span<const iovec> parts, size_t bytes) {
  if (parts.size() == 1) return {static_cast<const std::byte*>(parts[0].iov_base), bytes};
  const std::span<std::byte> joined = joined_.take(bytes);
  size_t at = 0;
  for (const iovec& part : parts) {
    std::memcpy(joined.data() + at, part.iov_base, part.iov_len);
    at += part.iov_len;
  }
  return joined.first(at);
}

Result<void> PieceSender::send(transport::Connection& connection, wire::BulkHeader header,
                               std::span<const iovec> parts, std::span<const std::byte> lent) {
  if (resumable_) resumable_->lend(lent);
  return send(connection, header, parts, Lifetime::after_return);
}

Result<void> PieceSender::send_last(transport::Connection& connection, wire::BulkHeader header,
                                    std::span<const iovec> parts) {
  if (resumable_) resumable_->lend({});
  return send(connection, header, parts, Lifetime::until_received);
}

Result<void> PieceSender::send(transport::Connection& connection, wire::BulkHeader header,
                               std::span<const iovec> parts, Lifetime lifetime) {
  const auto start = Clock::now();
  Clock::duration blocked{};
  const size_t raw = header.length;
  const auto next = governor_.next();
  size_t packed = 0;
  if (next == Governor::Next::plain_with_sample) {
    // Sample the first part alone, which saves joining the parts.
    const size_t bytes = std::min<size_t>(parts[0].iov_len, kSampleBytes);
    const size_t sample =
        pack({static_cast<const std::byte*>(parts[0].iov_base), bytes}, packed_.take(bytes));
    governor_.sampled(bytes, sample != 0 ? sample : bytes, Clock::now() - start);
  } else if (next == Governor::Next::compressed) {
    packed = pack(join_parts(parts, raw), packed_.take(raw - 1));
  }
  if (packed != 0) {
    header.flags |= wire::kBulkCompressed;
    header.length = static_cast<uint32_t>(packed);
    sent_ += sizeof header + packed;
    const iovec both[] = {{&header, sizeof header}, {packed_.data(), packed}};
    auto sent = send_all(connection, both, &blocked);
    governor_.sent_compressed(raw, packed, Clock::now() - start, blocked);
    return sent;
  }
  sent_ += sizeof header + raw;
  std::vector<iovec> all{{&header, sizeof header}};
  all.insert(all.end(), parts.begin(), parts.end());
  std::byte last{};
  std::span<const std::byte> apart;
  if (resumable_ && lifetime == Lifetime::until_received) {
    iovec& end = all.back();
    last = static_cast<const std::byte*>(end.iov_base)[--end.iov_len];
    apart = {&last, 1};
  }
  auto sent = send_all(connection, all, &blocked, apart);
  if (next == Governor::Next::compressed)
    governor_.sent_compressed(raw, raw, Clock::now() - start, blocked);
  else
    governor_.sent_plain(raw, Clock::now() - start, blocked);
  return sent;
}

// A resumable connection copies bytes after it has sent them. `last` is sent when it has copied all parts, so
// that it does not read them any more when the peer has everything.
Result<void> PieceSender::send_all(transport::Connection& connection, std::span<const iovec> parts,
                                   Clock::duration* blocked, std::span<const std::byte> last) {
  const std::lock_guard lock(sending_);
  if (unsent_ != 0) {
    const iovec rest{reinterpret_cast<std::byte*>(&acknowledgement_) + sizeof acknowledgement_ - unsent_,
                     unsent_};
    unsent_ = 0;
    if (auto sent = transport::send_all(*resumable_, {&rest, 1}, {}, blocked); !sent) return sent;
  }
  auto sent = transport::send_all(connection, parts, {}, blocked);
  if (sent && !last.empty()) {
    const iovec rest{const_cast<std::byte*>(last.data()), last.size()};
    sent = transport::send_all(connection, {&rest, 1}, {}, blocked);
  }
  if (sent) acknowledge_locked();
  return sent;
}

void PieceSender::acknowledge() {
  const std::unique_lock lock(sending_, std::try_to_lock);
  if (lock) acknowledge_locked();
}

// Must not wait for room: after a break the room may come only when the receiving thread has received.
void PieceSender::acknowledge_locked() {
  if (!resumable_) return;
  if (unsent_ != 0 && !send_acknowledgement()) return;
  if (!resumable_->acknowledgement_due()) return;
  acknowledgement_ = {.flags = wire::kBulkAcknowledge, .offset = resumable_->tell_received()};
  unsent_ = sizeof acknowledgement_;
  send_acknowledgement();
}

bool PieceSender::send_acknowledgement() {
  auto* const end = reinterpret_cast<std::byte*>(&acknowledgement_) + sizeof acknowledgement_;
  const iovec rest{end - unsent_, unsent_};
  const auto sent = resumable_->send_some({&rest, 1});
  if (sent) unsent_ -= *sent;  // a failure is reported by the next piece
  return unsent_ == 0;
}

bool PieceSender::acknowledged(uint64_t position) {
  if (resumable_) resumable_->acknowledge(position);
  return resumable_ != nullptr;
}

Result<wire::BulkHeader> PieceReader::next(bool copy_keys) {
  if (sender_) sender_->acknowledge();
  const auto receive_header = [this] {
    return transport::receive_exact(connection_, {reinterpret_cast<std::byte*>(&header_), sizeof header_},
                                    {});
  };
  auto got = receive_header();
  while (got && sender_ && header_.flags == wire::kBulkAcknowledge && header_.length == 0 &&
         sender_->acknowledged(header_.offset)) {
    got = receive_header();
  }
  if (!got) return got.error();
  if (copy_keys && header_.flags == wire::kBulkCopyKey && header_.length == sizeof(wire::CopyKey))
    return header_;
  if (header_.length == 0 || header_.length > wire::kBulkChunkBytes ||
      (header_.flags & ~wire::kBulkCompressed) != 0) {
    return Error{ErrorCode::malformed, "a piece of a bulk copy has an invalid header"};
  }
  return header_;
}

Result<std::span<const std::byte>> PieceReader::receive_packed() {
  const std::span packed = packed_.take(header_.length);
  if (auto received = transport::receive_exact(connection_, packed, {}); !received) return received.error();
  return std::span<const std::byte>(packed);
}

Result<void> PieceReader::read(std::span<std::byte> piece) {
  if (!compressed()) return transport::receive_exact(connection_, piece, {});
  const auto packed = receive_packed();
  if (!packed) return packed.error();
  if (!unpack(*packed, piece))
    return Error{ErrorCode::malformed, "a compressed piece of a bulk copy does not decompress to its size"};
  return {};
}

Result<void> PieceReader::skip() {
  const auto packed = receive_packed();
  if (!packed) return packed.error();
  return {};
}

}  // namespace gpupool::compression
