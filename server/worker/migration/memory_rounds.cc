#include "server/worker/migration/memory_rounds.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/log/log.h"
#include "protocol/wire/copies.h"
#include "server/worker/migration/racing_reads.h"

namespace gpupool::worker {
namespace {

constexpr size_t kPieceBlocks = wire::kBulkChunkBytes / kHashedBlock;  // most blocks of one command
// Blocks that are hashed at a time. Memory of which one is read cannot be unmapped.
constexpr size_t kHashBlocks = 64, kLastHashBlocks = 4096;
constexpr int kMostRounds = 10;
// Added commands that are sent between two pieces of a round. If the program adds commands faster than the
// target executes them, sending all of them each time would make each piece wait longer than the one before.
constexpr size_t kMostAddedBetween = 256;
// A round that has sent no more than this is the last but one.
constexpr uint64_t kLittle = 4u << 20;

Error device_error(const char* doing, CUresult result) {
  return {ErrorCode::unavailable, std::string(doing) + " device memory: " + error_text(result)};
}

}  // namespace

// Marks what is read while it exists. find() again afterwards: the memory may have been forgotten.
class MemoryRounds::Reading {
 public:
  // Does not mark anything if the memory was forgotten.
  Reading(MemoryRounds& rounds, const Piece& piece) : rounds_(rounds) {
    const std::lock_guard lock(rounds.mutex_);
    const Known* const known = rounds.find(piece.id, piece.address);
    if (!known) return;
    const auto first = static_cast<ptrdiff_t>(piece.first), end = first + static_cast<ptrdiff_t>(piece.count);
    blocks_ = {known->range,
               {known->hashes.begin() + first, known->hashes.begin() + end},
               {known->has_hash.begin() + first, known->has_hash.begin() + end}};
    rounds.reading_ = known->range;
  }
  ~Reading() {
    const std::lock_guard lock(rounds_.mutex_);
    rounds_.reading_.reset();
    rounds_.read_.notify_all();
  }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;
  explicit operator bool() const { return blocks_.range.size != 0; }
  const Blocks& blocks() const { return blocks_; }

