// The part of Receiver that receives the data of copies from the device, which go from the connection
// straight to the program's memory.
#include <algorithm>
#include <cstring>

#include "client/process/trace.h"
#include "client/session/receiver.h"
#include "protocol/wire/rows.h"

namespace gpupool::client {

using transport::Clock;
using transport::Connection;

bool Receiver::receive_data(const wire::MessageHeader& header) {
  wire::DeviceData head;
  if (header.length < sizeof head) {
    report(ErrorCode::malformed, "protocol error: data without an offset");
    return false;
  }
  if (!take(reinterpret_cast<std::byte*>(&head), sizeof head)) return false;
  const uint64_t length = header.length - sizeof head;
  Transfer transfer;
  {
    Lock lock(mutex_);
    const auto found = transfers_.find(header.sequence);
    if (found != transfers_.end()) transfer = found->second;
  }
  if (trace::on()) [[unlikely]]
    trace::count_received(static_cast<uint16_t>(wire::Command::copy_from_device),
                          sizeof header + header.length, hooks_.server);
  const uint64_t total = transfer.width * transfer.rows;
  if (!transfer.destination || head.offset > total || length > total - head.offset) {
    report(ErrorCode::malformed, "protocol error: data outside any copy");
    return false;
  }
  return scatter(transfer, head.offset, length);
}

// Copies packed bytes [offset, offset + length) of the transfer from the socket to their rows.
bool Receiver::scatter(const Transfer& transfer, uint64_t offset, uint64_t length) {
  return wire::for_each_row(
      transfer.width, transfer.pitch, offset, length,
      [&](uint64_t to, uint64_t, uint64_t size) { return take(transfer.destination + to, size); });
}

bool Receiver::take(std::byte* to, uint64_t length) {
  const size_t buffered = std::min<uint64_t>(length, end_ - begin_);
  std::memcpy(to, buffer_.data() + begin_, buffered);
  begin_ += buffered;
  to += buffered;
  length -= buffered;
  // Many small rows: read ahead into the buffer instead of making one system call for each.
  while (length && length < kBufferBytes / 4) {
    if (!receive_some() || (begin_ == end_ && !wait_for_data())) return false;
    const size_t piece = std::min<size_t>(length, end_ - begin_);
    std::memcpy(to, buffer_.data() + begin_, piece);
    begin_ += piece;
    to += piece;
    length -= piece;
  }
  while (length) {
    const auto received = connection_.receive_some({to, length});
    if (!received) {
      report(received.error().code, received.error().message);
      return false;
    }
    if (*received == 0 && !wait_for_data()) return false;
    if (*received != 0) note_received();
    to += *received;
    length -= *received;
  }
  return true;
}

// Waits for the rest of a message. A server that does not send it is dead.
bool Receiver::wait_for_data() {
  const auto deadline = Clock::now() + dead_peer_timeout_;
  while (true) {
    const auto ready = connection_.wait(true, false, deadline);
    if (ready && *ready != Connection::Ready::none) return true;
    if (ready && Clock::now() < deadline) continue;  // an interrupt
    const Error lost = ready ? Error{ErrorCode::lost, "a copy from the device timed out"} : ready.error();
    if (ready && connection_.break_carrier(lost)) return true;
    report(lost.code, lost.message);
    return false;
  }
}

}  // namespace gpupool::client
