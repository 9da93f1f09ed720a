#include "server/worker/copies/bandwidth.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "protocol/transport/deadline.h"
#include "server/worker/session/thread_activity.h"

namespace gpupool::worker {
namespace {

using std::chrono::nanoseconds;
using transport::Clock;
constexpr size_t kLeastPortion = 4096;
constexpr const char* kTheBandwidth = "the tenant's bandwidth";
// Short enough to notice a raised quota or the end of the connection.
constexpr std::chrono::milliseconds kLongestNap{100};

// Nanoseconds of the monotonic clock, which is the same in all processes of the host.
uint64_t now() {
  return static_cast<uint64_t>(nanoseconds(Clock::now().time_since_epoch()).count());
}

}  // namespace

uint64_t Bandwidth::rate(Direction direction) const {
  if (!usage_.account) return 0;
  const quota::Account& account = **usage_.account;
  return (direction == Direction::to_device ? account.to_device_bytes_per_second
                                            : account.to_host_bytes_per_second)
      .load(std::memory_order_relaxed);
}

std::atomic<uint64_t>& Bandwidth::paid_off(Direction direction) const {
  quota::Account& account = **usage_.account;
  return direction == Direction::to_device ? account.to_device_paid_off : account.to_host_paid_off;
}

void Bandwidth::charge(Direction direction, uint64_t bytes) {
  const uint64_t per_second = rate(direction);
  if (per_second == 0) return;
  const auto cost = static_cast<uint64_t>(static_cast<double>(bytes) * 1e9 / static_cast<double>(per_second));
  const uint64_t earliest = now() - static_cast<uint64_t>(nanoseconds(kBurst).count());
  auto& paid = paid_off(direction);
  uint64_t before = paid.load(std::memory_order_relaxed);
  while (!paid.compare_exchange_weak(before, std::max(before, earliest) + cost, std::memory_order_relaxed)) {
  }
}

nanoseconds Bandwidth::debt(Direction direction) const {
  if (!limited(direction)) return {};
  const uint64_t paid = paid_off(direction).load(std::memory_order_relaxed), time = now();
  return nanoseconds(paid > time ? paid - time : 0);
}

void Bandwidth::wait_for_debt(Direction direction, const Outbox& outbox) const {
  const Waiting waiting(kTheBandwidth);
  for (nanoseconds left = debt(direction); left > nanoseconds(0) && !outbox.over(); left = debt(direction)) {
    std::this_thread::sleep_for(std::min<nanoseconds>(left, kLongestNap));
  }
}

size_t Bandwidth::max_transfer(Direction direction) const {
  const double burst = std::chrono::duration<double>(kBurst).count();
  return std::max(kLeastPortion, static_cast<size_t>(static_cast<double>(rate(direction)) * burst));
}

nanoseconds MeteredConnection::debt(Bandwidth::Direction direction) const {
  return closed_ ? nanoseconds(0) : bandwidth_->debt(direction);
}

Result<size_t> MeteredConnection::send_some(std::span<const iovec> buffers) {
  using enum Bandwidth::Direction;
  if (!bandwidth_->limited(to_host)) return inner_->send_some(buffers);
  size_t total = 0;
  for (const iovec& buffer : buffers) total += buffer.iov_len;
  if (total > kAlways && debt(to_host) > nanoseconds(0)) return size_t{0};
  std::vector<iovec> part;
  for (size_t left = std::max(kAlways, bandwidth_->max_transfer(to_host)); !buffers.empty() && left != 0;
       buffers = buffers.subspan(1)) {
    part.push_back({buffers.front().iov_base, std::min(left, buffers.front().iov_len)});
    left -= part.back().iov_len;
  }
  const auto sent = inner_->send_some(part);
  if (sent) bandwidth_->charge(to_host, *sent);
  return sent;
}

Result<size_t> MeteredConnection::receive_some(std::span<std::byte> buffer) {
  using enum Bandwidth::Direction;
  if (!bandwidth_->limited(to_device)) return inner_->receive_some(buffer);
  if (debt(to_device) > nanoseconds(0)) return size_t{0};
  const auto received =
      inner_->receive_some(buffer.first(std::min(buffer.size(), bandwidth_->max_transfer(to_device))));
  if (received) bandwidth_->charge(to_device, *received);
  return received;
}

Result<transport::Connection::Ready> MeteredConnection::wait(bool for_receive, bool for_send,
                                                             transport::Deadline deadline) {
  using enum Bandwidth::Direction;
  while (true) {
    const nanoseconds receive_debt = for_receive ? debt(to_device) : nanoseconds(0);
    const nanoseconds send_debt = for_send ? debt(to_host) : nanoseconds(0);
    if (receive_debt <= nanoseconds(0) && send_debt <= nanoseconds(0))
      return inner_->wait(for_receive, for_send, deadline);
    const Waiting waiting(kTheBandwidth);
    if (!for_receive) {
      // Not in inner_, whose wait for no direction would take the receiver's interrupt.
      auto until = Clock::now() + std::min<nanoseconds>(send_debt, kLongestNap);
      if (deadline) until = std::min(until, *deadline);
      std::this_thread::sleep_until(until);
      if (transport::passed(deadline)) return Ready::none;
      continue;
    }
    // Does not poll a direction that is in debt before the debt is paid off.
    const bool receive = receive_debt <= nanoseconds(0), send = for_send && send_debt <= nanoseconds(0);
    // An interrupt does not end a wait in inner_ that only sends, so that one is short.
    const nanoseconds sooner = receive    ? send_debt
                               : send     ? std::min<nanoseconds>(receive_debt, kLongestNap)
                               : for_send ? std::min(receive_debt, send_debt)
                                          : receive_debt;
    const auto paid = Clock::now() + std::chrono::ceil<Clock::duration>(sooner);
    const bool in_time = !deadline || paid < *deadline;
    const auto ready = inner_->wait(receive, send, in_time ? transport::Deadline(paid) : deadline);
    if (!ready || *ready != Ready::none || !in_time || interrupted_.exchange(false)) return ready;
  }
}

// The inner wait() ends in the same way when the debt is paid off.
void MeteredConnection::interrupt() {
  interrupted_ = true;
  inner_->interrupt();
}

}  // namespace gpupool::worker
