// Sends the session's memory to the target in rounds, while the program runs: the first round sends all of
// it, each later one what has changed since. The last round, when the program has been stopped, sends the
// rest.
//
// The hash of a block is that of the bytes that were sent, and not of the memory at that time, which a kernel
// may have been writing.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "server/worker/migration/block_hash.h"
#include "server/worker/migration/target_stream.h"

namespace gpupool::worker {

class MemoryRounds {
 public:
  // Mapped memory of one device.
  struct Range {
    uint64_t address = 0, size = 0;
    uint64_t context = 0;         // the client's handle of a context on the device
    CUcontext object = nullptr;   // this context
    bool cpu_accessible = false;  // the CPU can read it at these addresses
  };

  explicit MemoryRounds(const DeviceApi& api) : api_(api) {}
  MemoryRounds(const MemoryRounds&) = delete;
  MemoryRounds& operator=(const MemoryRounds&) = delete;

  // Memory to send; the command that maps it at the target has been sent or added. Executor's thread.
  void add(const Range& range);
  bool contains(uint64_t address, uint64_t size);
  // Memory, or access to it, goes: no further piece of it is read. It must not be unmapped while
  // is_being_read(); await_read() waits for that. Any thread.
  void forget(uint64_t address, uint64_t size);
  bool is_being_read(uint64_t address, uint64_t size);
  void await_read(uint64_t address, uint64_t size);
  // Call before the context is destroyed, when its work is done. Executor's thread.
  void forget_context(CUcontext context);
  // Forgets all memory. Executor's thread.
  void clear();

  // Sends rounds until little has changed since the last one, or the next one would not be shorter, or
  // `stop`. One thread at a time, here and below.
  Result<void> run(TargetStream& target, const std::atomic<bool>& stop);
  // Sends what has changed since. The device must be idle. `skips_zeros`: there were no rounds before, so
  // blocks of zeros need not be sent: mapped memory is zero at the target.
  Result<void> finish(TargetStream& target, bool skips_zeros, uint64_t* bytes);

 private:
  struct Known {
    Range range;
    uint64_t id;  // no two are the same, also at the same address
    std::vector<BlockHash> hashes;
    std::vector<char> has_hash;  // whether the block was sent
  };
  struct Piece {
    uint64_t id, address;  // of the range
    size_t first, count;   // blocks
  };
  // Marks memory that the round reads without the lock, since a kernel may delay it for any length of time.
  class Reading;
  struct Blocks {
    Range range;
    std::vector<BlockHash> hashes;
    std::vector<char> has_hash;
  };
  Known* find(uint64_t id, uint64_t address);
  bool is_read(uint64_t address, uint64_t size) const;
  std::vector<Piece> all();
  Result<void> run_round(bool last);
  Result<void> send_blocks(const Piece& blocks, bool last);
  Result<void> send_piece(const Piece& piece, bool last);
  Result<void> send_tail(const Piece& range);
  Result<void> send_staged(uint64_t context, uint64_t address, size_t bytes);
  Result<void> send_part(uint64_t context, uint64_t address, std::span<const std::byte> bytes);
  Result<std::vector<char>> changed(const Blocks& known, size_t first);
  Result<void> hash(const Range& range, size_t first, size_t count, BlockHash* hashes);
  Result<void> copy_out(const Range& range, uint64_t offset, size_t bytes);
  Result<DeviceHasher*> hasher_of(const Range& range);

  const DeviceApi& api_;
  // Used by the thread that sends.
  TargetStream* target_ = nullptr;
  const std::atomic<bool>* stop_ = nullptr;
  std::vector<std::byte> staging_;
  uint64_t round_bytes_ = 0;
  bool skips_zeros_ = false;
  std::unique_ptr<const HashKeys> keys_;  // made by the first add()
  std::atomic<bool> active_{false};       // there were ranges
  std::mutex mutex_;                      // guards the rest; no driver call while it is held
  std::condition_variable read_;
  std::map<uint64_t, Known> known_;  // by address
  uint64_t last_id_ = 0;
  std::optional<Range> reading_;
  // Kept for the next migration: freeing a device's memory may wait for the program's work.
  std::map<CUcontext, std::unique_ptr<DeviceHasher>> hashers_;
};

}  // namespace gpupool::worker
