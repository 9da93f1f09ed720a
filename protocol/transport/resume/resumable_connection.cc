#include "protocol/transport/resume/resumable_connection.h"

#include <algorithm>
#include <utility>

#include "protocol/transport/deadline.h"
#include "protocol/transport/gather.h"
#include "protocol/transport/resume/unread_bytes.h"

namespace gpupool::transport {
namespace {

constexpr size_t kPartsPerResend = 64;
// A receiver may be busy for a while in which the connection breaks often.
constexpr size_t kMostUnreadCarriers = 32;

Connection::Ready all_of(bool for_receive, bool for_send) {
  using Ready = Connection::Ready;
  return for_receive && for_send ? Ready::both
         : for_receive           ? Ready::receive
         : for_send              ? Ready::send
                                 : Ready::none;
}

}  // namespace

ResumableConnection::ResumableConnection(std::unique_ptr<Connection> carrier, size_t most_kept)
    : kept_(most_kept), carrier_(std::move(carrier)), descriptor_owner_(carrier_.get()) {}

void ResumableConnection::start() {
  carrier_->expect_replacement();
  started_.store(true, std::memory_order_release);
}

std::shared_ptr<Connection> ResumableConnection::current() const {
  const Lock lock(mutex_);
  return carrier_;
}

// Returns the result of an operation whose carrier failed: 0 if the connection may be resumed, or was resumed
// on another carrier meanwhile.
Result<size_t> ResumableConnection::fail_or_break(const Connection* carrier, const Error& error) {
  const Lock lock(mutex_);
  // Whatever a broken carrier reports follows from the break, which has closed it.
  if (carrier == carrier_.get() && !broken_.load(std::memory_order_relaxed)) {
    if (is_break(error))
      break_locked(error);
    else
      give_up_locked(error);
  }
  if (final_error_) return *final_error_;
  return size_t{0};
}

bool ResumableConnection::break_carrier(const Error& why) {
  if (!started()) return false;
  const Lock lock(mutex_);
  break_locked(why);
  return !final_error_;
}

void ResumableConnection::break_locked(const Error& why) {
  if (broken_.load(std::memory_order_relaxed)) return;
  why_broken_ = why;
  broken_.store(true, std::memory_order_release);
  carrier_->abandon();    // wakes threads that wait for a direction, and tells the peer
  carrier_->interrupt();  // wakes a thread that waits for none
  changed_.notify_all();
}

void ResumableConnection::give_up(Error why) {
  const Lock lock(mutex_);
  give_up_locked(std::move(why));
}

void ResumableConnection::give_up_locked(Error why) {
  if (final_error_) return;
  final_error_ = std::move(why);
  broken_.store(true, std::memory_order_release);
  carrier_->close();
  carrier_->interrupt();  // as in break_locked()
  changed_.notify_all();
}

void ResumableConnection::keep_deadlines() {
  const Lock lock(mutex_);
  keeps_deadlines_ = true;
  changed_.notify_all();
}

void ResumableConnection::close() {
  give_up({ErrorCode::closed, "the connection to " + peer() + " was closed on this side"});
}

Result<size_t> ResumableConnection::send_some(std::span<const iovec> buffers) {
  if (!started()) return carrier_->send_some(buffers);
  const Section section(sending_, std::try_to_lock);
  if (!section) return size_t{0};
  if (is_broken()) {
    const Lock state(mutex_);
    if (final_error_) return *final_error_;
    return size_t{0};
  }
  const uint64_t acknowledged = acknowledged_.load(std::memory_order_acquire);
  // carried_ and not kept_.end(): bytes that are yet to be sent again must stay.
  if (acknowledged > carried_ + known_) {
    return fail_or_break(carrier_.get(),
                         {ErrorCode::malformed, peer() + " acknowledged bytes that were not sent"});
  }
  kept_.drop_before(acknowledged);
  if (carried_ < kept_.end()) {
    const auto done = resend();
    if (!done) return fail_or_break(carrier_.get(), done.error());
    if (!*done) return size_t{0};
  }
  const size_t whole = size_of(buffers);
  Result<size_t> sent = std::min<uint64_t>(known_, whole);
  if (known_ != 0)
    known_ -= *sent;
  else
    sent = carrier_->send_some(buffers);
  const bool outlives = carrier_->outlives_break();
  offered_ = outlives ? 0 : sent ? whole - *sent : whole;
  if (!sent) return fail_or_break(carrier_.get(), sent.error());
  if (outlives)
    kept_.skip(*sent);
  else if (*sent != 0)
    kept_.append(buffers, *sent);
  carried_ += *sent;
  sent_.store(carried_, std::memory_order_relaxed);
  return sent;
}

Result<bool> ResumableConnection::resend() {
  while (carried_ < kept_.end()) {
    const auto sent = carrier_->send_some(kept_.from(carried_, kPartsPerResend));
    if (!sent) return sent.error();
    if (*sent == 0) return false;
    carried_ += *sent;
    resent_.fetch_add(*sent, std::memory_order_relaxed);
  }
  return true;
}

Result<size_t> ResumableConnection::receive_some(std::span<std::byte> buffer) {
  if (!started()) return carrier_->receive_some(buffer);
  const Section section(receiving_, std::try_to_lock);
  if (!section) return size_t{0};
  if (is_broken()) {
    const Lock state(mutex_);
    if (final_error_) return *final_error_;
    return size_t{0};
  }
  auto received = has_unread_.load(std::memory_order_relaxed) ? receive_unread(buffer) : size_t{0};
  if (received && *received == 0) received = carrier_->receive_some(buffer);
  if (!received) return fail_or_break(carrier_.get(), received.error());
  if (*received != 0)
    received_.store(received_.load(std::memory_order_relaxed) + *received, std::memory_order_release);
  return received;
}

void ResumableConnection::drop_kept() {
  const Section section(sending_);
  kept_.lend({});
  kept_.drop_before(kept_.end());
}

// Returns 0 if nothing is unread any more. The peer has written all of it before the connection was resumed.
Result<size_t> ResumableConnection::receive_unread(std::span<std::byte> buffer) {
  while (!unread_.empty()) {
    const auto received = unread_.front()->receive_some(buffer);
    if (received && *received != 0) return received;
    if (!received && !is_break(received.error())) return received;
    unread_.pop_front();
  }
  has_unread_.store(false, std::memory_order_relaxed);
  return size_t{0};
}

void ResumableConnection::lend(std::span<const std::byte> memory) {
  const Section section(sending_);
  kept_.lend(memory);
}

void ResumableConnection::take_back(std::span<const std::byte> memory) {
  const Section section(sending_);
  kept_.lend({});
  kept_.drop_before(std::min(acknowledged_.load(std::memory_order_acquire), kept_.end()));
  kept_.take_back(memory);
}

Result<Connection::Ready> ResumableConnection::wait(bool for_receive, bool for_send, Deadline deadline) {
  if (!started()) return carrier_->wait(for_receive, for_send, deadline);
  const bool heeds_interrupts = for_receive || !for_send;
  while (true) {
    std::shared_ptr<Connection> carrier;
    bool resending = false;
    {
      Lock lock(mutex_);
      const auto since = Clock::now();
      // A sender's turn comes when everything older has been sent again.
      const auto may_go_on = [&] {
        return final_error_ || (heeds_interrupts && interrupted_) ||
               (!broken_ && (!resending_ || for_receive || !for_send));
      };
      while (!may_go_on()) {
        if (!keeps_deadlines_ || !deadline)
          changed_.wait(lock);
        else if (changed_.wait_until(lock, *deadline) == std::cv_status::timeout)
          return Ready::none;
        if (deadline && !keeps_deadlines_ && may_go_on()) *deadline += Clock::now() - since;
      }
      if (final_error_) {
        if (!for_receive && !for_send) return *final_error_;
        return all_of(for_receive, for_send);  // the next call reports it
      }
      if (heeds_interrupts && interrupted_.exchange(false)) return Ready::none;
      carrier = carrier_;
      resending = resending_;
      if (for_receive && has_unread_) return all_of(true, for_send && !resending);
    }
    const auto ready = carrier->wait(for_receive, for_send && !resending, deadline);
    if (is_broken() || current() != carrier) continue;
    if (!ready) {
      if (const auto failed = fail_or_break(carrier.get(), ready.error()); !failed) return failed.error();
      continue;
    }
    if (*ready != Ready::none) return ready;
    if ((heeds_interrupts && interrupted_.exchange(false)) || passed(deadline)) return Ready::none;
  }
}

void ResumableConnection::interrupt() {
  const Lock lock(mutex_);
  interrupted_ = true;
  carrier_->interrupt();
  changed_.notify_all();
}

uint64_t ResumableConnection::tell_received() {
  const uint64_t position = received();
  told_.store(position, std::memory_order_relaxed);
  return position;
}

void ResumableConnection::acknowledge(uint64_t position) {
  uint64_t known = acknowledged_.load(std::memory_order_relaxed);
  // An older acknowledgement may be read after a newer position that the peer has told on resuming.
  while (known < position &&
         !acknowledged_.compare_exchange_weak(known, position, std::memory_order_release)) {
  }
}

void ResumableConnection::acknowledge_low(uint32_t position) {
  const uint64_t known = acknowledged_.load(std::memory_order_relaxed);
  const auto step = static_cast<int32_t>(position - static_cast<uint32_t>(known));
  if (step > 0) acknowledge(known + static_cast<uint32_t>(step));
}

bool ResumableConnection::wait_for_end() {
  return !is_broken() && current()->wait_for_end();
}

std::optional<Error> ResumableConnection::wait_for_break(Deadline deadline) {
  Lock lock(mutex_);
  const auto ended = [&] { return final_error_ || broken_; };
  if (deadline)
    changed_.wait_until(lock, *deadline, ended);
  else
    changed_.wait(lock, ended);
  if (final_error_) return std::nullopt;
  return why_broken_;
}

uint64_t ResumableConnection::retire_carrier() {
  // Whoever holds one of these may be using the carrier.
  const Section sending(sending_);
  const Section receiving(receiving_);
  return received();
}

Result<void> ResumableConnection::resume(std::unique_ptr<Connection> carrier, uint64_t peer_received) {
  if (auto replaced = replace_carrier(std::move(carrier), peer_received); !replaced) return replaced;
  finish_resending();
  return {};
}

Result<void> ResumableConnection::replace_carrier(std::shared_ptr<Connection> next, uint64_t peer_received) {
  const Section sending(sending_);
  const Section receiving(receiving_);
  const Lock lock(mutex_);
  if (final_error_) return *final_error_;
  const bool outlives = carrier_->outlives_break();
  if (outlives && unread_.size() >= kMostUnreadCarriers)
    return Error{ErrorCode::lost, "the connection broke too often before its bytes were read"};
  // The peer reads the rest in the memory of both.
  if (outlives && peer_received <= carried_) peer_received = carried_;
  known_ = peer_received - std::min(peer_received, kept_.end());
  if (known_ > offered_ || !kept_.holds(peer_received - known_)) {
    return Error{ErrorCode::lost, next->peer() + " has received " + std::to_string(peer_received) + " of " +
                                      std::to_string(kept_.end()) +
                                      " bytes, and what follows those was not kept"};
  }
  if (outlives) {
    auto unread = std::make_shared<UnreadBytes>(*carrier_);
    if (unread->error()) return *unread->error();
    if (!unread->empty()) {
      unread_.push_back(std::move(unread));
      has_unread_.store(true, std::memory_order_relaxed);
    }
  }
  carried_ = peer_received - known_;
  acknowledge(carried_);
  kept_.drop_before(carried_);
  carrier_.swap(next);
  descriptor_owner_.store(carrier_.get(), std::memory_order_release);
  times_resumed_.fetch_add(1, std::memory_order_release);
  resending_ = carried_ < kept_.end();
  why_broken_.reset();
  broken_.store(false, std::memory_order_release);
  changed_.notify_all();
  return {};
}

void ResumableConnection::continue_as(ResumableConnection& other) {
  const Section sending(sending_);
  const Section receiving(receiving_);
  const Lock lock(mutex_);
  std::swap(kept_, other.kept_);
  carried_ = other.carried_;
  offered_ = other.offered_;
  known_ = other.known_;
  received_.store(other.received_.load());
  sent_.store(other.sent_.load());
  told_.store(other.told_.load());
  acknowledged_.store(other.acknowledged_.load());
  unread_.clear();
  has_unread_.store(false, std::memory_order_relaxed);
  carrier_.swap(other.carrier_);
  descriptor_owner_.store(carrier_.get(), std::memory_order_release);
  resending_ = false;
  why_broken_.reset();
  broken_.store(final_error_.has_value(), std::memory_order_release);
  changed_.notify_all();
}

// Sends what the peer has missed. The receiver goes on meanwhile, because the peer may send as much.
void ResumableConnection::finish_resending() {
  const auto carrier = current();
  while (!is_broken()) {
    {
      const Section sending(sending_);
      if (is_broken()) break;
      const auto done = resend();
      if (!done) {
        (void)fail_or_break(carrier.get(), done.error());
        break;
      }
      if (*done) break;
    }
    if (const auto ready = carrier->wait(false, true, std::nullopt); !ready) {
      (void)fail_or_break(carrier.get(), ready.error());
      break;
    }
  }
  const Lock lock(mutex_);
  resending_ = false;
  carrier_->interrupt();  // a thread that waits to receive may now also wait for room
  changed_.notify_all();
}

void ResumableConnection::check_peer_alive() {
  current()->check_peer_alive();
}

int ResumableConnection::release_descriptor() {
  return descriptor_owner_.load(std::memory_order_acquire)->release_descriptor();
}

Connection::Patience ResumableConnection::patience() const {
  return current()->patience();
}

Result<void> ResumableConnection::send_descriptor(int descriptor, Deadline deadline) {
  return current()->send_descriptor(descriptor, deadline);
}

Result<int> ResumableConnection::receive_descriptor(Deadline deadline) {
  const auto carrier = current();
  auto descriptor = carrier->receive_descriptor(deadline);
  // No other carrier brings it, but the caller can see by broken() and times_resumed() why it is lost.
  if (!descriptor && started() && is_break(descriptor.error()))
    (void)fail_or_break(carrier.get(), descriptor.error());
  return descriptor;
}

}  // namespace gpupool::transport
