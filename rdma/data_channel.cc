#include "rdma/data_channel.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "protocol/transport/deadline.h"

namespace gpupool::transport::rdma {

Result<std::unique_ptr<DataChannel>> DataChannel::make(std::shared_ptr<Domain> domain, Side side) {
  const bool client = side == Side::client;
  auto pair = QueuePair::make(
      std::move(domain), {.sends = client ? 1 : static_cast<uint32_t>(kMaxPendingTransfers),
                          .remote_access = client ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE : 0});
  if (!pair) return pair.error();
  const int wake = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake < 0) return Error{ErrorCode::unavailable, "cannot create an eventfd"};
  return std::unique_ptr<DataChannel>(new DataChannel(std::move(*pair), wake));
}

DataChannel::~DataChannel() {
  pair_->fail();  // the device stops using the program's memory
  pair_.reset();
  ::close(wake_);
}

Result<DirectMemory::Region> DataChannel::add(void* start, uint64_t bytes, Access access, int dma_buf) {
  const int rights = IBV_ACCESS_LOCAL_WRITE |
                     (access == Access::remote ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE : 0);
  auto registered = pair_->domain().add(start, bytes, rights, dma_buf);
  if (!registered) return registered.error();
  const std::lock_guard lock(mutex_);
  const Region region{next_id_++, registered->local_key(),
                      access == Access::remote ? registered->remote_key() : 0};
  regions_.emplace(region.id, std::move(*registered));
  return region;
}

void DataChannel::remove(const Region& region) {
  Registered gone;  // deregistered after the lock has been released
  const std::lock_guard lock(mutex_);
  if (const auto found = regions_.find(region.id); found != regions_.end()) {
    gone = std::move(found->second);
    regions_.erase(found);
  }
}

Result<void> DataChannel::post(const Transfer& transfer, ibv_wr_opcode opcode) {
  ibv_sge local{reinterpret_cast<uintptr_t>(transfer.local), transfer.bytes, transfer.local_key};
  ibv_send_wr request{};
  request.wr_id = transfer.cookie;
  request.sg_list = &local;
  request.num_sge = 1;
  request.opcode = opcode;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = transfer.remote;
  request.wr.rdma.rkey = transfer.remote_key;
  ibv_send_wr* bad = nullptr;
  if (ibv_post_send(pair_->get(), &request, &bad) == 0) return {};
  return Error{ErrorCode::unavailable, "ibv_post_send failed for a direct transfer"};
}

Result<void> DataChannel::read(const Transfer& transfer) {
  return post(transfer, IBV_WR_RDMA_READ);
}
Result<void> DataChannel::write(const Transfer& transfer) {
  return post(transfer, IBV_WR_RDMA_WRITE);
}

// A read is executed after earlier writes of the same queue pair and flushes them to the peer's memory.
Result<void> DataChannel::flush(const Transfer& transfer) {
  Transfer last = transfer;
  last.bytes = 1;
  return post(last, IBV_WR_RDMA_READ);
}

Result<size_t> DataChannel::completed(std::span<uint64_t> cookies) {
  size_t total = 0;
  while (total < cookies.size()) {
    std::array<ibv_wc, 16> done;
    int count = 1;
    if (std::exchange(has_early_, false))
      done[0] = early_;
    else
      count = ibv_poll_cq(pair_->completions(),
                          static_cast<int>(std::min(done.size(), cookies.size() - total)), done.data());
    if (count < 0) return Error{ErrorCode::unavailable, "ibv_poll_cq failed"};
    if (count == 0) break;
    for (int i = 0; i < count; ++i) {
      if (done[i].status != IBV_WC_SUCCESS) {
        const auto why = pair_->domain().verbs().wc_status_str(done[i].status);
        const bool forbidden = done[i].status == IBV_WC_REM_ACCESS_ERR;
        return Error{forbidden ? ErrorCode::malformed : ErrorCode::lost,
                     forbidden ? "a direct transfer used memory that is not registered"
                               : std::string("a direct transfer failed: ") + why};
      }
      cookies[total++] = done[i].wr_id;
    }
  }
  return total;
}

bool DataChannel::nothing_done() {
  if (!has_early_) has_early_ = ibv_poll_cq(pair_->completions(), 1, &early_) > 0;
  return !has_early_;
}

Result<void> DataChannel::wait(Deadline deadline) {
  pair_->arm();
  // Completions before arm() raise no event.
  if (!nothing_done()) return {};
  pollfd polled[2] = {{pair_->events_descriptor(), POLLIN, 0}, {wake_, POLLIN, 0}};
  ::poll(polled, 2, poll_limit(deadline));
  if (polled[1].revents != 0) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(wake_, &count, sizeof count);
  }
  pair_->take_events();
  return {};
}

void DataChannel::interrupt() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof one);
}

}  // namespace gpupool::transport::rdma
