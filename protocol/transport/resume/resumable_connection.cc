#include "protocol/transport/resume/resumable_connection.h"

#include <utility>

#include "protocol/transport/deadline.h"

namespace gpupool::transport {
namespace {

constexpr size_t kPartsPerResend = 64;

// Whether another carrier can help: not after a violation of the protocol, or a local mistake.
bool is_break(const Error& error) {
  return error.code == ErrorCode::lost || error.code == ErrorCode::closed ||
         error.code == ErrorCode::unavailable;
}

Connection::Ready all_of(bool for_receive, bool for_send) {
  using Ready = Connection::Ready;
  return for_receive && for_send ? Ready::both : for_receive ? Ready::receive : for_send ? Ready::send : Ready::none;
}

}  // namespace

ResumableConnection::ResumableConnection(std::unique_ptr<Connection> carrier, size_t most_kept)
    : patience_(carrier->patience()), kept_(most_kept), carrier_(std::move(carrier)) {}

std::shared_ptr<Connection> ResumableConnection::current() const {
  const Lock lock(mutex_);
  return carrier_;
}

// What the caller of a failed operation returns: 0 if the connection may be resumed.
Result<size_t> ResumableConnection::fail_or_break(const Error& error) {
  if (is_break(error))
    break_carrier(error);
  else
    give_up(error);
  const Lock lock(mutex_);
  if (final_error_) return *final_error_;
  return size_t{0};
}

void ResumableConnection::break_carrier(Error why) {
  const Lock lock(mutex_);
  if (broken_.load(std::memory_order_relaxed)) return;
  why_broken_ = std::move(why);
  broken_.store(true, std::memory_order_release);
  carrier_->close();  // wakes threads that wait for it, and tells the peer
  changed_.notify_all();
}

void ResumableConnection::give_up(Error why) {
  const Lock lock(mutex_);
  if (final_error_) return;
  final_error_ = std::move(why);
  broken_.store(true, std::memory_order_release);
  carrier_->close();
  changed_.notify_all();
}

void ResumableConnection::close() {
  give_up({ErrorCode::closed, "the connection to " + peer() + " was closed on this side"});
}

Result<size_t> ResumableConnection::send_some(std::span<const iovec> buffers) {
  const Lock lock(send_mutex_);
  if (is_broken()) {
    const Lock state(mutex_);
    if (final_error_) return *final_error_;
    return size_t{0};
  }
  const uint64_t acknowledged = acknowledged_.load(std::memory_order_acquire);
  if (acknowledged > kept_.end()) {
    return fail_or_break({ErrorCode::malformed, peer() + " acknowledged bytes that were not sent"});
  }
  kept_.drop_before(acknowledged);
  if (carried_ < kept_.end()) {
    const auto done = resend();
    if (!done) return fail_or_break(done.error());
    if (!*done) return size_t{0};
  }
  const auto sent = carrier_->send_some(buffers);
  if (!sent) return fail_or_break(sent.error());
  if (*sent != 0) kept_.append(buffers, *sent);
  carried_ += *sent;
  return sent;
}

Result<bool> ResumableConnection::resend() {
  while (carried_ < kept_.end()) {
    const auto sent = carrier_->send_some(kept_.from(carried_, kPartsPerResend));
    if (!sent) return sent.error();
    if (*sent == 0) return false;
    carried_ += *sent;
  }
  return true;
}

Result<size_t> ResumableConnection::receive_some(std::span<std::byte> buffer) {
  const Lock lock(receive_mutex_);
  if (is_broken()) {
    const Lock state(mutex_);
    if (final_error_) return *final_error_;
    return size_t{0};
  }
  const auto received = carrier_->receive_some(buffer);
  if (!received) return fail_or_break(received.error());
  received_.store(received_.load(std::memory_order_relaxed) + *received, std::memory_order_release);
  return received;
}

Result<Connection::Ready> ResumableConnection::wait(bool for_receive, bool for_send, Deadline deadline) {
  while (true) {
    std::shared_ptr<Connection> carrier;
    bool resending = false;
    {
      Lock lock(mutex_);
      const auto since = Clock::now();
      // A sender's turn comes when everything older has been sent again.
      const auto may_go_on = [&] {
        return final_error_ || interrupted_ || (!broken_ && (!resending_ || for_receive || !for_send));
      };
      if (!may_go_on()) {
        changed_.wait(lock, may_go_on);
        if (deadline) *deadline += Clock::now() - since;
      }
      if (final_error_ && (for_receive || for_send)) return all_of(for_receive, for_send);  // the next call reports it
      if (interrupted_.exchange(false)) return Ready::none;
      carrier = carrier_;
      resending = resending_;
    }
    const auto ready = carrier->wait(for_receive, for_send && !resending, deadline);
    if (is_broken()) continue;
    if (!ready) {
      if (const auto failed = fail_or_break(ready.error()); !failed) return failed.error();
      continue;
    }
    if (*ready != Ready::none) return ready;
    if (interrupted_.exchange(false) || passed(deadline)) return Ready::none;
  }
}

void ResumableConnection::interrupt() {
  const Lock lock(mutex_);
  interrupted_ = true;
  carrier_->interrupt();
  changed_.notify_all();
}

void ResumableConnection::acknowledge(uint64_t position) {
  acknowledged_.store(position, std::memory_order_release);
}

std::optional<Error> ResumableConnection::wait_for_break() {
  Lock lock(mutex_);
  changed_.wait(lock, [&] { return final_error_ || broken_; });
  if (final_error_) return std::nullopt;
  return why_broken_;
}

uint64_t ResumableConnection::retire_carrier() {
  // Whoever holds one of these may be using the carrier.
  const Lock sending(send_mutex_);
  const Lock receiving(receive_mutex_);
  return received();
}

Result<void> ResumableConnection::resume(std::unique_ptr<Connection> carrier, uint64_t peer_received) {
  std::shared_ptr<Connection> next = std::move(carrier);
  {
    const Lock sending(send_mutex_);
    const Lock receiving(receive_mutex_);
    const Lock lock(mutex_);
    if (final_error_) return *final_error_;
    if (!kept_.holds(peer_received)) {
      return Error{ErrorCode::lost, next->peer() + " has received " + std::to_string(peer_received) + " of " +
                                        std::to_string(kept_.end()) +
                                        " bytes, and what follows those was not kept"};
    }
    acknowledged_.store(peer_received, std::memory_order_release);
    kept_.drop_before(peer_received);
    carried_ = peer_received;
    carrier_.swap(next);
    resending_ = carried_ < kept_.end();
    why_broken_.reset();
    broken_.store(false, std::memory_order_release);
    changed_.notify_all();
  }
  finish_resending();
  return {};
}

// Sends what the peer has missed. The receiver goes on meanwhile, because the peer may send as much.
void ResumableConnection::finish_resending() {
  const auto carrier = current();
  while (!is_broken()) {
    {
      const Lock sending(send_mutex_);
      if (is_broken()) break;
      const auto done = resend();
      if (!done) {
        (void)fail_or_break(done.error());
        break;
      }
      if (*done) break;
    }
    if (const auto ready = carrier->wait(false, true, std::nullopt); !ready) {
      (void)fail_or_break(ready.error());
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

std::string ResumableConnection::peer() const {
  return current()->peer();
}

bool ResumableConnection::shares_memory() const {
  return current()->shares_memory();
}

std::string ResumableConnection::carrier() const {
  return current()->carrier();
}

int ResumableConnection::release_descriptor() {
  return current()->release_descriptor();
}

}  // namespace gpupool::transport