 private:
  MemoryRounds& rounds_;
  Blocks blocks_;
};

void MemoryRounds::add(const Range& range) {
  const size_t blocks = range.size / kHashedBlock;
  Known known{range, 0, std::vector<BlockHash>(blocks), std::vector<char>(blocks)};
  if (!keys_) keys_ = std::make_unique<HashKeys>();
  const std::lock_guard lock(mutex_);
  known.id = ++last_id_;
  known_.insert_or_assign(range.address, std::move(known));
  active_.store(true, std::memory_order_release);
}

bool MemoryRounds::contains(uint64_t address, uint64_t size) {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(address);
  return found != known_.end() && found->second.range.size == size;
}

void MemoryRounds::forget(uint64_t address, uint64_t size) {
  if (!active_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  auto first = known_.upper_bound(address);
  if (first != known_.begin()) {
    const auto before = std::prev(first);
    if (address - before->first < before->second.range.size) first = before;
  }
  known_.erase(first, known_.lower_bound(address + size));
}

bool MemoryRounds::is_read(uint64_t address, uint64_t size) const {
  return reading_ && reading_->address < address + size && address < reading_->address + reading_->size;
}

bool MemoryRounds::is_being_read(uint64_t address, uint64_t size) {
  if (!active_.load(std::memory_order_acquire)) return false;
  const std::lock_guard lock(mutex_);
  return is_read(address, size);
}

void MemoryRounds::await_read(uint64_t address, uint64_t size) {
  if (!active_.load(std::memory_order_acquire)) return;
  std::unique_lock lock(mutex_);
  read_.wait(lock, [&] { return !is_read(address, size); });
}

void MemoryRounds::forget_context(CUcontext context) {
  std::unique_ptr<DeviceHasher> hasher;
  std::unique_lock lock(mutex_);
  std::erase_if(known_, [&](const auto& one) { return one.second.range.object == context; });
  read_.wait(lock, [&] { return !reading_ || reading_->object != context; });
  if (auto found = hashers_.extract(context); !found.empty()) hasher = std::move(found.mapped());
}

void MemoryRounds::clear() {
  const std::lock_guard lock(mutex_);
  known_.clear();
}

MemoryRounds::Known* MemoryRounds::find(uint64_t id, uint64_t address) {
  const auto found = known_.find(address);
  return found == known_.end() || found->second.id != id ? nullptr : &found->second;
}

std::vector<MemoryRounds::Piece> MemoryRounds::all() {
  const std::lock_guard lock(mutex_);
  std::vector<Piece> pieces;
  for (const auto& [address, known] : known_) pieces.push_back({known.id, address, 0, known.hashes.size()});
  return pieces;
}

Result<void> MemoryRounds::run(TargetStream& target, const std::atomic<bool>& stop) {
  target_ = &target;
  stop_ = &stop;
  uint64_t before = ~uint64_t{0};
  for (int round = 1; round <= kMostRounds && !stop; ++round) {
    const auto start = std::chrono::steady_clock::now();
    if (auto sent = run_round(false); !sent) return sent;
    const auto took = std::chrono::steady_clock::now() - start;
    log::info("migration_round",
              {{"round", round},
               {"bytes", round_bytes_},
               {"milliseconds", std::chrono::round<std::chrono::milliseconds>(took).count()}});
    if (round_bytes_ <= kLittle || round_bytes_ > before / 4 * 3) break;
    before = round_bytes_;
  }
  return {};
}

Result<void> MemoryRounds::finish(TargetStream& target, bool skips_zeros, uint64_t* bytes) {
  static constexpr std::atomic<bool> kGoOn{false};
  target_ = &target;
  stop_ = &kGoOn;
  skips_zeros_ = skips_zeros;
  auto sent = run_round(true);
  skips_zeros_ = false;
  *bytes = round_bytes_;
  return sent;
}

Result<void> MemoryRounds::run_round(bool last) {
  round_bytes_ = 0;
  staging_.resize(wire::kBulkChunkBytes);
  // Everything in this list is mapped at the target once what was added until now has been sent.
  const auto ranges = all();
  if (auto sent = target_->send_added(); !sent) return sent;
  for (const Piece& range : ranges) {
    const size_t most = last ? kLastHashBlocks : kHashBlocks;
    for (size_t at = 0; at < range.count && !*stop_; at += most) {
      if (auto sent = target_->send_added(kMostAddedBetween); !sent) return sent;
      const Piece blocks{range.id, range.address, at, std::min(most, range.count - at)};
      if (auto sent = send_blocks(blocks, last); !sent) return sent;
    }
    if (!last) continue;
    if (auto sent = send_tail(range); !sent) return sent;
  }
  return target_->send_added();
}

Result<void> MemoryRounds::send_blocks(const Piece& blocks, bool last) {
  std::vector<char> differ;
  if (const Reading reading(*this, blocks); reading) {
    auto found = changed(reading.blocks(), blocks.first);
    if (!found) return found.error();
    differ = std::move(*found);
  }
  for (size_t at = 0; at < differ.size();) {
    size_t end = at;
    while (end < differ.size() && differ[end] && end - at < kPieceBlocks) ++end;
    if (end == at) {
      ++at;
      continue;
    }
    if (auto sent = send_piece({blocks.id, blocks.address, blocks.first + at, end - at}, last); !sent)
      return sent;
    at = end;
  }
  return {};
}

// Returns for each block whether it has to be sent.
Result<std::vector<char>> MemoryRounds::changed(const Blocks& known, size_t first) {
  const size_t count = known.hashes.size();
  std::vector<char> differ(count, 1);
  if (std::ranges::none_of(known.has_hash, [](char has) { return has != 0; })) return differ;
  std::vector<BlockHash> now(count);
  if (auto hashed = hash(known.range, first, count, now.data()); !hashed) return hashed.error();
  for (size_t i = 0; i < count; ++i) differ[i] = !known.has_hash[i] || now[i] != known.hashes[i];
  return differ;
}

Result<void> MemoryRounds::send_piece(const Piece& piece, bool last) {
  const size_t bytes = piece.count * kHashedBlock;
  const uint64_t offset = piece.first * kHashedBlock;
  uint64_t context = 0;
  {
    const Reading reading(*this, piece);
    if (!reading) return {};
    context = reading.blocks().range.context;
    if (auto copied = copy_out(reading.blocks().range, offset, bytes); !copied) return copied;
  }
  if (!last) {
    std::vector<BlockHash> hashes(piece.count);
    hash_blocks(staging_.data(), piece.count, *keys_, hashes.data());
    const std::lock_guard lock(mutex_);
    Known* const known = find(piece.id, piece.address);
    if (!known) return {};  // the target may have other memory there by the time that this arrives
    std::ranges::copy(hashes, known->hashes.begin() + static_cast<ptrdiff_t>(piece.first));
    std::fill_n(known->has_hash.begin() + static_cast<ptrdiff_t>(piece.first), piece.count, 1);
  }
  return send_staged(context, piece.address + offset, bytes);
}

// Sends the end of a range, which is less than a block and has no hash.
Result<void> MemoryRounds::send_tail(const Piece& range) {
  const Reading reading(*this, {range.id, range.address, 0, 0});
  const uint64_t offset = range.count * kHashedBlock;
  if (!reading || reading.blocks().range.size == offset) return {};
  const uint64_t bytes = reading.blocks().range.size - offset;
  if (auto copied = copy_out(reading.blocks().range, offset, bytes); !copied) return copied;
  return send_staged(reading.blocks().range.context, range.address + offset, bytes);
}

Result<void> MemoryRounds::send_staged(uint64_t context, uint64_t address, size_t bytes) {
  const auto staged = std::span<const std::byte>(staging_).first(bytes);
  if (!skips_zeros_) return send_part(context, address, staged);
  const auto block = [&](size_t at) {
    return staged.subspan(at, std::min<size_t>(kHashedBlock, bytes - at));
  };
  for (size_t at = 0, end = 0; at < bytes; at = end) {
    end = at + block(at).size();
    if (is_all_zero(block(at))) continue;
    while (end < bytes && !is_all_zero(block(end))) end += block(end).size();
    if (auto sent = send_part(context, address + at, staged.subspan(at, end - at)); !sent) return sent;
  }
  return {};
}

Result<void> MemoryRounds::send_part(uint64_t context, uint64_t address, std::span<const std::byte> bytes) {
  round_bytes_ += bytes.size();
  const auto size = static_cast<uint32_t>(bytes.size());
  return target_->send(wire::Command::copy_to_device, context,
                       wire::CopyToDevice{0, address, size, size, 1, 0, 0}, bytes);
}

Result<void> MemoryRounds::hash(const Range& range, size_t first, size_t count, BlockHash* hashes) {
  const uint64_t address = range.address + first * kHashedBlock;
  if (range.cpu_accessible) {
    hash_blocks_at_once(reinterpret_cast<const std::byte*>(address), count, *keys_, hashes);
    return {};
  }
  const auto hasher = hasher_of(range);
  if (!hasher) return hasher.error();
  const CUresult result = (*hasher)->hash(address, count, hashes);
  if (result != CUDA_SUCCESS) return device_error("hashing", result);
  return {};
}

Result<void> MemoryRounds::copy_out(const Range& range, uint64_t offset, size_t bytes) {
  const uint64_t address = range.address + offset;
  if (range.cpu_accessible) {
    const RacingReads reads;
    std::memcpy(staging_.data(), reinterpret_cast<const std::byte*>(address), bytes);
    return {};
  }
  const auto hasher = hasher_of(range);
  if (!hasher) return hasher.error();
  const CUresult result = (*hasher)->copy_out(staging_.data(), address, bytes);
  if (result != CUDA_SUCCESS) return device_error("reading", result);
  return {};
}

// The context stays while its memory is being read.
Result<DeviceHasher*> MemoryRounds::hasher_of(const Range& range) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = hashers_.find(range.object); found != hashers_.end()) return found->second.get();
  }
  auto made = std::make_unique<DeviceHasher>(api_, range.object);
  if (const CUresult result = made->open(*keys_); result != CUDA_SUCCESS)
    return device_error("preparing to hash", result);
  const std::lock_guard lock(mutex_);
  return (hashers_[range.object] = std::move(made)).get();
}

}  // namespace gpupool::worker
