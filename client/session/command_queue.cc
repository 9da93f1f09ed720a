#include "client/session/command_queue.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "client/timeline/timeline.h"
#include "protocol/transport/gather.h"

namespace gpupool::client {
namespace {

using transport::Clock;

// How long the flusher polls for more commands before it sleeps: waking it costs the calling thread a system
// call.
constexpr auto kLinger = std::chrono::microseconds(50);

}  // namespace

CommandQueue::CommandQueue(transport::Connection& connection, std::chrono::milliseconds dead_peer_timeout,
                           Hooks hooks)
    : connection_(connection), dead_peer_timeout_(dead_peer_timeout), hooks_(std::move(hooks)) {
  pending_.reserve(kBatchLimit + wire::kBulkChunkBytes);
  sending_.reserve(kBatchLimit + wire::kBulkChunkBytes);
}

size_t CommandQueue::begin_command(wire::Buffer& buffer) {
  const size_t at = buffer.size();
  buffer.resize(at + sizeof(wire::CommandHeader));
  return at;
}

uint64_t CommandQueue::end_command(wire::Buffer& buffer, size_t at, uint16_t id, uint16_t flags,
                                   uint64_t context, size_t payload) {
  wire::CommandHeader header;
  header.length = static_cast<uint32_t>(buffer.size() - at - sizeof header + payload);
  header.id = id;
  header.flags = flags;
  header.context = context;
  header.sequence = ++sequence_;
  std::memcpy(buffer.data() + at, &header, sizeof header);
  return header.sequence;
}

void CommandQueue::take_batch() {
  if (const auto told = hooks_.acknowledgement && !held_back_ ? hooks_.acknowledgement() : std::nullopt) {
    const size_t at = begin_command(pending_);
    wire::Writer(pending_).put(*told);
    end_command(pending_, at, static_cast<uint16_t>(wire::Command::acknowledge), 0, 0, 0);
  }
  sending_.clear();
  std::swap(sending_, pending_);
  pending_bytes_.store(0, std::memory_order_seq_cst);
}

bool CommandQueue::flush() {
  if (hooks_.before_flush) hooks_.before_flush();
  std::lock_guard sending(send_mutex_);
  {
    std::lock_guard lock(mutex_);
    take_batch();
  }
  return send({});
}

void CommandQueue::try_flush() {
  std::unique_lock sending(send_mutex_, std::try_to_lock);
  if (!sending) return;
  {
    std::lock_guard lock(mutex_);
    take_batch();
  }
  send({});
}

bool CommandQueue::send(std::span<const iovec> payload) {
  if (failed_) return false;
  std::vector<iovec> parts;
  parts.reserve(payload.size() + 1);
  if (!sending_.empty()) parts.push_back({sending_.data(), sending_.size()});
  parts.insert(parts.end(), payload.begin(), payload.end());
  std::span<iovec> rest(parts);
  for (transport::drop_sent(rest, 0); !rest.empty();) {
    const auto sent = connection_.send_some(rest);
    if (!sent) {
      failed_ = true;
      hooks_.failed(sent.error());
      return false;
    }
    if (*sent == 0) {
      if (!wait_for_room()) return false;
      continue;
    }
    transport::drop_sent(rest, *sent);
  }
  return true;
}

void CommandQueue::wait_to_go_on(std::unique_lock<std::mutex>& lock) {
  const timeline::Wait wait("wait: the session moves", hooks_.server);
  goes_on_.wait(lock, [this] { return !held_back_; });
}

void CommandQueue::go_on() {
  {
    const std::lock_guard lock(mutex_);
    held_back_ = false;
  }
  goes_on_.notify_all();
}

void CommandQueue::send_farewell(wire::Command command, std::span<const std::byte> body) {
  const std::lock_guard sending(send_mutex_);
  wire::Buffer bytes;
  {
    const std::lock_guard lock(mutex_);
    const size_t at = begin_command(bytes);
    wire::Writer(bytes).put_bytes(body.data(), body.size());
    end_command(bytes, at, static_cast<uint16_t>(command), 0, 0, 0);
    --sequence_;
  }
  const iovec part{bytes.data(), bytes.size()};
  (void)connection_.send_some({&part, 1});
}

bool CommandQueue::wait_for_room() {
  const timeline::Wait wait("wait: the connection is full", hooks_.server);
  if (hooks_.wait_for_room(Clock::now() + dead_peer_timeout_)) return true;
  const Error error{ErrorCode::lost, "the server stopped reading (timeout while sending)"};
  if (connection_.break_carrier(error)) return true;
  failed_ = true;
  hooks_.failed(error);
  return false;
}

void CommandQueue::wake_flusher() {
  uint32_t state = flusher_.load(std::memory_order_seq_cst);
  if (state == kAwake) return;
  if (state == kNotStarted && flusher_.compare_exchange_strong(state, kAwake)) {
    std::thread([this] { run_flusher(); }).detach();  // the session is never destroyed once connected
    return;
  }
  if (flusher_.exchange(kAwake) == kAsleep) flusher_.notify_one();
}

void CommandQueue::run_flusher() {
  ::pthread_setname_np(::pthread_self(), kThreadName);
  for (;;) {
    flush();
    const auto until = Clock::now() + kLinger;
    while (pending_bytes_.load(std::memory_order_seq_cst) == 0 && Clock::now() < until)
      std::this_thread::yield();
    if (pending_bytes_.load(std::memory_order_seq_cst) != 0) continue;
    flusher_.store(kAsleep, std::memory_order_seq_cst);
    if (pending_bytes_.load(std::memory_order_seq_cst) != 0) {
      flusher_.store(kAwake, std::memory_order_seq_cst);
      continue;
    }
    flusher_.wait(kAsleep, std::memory_order_seq_cst);
  }
}

}  // namespace gpupool::client
