#include "server/worker/session/outbox.h"

#include <array>
#include <thread>

#include "protocol/driver/cuda_header.h"
#include "protocol/transport/gather.h"
#include "protocol/wire/images.h"
#include "server/worker/session/thread_activity.h"

namespace gpupool::worker {
namespace {

constexpr std::chrono::milliseconds kFarewellTime{500};  // for the last message to a client that may not read

// How long end() waits for another sender before it sends the last message.
constexpr std::chrono::milliseconds kOthersTime{50};

}  // namespace

bool Outbox::send_locked(wire::MessageHeader header, std::span<const std::byte> body,
                         std::span<const std::byte> more, transport::Deadline deadline) {
  header.length = static_cast<uint32_t>(body.size() + more.size());
  if (resumable_) header.acknowledged = static_cast<uint32_t>(resumable_->tell_received());
  header.retired = retired_.load(std::memory_order_acquire);
  if (ledger_.limited()) header.flags |= wire::kMemoryLimited;
  if (backlog_long_.load(std::memory_order_relaxed)) header.flags |= wire::kSendAwaitRoom;
  std::array<iovec, 3> parts{{{&header, sizeof header},
                              {const_cast<std::byte*>(body.data()), body.size()},
                              {const_cast<std::byte*>(more.data()), more.size()}}};
  std::span<iovec> rest(parts);
  for (transport::drop_sent(rest, 0); !rest.empty();) {
    const auto sent = connection_.send_some(rest);
    if (!sent) return false;
    counters_.bytes_to_client.fetch_add(*sent, std::memory_order_relaxed);
    if (*sent == 0) {
      if (over() && !deadline) return false;
      if (deadline && transport::Clock::now() >= *deadline) return false;
      if (!connection_.wait(false, true, deadline)) return false;
      continue;
    }
    transport::drop_sent(rest, *sent);
  }
  return true;
}

bool Outbox::send(wire::MessageKind kind, int32_t result, uint64_t sequence, std::span<const std::byte> body,
                  std::span<const std::byte> more) {
  const Waiting waiting("the client to read");
  const std::lock_guard lock(mutex_);
  if (over()) return false;
  if (silent_) return true;
  if (kind == wire::MessageKind::reply && result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY &&
      result != wire::kImageMissing) {
    counters_.errors.fetch_add(1, std::memory_order_relaxed);  // other errors are counted by defer()
  }
  // A sign of life must also detect a dead client.
  if (kind == wire::MessageKind::pong) connection_.check_peer_alive();
  const wire::MessageHeader header{.kind = kind, .result = result, .sequence = sequence};
  if (send_locked(header, body, more, {})) {
    silent_ = kind == wire::MessageKind::reply && last_ != 0 && sequence == last_;
    return true;
  }
  close();
  return false;
}

void Outbox::send_sign_of_life() {
  const bool is_away = resumable_ && resumable_->broken() && !resumable_->over();
  if (!is_away) send(wire::MessageKind::pong, 0, 0);
}

void Outbox::end(std::string_view reason) {
  // Waits briefly for a sender in progress, but not for one that is blocked.
  std::unique_lock lock(mutex_, std::try_to_lock);
  for (const auto limit = transport::Clock::now() + kOthersTime;
       !lock && transport::Clock::now() < limit && !lock.try_lock();) {
    std::this_thread::yield();
  }
  // poold tells the reason to a client that returns later, and one that has left needs none.
  if (lock && !over() && !silent_ && !(resumable_ && resumable_->broken())) {
    const wire::MessageHeader header{.kind = wire::MessageKind::end};
    send_locked(header, std::as_bytes(std::span(reason)), {}, transport::Clock::now() + kFarewellTime);
  }
  close();
}

void Outbox::close() {
  if (!over_.exchange(true, std::memory_order_acq_rel)) connection_.close();
}

}  // namespace gpupool::worker
