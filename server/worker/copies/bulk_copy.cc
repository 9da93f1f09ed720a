#include "server/worker/copies/bulk_copy.h"

#include <algorithm>

#include "protocol/control/dump.pb.h"
#include "protocol/wire/rows.h"

namespace gpupool::worker {
namespace {

// Returns the extent of a piece; the caller fills in both ends of the copy.
CUDA_MEMCPY2D rectangle(const DeviceRows& rows, uint64_t piece) {
  CUDA_MEMCPY2D copy{};
  copy.WidthInBytes = rows.width;
  copy.Height = rows.size_of(piece) / rows.width;
  return copy;
}

uint64_t first_row(const DeviceRows& rows, uint64_t piece) {
  return piece * (rows.piece_bytes() / rows.width);
}

}  // namespace

void BulkCopies::add(uint64_t sequence, std::shared_ptr<BulkCopy> copy) {
  const std::lock_guard lock(mutex_);
  copies_[sequence] = std::move(copy);
}

void BulkCopies::remove(uint64_t sequence) {
  std::shared_ptr<BulkCopy> last;  // destroyed after the lock is released
  const std::lock_guard lock(mutex_);
  if (const auto found = copies_.find(sequence); found != copies_.end()) {
    last = std::move(found->second);
    copies_.erase(found);
  }
  changed_.notify_all();
}

void BulkCopies::announce(uint64_t sequence, std::shared_ptr<BulkCopy> copy) {
  {
    const std::lock_guard lock(mutex_);
    announced_[sequence] = copy;
    copies_[sequence] = std::move(copy);
  }
  passed(sequence);
}

std::shared_ptr<BulkCopy> BulkCopies::take_announced(uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  auto node = announced_.extract(sequence);
  return node ? std::move(node.mapped()) : nullptr;
}

bool BulkCopies::take_room(uint64_t bytes, uint64_t limit) {
  if (early_bytes_.fetch_add(bytes) + bytes <= limit) return true;
  early_bytes_.fetch_sub(bytes);
  return false;
}

std::shared_ptr<BulkCopy> BulkCopies::find(uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  const auto found = copies_.find(sequence);
  return found == copies_.end() ? nullptr : found->second;
}

std::shared_ptr<BulkCopy> BulkCopies::await(uint64_t sequence) {
  const Waiting waiting("the command that announces its copy");
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return over_ || passed_ >= sequence; });
  const auto found = copies_.find(sequence);
  return found == copies_.end() || over_ ? nullptr : found->second;
}

void BulkCopies::passed(uint64_t sequence) {
  {
    const std::lock_guard lock(mutex_);
    passed_ = std::max(passed_, sequence);
  }
  changed_.notify_all();
}

bool BulkCopies::drain(CUcontext context, std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [&] {
    return std::none_of(copies_.begin(), copies_.end(),
                        [&](const auto& entry) { return entry.second->context == context; });
  });
}

void BulkCopies::cancel(CUcontext context) {
  std::vector<std::shared_ptr<BulkCopy>> mine;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [sequence, copy] : copies_) {
      if (copy->context == context) mine.push_back(copy);
    }
  }
  for (const auto& copy : mine) copy->cancel();
}

void BulkCopies::describe(admin::WorkerDump& dump) {
  const std::lock_guard lock(mutex_);
  dump.set_copies_under_way(copies_.size());
  for (const auto& [sequence, copy] : copies_) {
    if (dump.copies_size() == kMostListed) return;
    admin::CopyUnderWay& one = *dump.add_copies();
    one.set_to_device(copy->to_device);
    one.set_done_bytes(copy->done_bytes());
    one.set_total_bytes(copy->rows.total());
    one.set_age_ms(age_ms(copy->since));
  }
}

void BulkCopies::end() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
}

void gather(const DeviceRows& rows, uint64_t offset, std::span<std::byte> packed) {
  wire::pack_rows(reinterpret_cast<const std::byte*>(rows.address), rows.width, rows.pitch, offset,
                  packed.data(), packed.size());
}

void scatter(const DeviceRows& rows, uint64_t offset, std::span<const std::byte> packed) {
  wire::spread_rows(reinterpret_cast<std::byte*>(rows.address), rows.width, rows.pitch, offset, packed.data(),
                    packed.size());
}

CUresult copy_piece_in(const DeviceApi& api, const DeviceRows& rows, uint64_t piece, std::byte* from,
                       CUstream stream) {
  if (rows.rows == 1) {
    return api.cuMemcpyHtoDAsync_v2(rows.address + piece * rows.piece_bytes(), from, rows.size_of(piece),
                                    stream);
  }
  CUDA_MEMCPY2D copy = rectangle(rows, piece);
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = from;
  copy.srcPitch = rows.width;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = rows.address + first_row(rows, piece) * rows.pitch;
  copy.dstPitch = rows.pitch;
  return api.cuMemcpy2DAsync_v2(&copy, stream);
}

CUresult copy_piece_out(const DeviceApi& api, const DeviceRows& rows, uint64_t piece, std::byte* to,
                        CUstream stream) {
  if (rows.rows == 1) {
    return api.cuMemcpyDtoHAsync_v2(to, rows.address + piece * rows.piece_bytes(), rows.size_of(piece),
                                    stream);
  }
  CUDA_MEMCPY2D copy = rectangle(rows, piece);
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = rows.address + first_row(rows, piece) * rows.pitch;
  copy.srcPitch = rows.pitch;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = to;
  copy.dstPitch = rows.width;
  return api.cuMemcpy2DAsync_v2(&copy, stream);
}

}  // namespace gpupool::worker
