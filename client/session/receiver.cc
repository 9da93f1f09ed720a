#include "client/session/receiver.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "client/session/device_output.h"
#include "common/text/printable.h"
#include "protocol/wire/copies.h"
#include "protocol/wire/reader.h"

namespace gpupool::client {
namespace {

using transport::Clock;
using transport::Connection;

// How often the background thread checks whether it is still needed.
constexpr auto kBackgroundWait = std::chrono::milliseconds(50);
// A ping is sent after each third of dead_peer_timeout without a message, so a dead server has been sent two.
constexpr unsigned kPingsBeforeLoss = 2;

}  // namespace

Receiver::Receiver(Connection& connection, std::chrono::milliseconds dead_peer_timeout, Hooks hooks)
    : connection_(connection),
      dead_peer_timeout_(dead_peer_timeout),
      hooks_(std::move(hooks)),
      buffer_(kBufferBytes),
      last_received_(Clock::now()) {}

void Receiver::expect(Waiter& waiter) {
  Lock lock(mutex_);
  if (failed_)
    waiter.done = true;
  else
    waiters_[waiter.sequence] = &waiter;
}

void Receiver::expect(uint64_t sequence, std::function<void(CUresult)> then) {
  {
    Lock lock(mutex_);
    if (!failed_) {
      handlers_[sequence] = std::move(then);
      start_background();
      return;
    }
  }
  then(CUDA_ERROR_DEVICE_UNAVAILABLE);
}

void Receiver::expect_transfer(uint64_t sequence, const Transfer& transfer) {
  Lock lock(mutex_);
  if (failed_) return;
  transfers_[sequence] = transfer;
  if (!transfer.background) return;
  background_transfers_.fetch_add(1);
  if (!transfer.bulk) start_background();
}

bool Receiver::awaits_data_in(const void* memory, uint64_t bytes) {
  if (!transfers_pending()) return false;
  const auto* begin = static_cast<const std::byte*>(memory);
  Lock lock(mutex_);
  return std::any_of(transfers_.begin(), transfers_.end(), [&](const auto& entry) {
    const Transfer& transfer = entry.second;
    const uint64_t span = (transfer.rows - 1) * transfer.pitch + transfer.width;
    return transfer.destination < begin + bytes && begin < transfer.destination + span;
  });
}

bool Receiver::wait(Waiter& waiter) {
  Lock lock(mutex_);
  while (!waiter.done && !failed_) {
    if (pumping_) {
      changed_.wait(lock);
      continue;
    }
    pumping_ = true;
    lock.unlock();
    pump_until_done(waiter);
    lock.lock();
    pumping_ = false;
    changed_.notify_all();
  }
  waiters_.erase(waiter.sequence);
  // After a failure the caller may free its memory: wait until no piece is being received into it.
  changed_.wait(lock, [this] { return !failed_ || active_pieces_ == 0; });
  return !failed_;
}

bool Receiver::is_done(const Waiter& waiter) {
  Lock lock(mutex_);
  return waiter.done || failed_;
}

bool Receiver::pump_until_done(const Waiter& waiter) {
  auto started = Clock::now();
  last_received_ = std::max(last_received_, started);
  unanswered_pings_ = 0;
  const Connection::Patience patience = connection_.patience();
  unsigned looks = 0;  // polls without a message
  while (looks % patience.polls_per_yield != 0 || !is_done(waiter)) {
    const auto before = last_received_;
    if (!receive_some() || !parse()) return false;
    if (last_received_ != before) {
      started = last_received_;
      looks = 0;
      continue;
    }
    if (++looks % patience.polls_per_yield != 0) continue;
    if (Clock::now() - started < patience.time) {
      std::this_thread::yield();  // the worker may need this core
      continue;
    }
    const auto ready = connection_.wait(true, false, Clock::now() + dead_peer_timeout_ / 3);
    if (!ready) {
      report(ready.error().code, ready.error().message);
      return false;
    }
    if (*ready == Connection::Ready::none && !stay_alive(started)) return false;
  }
  return true;
}

// Called after each third of the timeout without a message. Elapsed time alone does not prove that the server
// is dead: a program that was stopped (SIGSTOP) or not scheduled for that long has neither pinged nor read.
bool Receiver::stay_alive(Clock::time_point started) {
  if (unanswered_pings_ >= kPingsBeforeLoss &&
      Clock::now() - std::max(last_received_, started) > dead_peer_timeout_) {
    const Error lost{ErrorCode::lost, "no message from the server for " +
                                          std::to_string(dead_peer_timeout_.count()) +
                                          " ms (limit: GPUPOOL_DEAD_PEER_TIMEOUT_MS)"};
    if (!connection_.break_carrier(lost)) {
      report(lost.code, lost.message);
      return false;
    }
    note_received();  // the count starts again on the next carrier
    return true;
  }
  ++unanswered_pings_;
  hooks_.ping();
  return true;
}

void Receiver::note_received() {
  last_received_ = Clock::now();
  unanswered_pings_ = 0;
}

void Receiver::release_role() {
  Lock lock(mutex_);
  pumping_ = false;
  changed_.notify_all();
}

bool Receiver::receive_some() {
  if (begin_ == end_) begin_ = end_ = 0;
  if (end_ == buffer_.size()) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  const auto received = connection_.receive_some({buffer_.data() + end_, buffer_.size() - end_});
  if (!received) {
    report(received.error().code, received.error().message);
    return false;
  }
  if (*received) note_received();
  end_ += *received;
  if (*received && hooks_.received) hooks_.received();
  return true;
}

bool Receiver::parse() {
  while (end_ - begin_ >= sizeof(wire::MessageHeader)) {
    wire::MessageHeader header;
    std::memcpy(&header, buffer_.data() + begin_, sizeof header);
    if (header.length > wire::kMaxBodyBytes) {
      report(ErrorCode::malformed,
             "protocol error: a message of " + std::to_string(header.length) + " bytes exceeds the limit");
      return false;
    }
    if (header.retired) hooks_.retired(header.retired);
    if (header.acknowledged && hooks_.acknowledged) hooks_.acknowledged(header.acknowledged);
    set_memory_limited((header.flags & wire::kMemoryLimited) != 0);
    backlog_long_.store((header.flags & wire::kSendAwaitRoom) != 0, std::memory_order_relaxed);
    if (header.kind == wire::MessageKind::device_data) {
      begin_ += sizeof header;
      if (!receive_data(header)) return false;
      continue;
    }
    const size_t whole = sizeof header + header.length;
    if (end_ - begin_ < whole) {
      if (whole > buffer_.size()) buffer_.resize(whole);
      if (begin_ + whole > buffer_.size()) {
        std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
        end_ -= begin_;
        begin_ = 0;
      }
      return true;
    }
    const std::byte* body = buffer_.data() + begin_ + sizeof header;
    begin_ += whole;
    if (!handle(header, body)) return false;
  }
  return true;
}

bool Receiver::handle(const wire::MessageHeader& header, const std::byte* body) {
  switch (header.kind) {
    case wire::MessageKind::reply: {
      Lock lock(mutex_);
      if (transfers_.contains(header.sequence))
        finish_transfer(lock, header.sequence, header.result == CUDA_SUCCESS);
      if (const auto found = waiters_.find(header.sequence); found != waiters_.end()) {
        found->second->result = static_cast<CUresult>(header.result);
        found->second->body.assign(body, body + header.length);
        found->second->done = true;
        waiters_.erase(found);
        changed_.notify_all();
      }
      if (auto handler = handlers_.extract(header.sequence)) {
        lock.unlock();
        handler.mapped()(static_cast<CUresult>(header.result));
      }
      return true;
    }
    case wire::MessageKind::standard_output:
      write_device_output({reinterpret_cast<const char*>(body), header.length});
      return true;
    case wire::MessageKind::standard_error:
      write_device_errors({reinterpret_cast<const char*>(body), header.length});
      return true;
    case wire::MessageKind::host_callback: {
      wire::Reader reader({body, header.length});
      const auto callback = reader.get<uint64_t>();
      if (!reader.finished()) break;
      hooks_.host_callback(callback, header.sequence, static_cast<CUresult>(header.result));
      return true;
    }
    case wire::MessageKind::pong: return true;
    case wire::MessageKind::end:
      report(ErrorCode::refused, "the server ended the session: " +
                                     printable_message({reinterpret_cast<const char*>(body), header.length}));
      return false;
    case wire::MessageKind::quota_refusal:
    case wire::MessageKind::migration_wish:
    case wire::MessageKind::timeline:
    case wire::MessageKind::device_data:  // handled by parse()
      if (hooks_.take(header.kind, {body, header.length})) return true;
  }
  report(ErrorCode::malformed, "protocol error: unknown or malformed message of kind " +
                                   std::to_string(static_cast<int>(header.kind)));
  return false;
}

// The reply means that all data of a bulk transfer has been sent; the rest may be in flight on other
// connections. Waits for it, because whatever is reported later may rely on the data. After an error pieces
// may be missing, but none may still be being written.
void Receiver::finish_transfer(Lock& lock, uint64_t sequence, bool good) {
  changed_.wait(lock, [&] {
    const auto found = transfers_.find(sequence);
    return failed_ || found == transfers_.end() ||
           (found->second.active == 0 && (!good || found->second.missing == 0));
  });
  const auto found = transfers_.find(sequence);
  if (failed_ || found == transfers_.end()) return;
  if (found->second.background) background_transfers_.fetch_sub(1);
  transfers_.erase(found);
}

std::optional<Transfer> Receiver::begin_piece(uint64_t sequence, uint64_t offset) {
  Lock lock(mutex_);
  const auto found = transfers_.find(sequence);
  if (found == transfers_.end() || !found->second.bulk) return std::nullopt;
  const uint64_t length = found->second.piece_at(offset);
  if (length == 0 || length > found->second.missing) return std::nullopt;
  ++found->second.active;
  ++active_pieces_;
  return found->second;
}

void Receiver::end_piece(uint64_t sequence, uint64_t length) {
  Lock lock(mutex_);
  --active_pieces_;
  changed_.notify_all();
  const auto found = transfers_.find(sequence);
  if (found == transfers_.end()) return;
  --found->second.active;
  found->second.missing -= std::min(length, found->second.missing);
}

void Receiver::await_failure(Clock::time_point deadline) {
  Lock lock(mutex_);
  changed_.wait_until(lock, deadline, [this] { return failed_; });
}

void Receiver::add_interest() {
  Lock lock(mutex_);
  ++interest_;
  start_background();
}

void Receiver::start_background() {
  if (!background_running_ && !failed_) {
    background_running_ = true;
    std::thread([this] { run_background(); }).detach();  // the session is never destroyed once connected
  }
  changed_.notify_all();
}

void Receiver::drop_interest() {
  Lock lock(mutex_);
  --interest_;
}

void Receiver::watch_server() {
  Lock lock(mutex_);
  ++watched_;
  start_background();
}

void Receiver::stop_watching() {
  Lock lock(mutex_);
  --watched_;
}

void Receiver::run_background() {
  auto waiting_since = Clock::now();
  auto last_asked = waiting_since;
  bool awaited = false;
  Lock lock(mutex_);
  while (!failed_) {
    if (pumping_ || interest_ + watched_ + background_transfers_.load() + handlers_.size() == 0) {
      changed_.wait(lock);
      last_asked = waiting_since = Clock::now();
      continue;
    }
    pumping_ = true;
    // A handler's reply is awaited too, because other servers' streams may depend on it. So is a waiter's: a
    // waiter cannot pump while this thread has the role.
    const bool was_awaited = std::exchange(awaited, watched_ != 0 || !handlers_.empty() || !waiters_.empty());
    if (!was_awaited) last_asked = waiting_since = Clock::now();
    lock.unlock();
    const auto ready = connection_.wait(true, false, Clock::now() + kBackgroundWait);
    if (!ready)
      report(ready.error().code, ready.error().message);
    else if (*ready != Connection::Ready::none && receive_some())
      parse();
    if (awaited && Clock::now() - std::max(last_asked, last_received_) > dead_peer_timeout_ / 3) {
      last_asked = Clock::now();
      stay_alive(waiting_since);
    }
    lock.lock();
    pumping_ = false;
    changed_.notify_all();
  }
  background_running_ = false;
}

void Receiver::report(ErrorCode code, std::string message) {
  // First, so that threads whose wait ends find the session failed.
  hooks_.failed(Error{code, std::move(message)});
  fail();
}

void Receiver::fail() {
  decltype(handlers_) handlers;
  {
    Lock lock(mutex_);
    failed_ = true;
    for (auto& [sequence, waiter] : waiters_) waiter->done = true;
    handlers.swap(handlers_);
    transfers_.clear();
    background_transfers_ = 0;
    changed_.notify_all();
  }
  for (auto& [sequence, then] : handlers) then(CUDA_ERROR_DEVICE_UNAVAILABLE);
}

}  // namespace gpupool::client
