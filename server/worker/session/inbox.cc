#include "server/worker/session/inbox.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "server/worker/session/thread_activity.h"

namespace gpupool::worker {
namespace {

constexpr size_t kBufferBytes = 64 * 1024;
// Added to the connection's polling time: a client that calls in a loop needs some time between a reply and
// its next call.
constexpr std::chrono::microseconds kBetweenCalls{10};

}  // namespace

Inbox::Inbox(transport::Connection& connection, std::atomic<uint64_t>& bytes, Idle idle)
    : connection_(connection),
      bytes_(bytes),
      idle_(std::move(idle)),
      buffer_(std::make_unique_for_overwrite<std::byte[]>(kBufferBytes)),
      capacity_(kBufferBytes) {}

Result<size_t> Inbox::receive_some(std::span<std::byte> destination) {
  auto received = connection_.receive_some(destination);
  if (received && *received != 0) bytes_.fetch_add(*received, std::memory_order_relaxed);
  return received;
}

Result<size_t> Inbox::receive(std::span<std::byte> destination) {
  auto received = receive_some(destination);
  if (!received || *received != 0) return received;
  if (recently_busy_) {
    const auto patience = connection_.patience();
    const auto stop = transport::Clock::now() + patience.time + kBetweenCalls;
    do {
      sched_yield();
      for (unsigned look = 0; look < patience.polls_per_yield; ++look) {
        received = receive_some(destination);
        if (!received || *received != 0) return received;
      }
    } while (transport::Clock::now() < stop);
  }
  recently_busy_ = false;
  const Waiting waiting("the client's data");
  while (true) {
    const auto longest = idle_();
    const transport::Deadline deadline =
        longest ? transport::Deadline(transport::Clock::now() + *longest) : std::nullopt;
    const auto ready = connection_.wait(true, false, deadline);
    if (!ready) return ready.error();
    received = receive_some(destination);
    if (!received || *received != 0) break;
  }
  recently_busy_ = true;
  return received;
}

Result<void> Inbox::fill(size_t wanted) {
  if (end_ - begin_ >= wanted) return {};
  if (wanted > capacity_) {  // bounded: next() rejects bodies above kMaxBodyBytes
    auto larger = std::make_unique_for_overwrite<std::byte[]>(wanted);
    std::memcpy(larger.get(), buffer_.get() + begin_, end_ - begin_);
    buffer_ = std::move(larger);
    capacity_ = wanted;
    end_ -= begin_;
    begin_ = 0;
  } else if (begin_ == end_) {
    begin_ = end_ = 0;
  } else if (begin_ + wanted > capacity_) {
    std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  while (end_ - begin_ < wanted) {
    const auto received = receive({buffer_.get() + end_, capacity_ - end_});
    if (!received) return received.error();
    end_ += *received;
  }
  return {};
}

Result<wire::CommandHeader> Inbox::next() {
  if (const auto filled = fill(sizeof(wire::CommandHeader)); !filled) {
    if (filled.error().code == ErrorCode::closed && has_input()) {
      return Error{ErrorCode::malformed, "the client closed the connection in the middle of a command"};
    }
    return filled.error();
  }
  wire::CommandHeader header;
  std::memcpy(&header, buffer_.get() + begin_, sizeof header);
  begin_ += sizeof header;
  if (header.length > wire::kMaxBodyBytes) {
    return Error{ErrorCode::malformed,
                 "a command of " + std::to_string(header.length) + " bytes is too long"};
  }
  body_left_ = header.length;
  return header;
}

Result<std::span<const std::byte>> Inbox::body(size_t size) {
  if (size > body_left_) return Error{ErrorCode::malformed, "a command is too short"};
  if (replayed_) {
    body_left_ -= size;
    return replayed_->get_bytes(size);
  }
  if (const auto filled = fill(size); !filled) return filled.error();
  const std::span<const std::byte> bytes(buffer_.get() + begin_, size);
  begin_ += size;
  body_left_ -= size;
  return bytes;
}

void Inbox::replay(wire::Reader body) {
  left_before_replay_ = std::exchange(body_left_, body.remaining());
  replayed_ = body;
}

void Inbox::end_replay() {
  replayed_.reset();
  body_left_ = left_before_replay_;
}

Result<void> Inbox::read_into(std::span<std::byte> destination) {
  if (destination.size() > body_left_) return Error{ErrorCode::malformed, "a command is too short"};
  body_left_ -= destination.size();
  if (replayed_) {
    const auto bytes = replayed_->get_bytes(destination.size());
    if (!bytes.empty()) std::memcpy(destination.data(), bytes.data(), bytes.size());
    return {};
  }
  const size_t here = std::min(destination.size(), end_ - begin_);
  if (here != 0) std::memcpy(destination.data(), buffer_.get() + begin_, here);
  begin_ += here;
  destination = destination.subspan(here);
  while (!destination.empty()) {
    const auto received = receive(destination);
    if (!received) return received.error();
    destination = destination.subspan(*received);
  }
  return {};
}

}  // namespace gpupool::worker
