#include "server/worker/copies/remote_memory.h"

#include <array>
#include <system_error>
#include <utility>

namespace gpupool::worker {
namespace {

using transport::Clock;

// Number of pieces in progress. Two pieces of 1 MiB are several times the bandwidth-delay product of a 400
// Gb/s link. More would only fill queues on the way: a read is answered at the full speed of the other side,
// and packets that a queue cannot hold are lost and retransmitted. (Soft-RoCE, with a queue of 1000 packets
// of 4 KiB, ran out of retries with eight pieces.)
constexpr size_t kUnderWay = 2;
static_assert(kUnderWay <= transport::DirectMemory::kMaxPendingTransfers);
// Time of polling for completions before the thread sleeps; about the cost of two wake-ups.
constexpr auto kSpin = std::chrono::microseconds(20);

}  // namespace

RemoteMemory::RemoteMemory(transport::DirectMemory* direct, Outbox& outbox,
                           std::shared_ptr<Bandwidth> bandwidth)
    : direct_(direct), outbox_(outbox), bandwidth_(std::move(bandwidth)) {}

void RemoteMemory::submit(std::shared_ptr<Copy> copy, uint64_t first, uint64_t last) {
  {
    const std::lock_guard lock(mutex_);
    try {
      if (direct_ && !closed_ && !broken_ && !thread_.joinable()) thread_ = std::thread([this] { run(); });
    } catch (const std::system_error&) {  // no thread available
      broken_ = true;
    }
    if (direct_ && !closed_ && !broken_) {
      queue_.push_back({std::move(copy), first, last});
      if (asleep_) direct_->interrupt();
      wake_.notify_one();
      return;
    }
  }
  copy->lost();
}

void RemoteMemory::run() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return closed_ || !queue_.empty() || !under_way_.empty(); });
      if (closed_ && under_way_.empty()) break;
    }
    wait_for_debt();
    if (auto good = turn(); !good) return lose(&good.error());
  }
  lose(nullptr);
}

// A piece is charged when it begins, and the debt is paid before the next one. Waits for both directions'
// debts, because the direction of the next piece is not known yet.
void RemoteMemory::wait_for_debt() {
  if (!bandwidth_) return;
  const auto debt = std::max(bandwidth_->debt(Bandwidth::Direction::to_device),
                             bandwidth_->debt(Bandwidth::Direction::to_host));
  if (debt <= debt.zero()) return;
  std::unique_lock lock(mutex_);
  wake_.wait_for(lock, debt, [this] { return closed_; });
}

// Takes the next piece of the next copy in turn.
bool RemoteMemory::take(Entry& entry) {
  const std::lock_guard lock(mutex_);
  if (closed_ || queue_.empty() || under_way_.size() >= kUnderWay) return false;
  entry = std::move(queue_.front());
  queue_.pop_front();
  if (entry.next + 1 < entry.last) queue_.push_back({entry.copy, entry.next + 1, entry.last});
  return true;
}

Result<void> RemoteMemory::turn() {
  for (Entry entry; take(entry);) {
    if (auto posted = post(entry); !posted) return posted;
  }
  if (under_way_.empty()) return {};
  std::array<uint64_t, kUnderWay> cookies;
  const auto completed = direct_->completed(cookies);
  if (!completed) return completed.error();
  for (size_t i = 0; i < *completed; ++i) {
    const auto [copy, piece] = std::move(under_way_.front());
    under_way_.pop_front();
    copy->end(piece);
  }
  if (*completed != 0)
    last_seen_ = Clock::now();
  else if (Clock::now() - last_seen_ < kSpin)
    std::this_thread::yield();
  else
    return sleep();
  return {};
}

Result<void> RemoteMemory::post(const Entry& entry) {
  const auto move = entry.copy->begin(entry.next);
  if (!move) return {};
  transport::DirectMemory::Transfer transfer{.local = move->local,
                                             .local_key = move->local_key,
                                             .remote_key = move->remote_key,
                                             .remote = move->remote,
                                             .bytes = move->bytes,
                                             .cookie = entry.next};
  under_way_.emplace_back(entry.copy, entry.next);
  last_seen_ = Clock::now();
  if (move->what == Move::read) {
    outbox_.counters().bytes_from_client.fetch_add(move->bytes, std::memory_order_relaxed);
    if (bandwidth_) bandwidth_->charge(Bandwidth::Direction::to_device, move->bytes);
    return direct_->read(transfer);
  }
  if (move->what == Move::write) {
    outbox_.counters().bytes_to_client.fetch_add(move->bytes, std::memory_order_relaxed);
    if (bandwidth_) bandwidth_->charge(Bandwidth::Direction::to_host, move->bytes);
    return direct_->write(transfer);
  }
  if (!flushed_region_) {
    auto region = direct_->add(flushed_, sizeof flushed_, transport::DirectMemory::Access::local);
    if (!region) return region.error();
    flushed_region_ = *region;
  }
  transfer.local = flushed_;
  transfer.local_key = flushed_region_->local_key;
  return direct_->flush(transfer);
}

Result<void> RemoteMemory::sleep() {
  {
    const std::lock_guard lock(mutex_);
    if (!closed_ && !queue_.empty() && under_way_.size() < kUnderWay) return {};
    asleep_ = true;
  }
  const auto waited = direct_->wait(std::nullopt);
  const std::lock_guard lock(mutex_);
  asleep_ = false;
  return waited;
}

// Call when no piece is in progress on the connection any more.
void RemoteMemory::lose(const Error* why) {
  std::deque<Entry> queue;
  bool closed = false;
  {
    const std::lock_guard lock(mutex_);
    queue.swap(queue_);
    broken_ = true;
    closed = closed_;
  }
  if (why && !closed) outbox_.end("an RDMA copy from or to the client's memory failed: " + why->message);
  for (const auto& [copy, piece] : std::exchange(under_way_, {})) {
    copy->lost();
    copy->end(piece);
  }
  for (const Entry& entry : queue) entry.copy->lost();
}

void RemoteMemory::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  if (asleep_) direct_->interrupt();
  wake_.notify_one();
}

void RemoteMemory::stop() {
  close();
  if (thread_.joinable()) thread_.join();
  queue_.clear();
  if (flushed_region_) direct_->remove(*std::exchange(flushed_region_, std::nullopt));
}

}  // namespace gpupool::worker
