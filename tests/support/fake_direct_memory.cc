#include "tests/support/fake_direct_memory.h"

#include <algorithm>
#include <cstring>

namespace gpupool::testing {

using Lock = std::unique_lock<std::mutex>;

Result<transport::DirectMemory::Region> FakeDirectMemory::add(void* start, uint64_t bytes, Access access,
                                                              int) {
  const Lock lock(mutex_);
  if (bytes > limit_ - std::min(limit_, bytes_))
    return Error{ErrorCode::limit, "limit of registered bytes exceeded"};
  const auto key = static_cast<uint32_t>(++next_ * 0x1f3);
  known_[key] = {reinterpret_cast<uint64_t>(start), bytes, access, next_};
  bytes_ += bytes;
  return Region{next_, key, access == Access::remote ? key : 0};
}

void FakeDirectMemory::remove(const Region& region) {
  const Lock lock(mutex_);
  const auto known = known_.find(region.local_key);
  misused_ |= known == known_.end() || known->second.id != region.id;
  if (known == known_.end()) return;
  bytes_ -= known->second.bytes;
  known_.erase(known);
}

bool FakeDirectMemory::covers(uint32_t key, uint64_t address, uint64_t bytes, bool remote) const {
  const auto known = known_.find(key);
  if (known == known_.end() || (remote && known->second.access != Access::remote)) return false;
  return address >= known->second.start && bytes <= known->second.bytes &&
         address - known->second.start <= known->second.bytes - bytes;
}

Result<void> FakeDirectMemory::post(Kind kind, const Transfer& transfer) {
  const Lock lock(mutex_);
  if (!broken_.empty()) return Error{ErrorCode::lost, broken_};
  misused_ |= posted_.size() + done_.size() >= kMaxPendingTransfers || transfer.bytes == 0;
  posted_.push_back({kind, transfer});
  most_under_way_ = std::max(most_under_way_, posted_.size());
  run();
  return {};
}

void FakeDirectMemory::run() {
  while (broken_.empty() && !posted_.empty() && may_complete_ != 0) {
    const auto [kind, transfer] = posted_.front();
    const auto local = reinterpret_cast<uint64_t>(transfer.local);
    if (!covers(transfer.local_key, local, transfer.bytes, false)) {
      misused_ = true;
      broken_ = "local protection error";
      break;
    }
    if (!covers(transfer.remote_key, transfer.remote, transfer.bytes, true)) {
      broken_ = "remote access error";
      break;
    }
    auto* const remote = reinterpret_cast<void*>(transfer.remote);
    if (kind == Kind::write)
      std::memcpy(remote, transfer.local, transfer.bytes);
    else
      std::memcpy(transfer.local, remote, transfer.bytes);
    posted_.pop_front();
    done_.push_back(transfer.cookie);
    if (may_complete_ != ~size_t{0}) --may_complete_;
  }
  changed_.notify_all();
}

Result<size_t> FakeDirectMemory::completed(std::span<uint64_t> cookies) {
  const Lock lock(mutex_);
  size_t count = 0;
  for (; count < cookies.size() && !done_.empty(); ++count) {
    cookies[count] = done_.front();
    done_.pop_front();
  }
  if (count == 0 && !broken_.empty()) return Error{ErrorCode::lost, broken_};
  return count;
}

Result<void> FakeDirectMemory::wait(transport::Deadline deadline) {
  Lock lock(mutex_);
  const auto ready = [this] { return interrupted_ || !done_.empty() || !broken_.empty(); };
  if (deadline)
    changed_.wait_until(lock, *deadline, ready);
  else
    changed_.wait(lock, ready);
  interrupted_ = false;
  return {};
}

void FakeDirectMemory::interrupt() {
  const Lock lock(mutex_);
  interrupted_ = true;
  changed_.notify_all();
}

void FakeDirectMemory::hold() {
  const Lock lock(mutex_);
  may_complete_ = 0;
}

void FakeDirectMemory::let_go(size_t count) {
  const Lock lock(mutex_);
  may_complete_ = count;
  run();
}

void FakeDirectMemory::let_go() {
  let_go(~size_t{0});
}

void FakeDirectMemory::break_connection() {
  const Lock lock(mutex_);
  if (broken_.empty()) broken_ = "the connection is closed";
  changed_.notify_all();
}

bool FakeDirectMemory::await_posted(size_t count) {
  Lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::seconds(10), [&] { return posted_.size() >= count; });
}

size_t FakeDirectMemory::regions() {
  const Lock lock(mutex_);
  return known_.size();
}

uint64_t FakeDirectMemory::registered_bytes() {
  const Lock lock(mutex_);
  return bytes_;
}

size_t FakeDirectMemory::most_under_way() {
  const Lock lock(mutex_);
  return most_under_way_;
}

void FakeDirectMemory::set_limit(uint64_t bytes) {
  const Lock lock(mutex_);
  limit_ = bytes;
}

bool FakeDirectMemory::misused() {
  const Lock lock(mutex_);
  return misused_;
}

}  // namespace gpupool::testing
