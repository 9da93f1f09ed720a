#include "rdma/direct_transfers.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "protocol/transport/deadline.h"

namespace gpupool::transport::rdma {
namespace {

// Failures that another queue pair may not have. All others would come again.
bool is_failure_of_channel(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_WR_FLUSH_ERR:
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RNR_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
    case IBV_WC_REM_ABORT_ERR:
    case IBV_WC_FATAL_ERR:
    case IBV_WC_GENERAL_ERR: return true;
    default: return false;
  }
}

}  // namespace

Result<std::shared_ptr<DirectTransfers>> DirectTransfers::make(std::shared_ptr<Domain> domain) {
  const int wake = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake < 0) return Error{ErrorCode::unavailable, "cannot create an eventfd"};
  return std::shared_ptr<DirectTransfers>(new DirectTransfers(std::move(domain), wake));
}

DirectTransfers::~DirectTransfers() {
  ::close(wake_);
}

Result<DirectMemory::Region> DirectTransfers::add(void* start, uint64_t bytes, Access access, int dma_buf) {
  const int rights = IBV_ACCESS_LOCAL_WRITE |
                     (access == Access::remote ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE : 0);
  auto registered = domain_->add(start, bytes, rights, dma_buf);
  if (!registered) return registered.error();
  const std::lock_guard lock(regions_mutex_);
  const Region region{next_id_++, registered->local_key(),
                      access == Access::remote ? registered->remote_key() : 0};
  regions_.emplace(region.id, std::move(*registered));
  return region;
}

void DirectTransfers::remove(const Region& region) {
  Registered gone;  // deregistered after the lock has been released
  const std::lock_guard lock(regions_mutex_);
  if (const auto found = regions_.find(region.id); found != regions_.end()) {
    gone = std::move(found->second);
    regions_.erase(found);
  }
}

Result<void> DirectTransfers::add_and_post(const Transfer& transfer, ibv_wr_opcode opcode) {
  const Lock lock(mutex_);
  if (over_) return *over_;
  pending_.push_back({transfer, opcode});
  if (!can_use_channel()) return {};  // begin() posts it
  if (auto posted = channel_->post(transfer, opcode); !posted) {
    break_channel(posted.error());
    if (over_) return *over_;
  }
  return {};
}

// A read is executed after earlier writes of the same queue pair and flushes them to the peer's memory.
// Writes of an earlier queue pair were there when the peer destroyed its end.
Result<void> DirectTransfers::flush(const Transfer& transfer) {
  Transfer last = transfer;
  last.bytes = 1;
  return add_and_post(last, IBV_WR_RDMA_READ);
}

void DirectTransfers::collect() {
  std::array<ibv_wc, 16> done;
  while (can_use_channel() && !pending_.empty()) {
    const int count = ibv_poll_cq(channel_->pair().completions(), done.size(), done.data());
    if (count < 0) return break_channel({ErrorCode::unavailable, "ibv_poll_cq failed"});
    if (count == 0) return;
    for (int i = 0; i < count; ++i) {
      if (done[i].status != IBV_WC_SUCCESS) return take_failure(done[i].status);
      done_.push_back(done[i].wr_id);
      pending_.pop_front();
    }
  }
}

void DirectTransfers::take_failure(ibv_wc_status status) {
  if (status == IBV_WC_REM_ACCESS_ERR)
    return end({ErrorCode::malformed, "a direct transfer used memory that is not registered"});
  Error why{ErrorCode::lost,
            std::string("a direct transfer failed: ") + domain_->verbs().wc_status_str(status)};
  if (is_failure_of_channel(status)) return break_channel(std::move(why));
  end(std::move(why));
}

void DirectTransfers::break_channel(Error why) {
  if (!is_kept_) return end(std::move(why));
  if (std::exchange(is_broken_, true)) return;
  if (tell_broken_) tell_broken_(why);
}

void DirectTransfers::end(Error why) {
  if (!over_) over_ = std::move(why);
}

Result<size_t> DirectTransfers::completed(std::span<uint64_t> cookies) {
  const Lock lock(mutex_);
  if (done_.empty()) collect();
  size_t count = 0;
  for (; count < cookies.size() && !done_.empty(); ++count) {
    cookies[count] = done_.front();
    done_.pop_front();
  }
  if (count != 0 || !over_) return count;
  channel_.reset();  // the device uses no memory of the other transfers any more
  return *over_;
}

Result<void> DirectTransfers::wait(Deadline deadline) {
  Lock lock(mutex_);
  if (can_use_channel()) channel_->pair().arm();
  collect();  // completions before arm() raise no event
  if (!done_.empty() || over_) return {};
  DataChannel* const channel = can_use_channel() ? channel_.get() : nullptr;
  used_ = channel;
  lock.unlock();
  pollfd polled[2] = {{channel ? channel->pair().events_descriptor() : -1, POLLIN, 0}, {wake_, POLLIN, 0}};
  ::poll(polled, 2, poll_limit(deadline));
  if (polled[1].revents != 0) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(wake_, &count, sizeof count);
  }
  if (channel) channel->pair().take_events();
  lock.lock();
  used_ = nullptr;
  left_.notify_all();
  return {};
}

void DirectTransfers::interrupt() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof one);
}

Result<void> DirectTransfers::take(const void* owner, std::unique_ptr<DataChannel> channel) {
  const Lock lock(mutex_);
  if (over_) return *over_;
  next_ = std::move(channel);
  next_owner_ = owner;
  return {};
}

Result<void> DirectTransfers::begin(const void* owner, std::function<void(const Error&)> broken) {
  const Lock lock(mutex_);
  if (over_) return *over_;
  if (channel_ || next_owner_ != owner)
    return Error{ErrorCode::unavailable, "another connection has the session's direct transfers"};
  channel_ = std::move(next_);
  owner_ = std::exchange(next_owner_, nullptr);
  tell_broken_ = std::move(broken);
  is_broken_ = false;
  for (const Posted& posted : pending_) {
    if (auto done = channel_->post(posted.transfer, posted.opcode); !done) {
      break_channel(done.error());
      break;
    }
  }
  interrupt();  // a thread in wait() must wait for the new channel
  return {};
}

void DirectTransfers::drop(const void* owner) {
  std::unique_ptr<DataChannel> gone;  // destroyed before the lock is released
  Lock lock(mutex_);
  if (next_owner_ == owner) {
    next_owner_ = nullptr;
    gone = std::move(next_);
  }
  if (owner_ != owner) return gone.reset();
  owner_ = nullptr;
  tell_broken_ = nullptr;
  collect();  // what has completed need not be posted again
  gone = std::move(channel_);
  if (!is_kept_) end({ErrorCode::lost, "the connection of a direct transfer has ended"});
  destroy(std::move(gone), lock);
}

void DirectTransfers::destroy(std::unique_ptr<DataChannel> channel, Lock& lock) {
  interrupt();
  left_.wait(lock, [&] { return used_ == nullptr || used_ != channel.get(); });
  channel.reset();
}

void DirectTransfers::keep() {
  const Lock lock(mutex_);
  is_kept_ = true;
}

void DirectTransfers::close() {
  Lock lock(mutex_);
  end({ErrorCode::closed, "the connection was closed on this side"});
  if (next_) next_->pair().fail();  // its connection still uses it
  destroy(std::move(channel_), lock);
}

}  // namespace gpupool::transport::rdma
