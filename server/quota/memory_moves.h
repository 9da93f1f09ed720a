// Oversubscription: whose memory makes room on a full GPU by going to host memory. The choice alone, without clock or processes.
//
// A tenant keeps what is guaranteed to it. First give those that have nothing to do, the longest idle first; then those that wait
// for room themselves and came later; then those at work that have had their memory for a while, or, for a tenant that has
// less than its guaranteed part, all others at once. Those at work are asked to give way between two commands. So
// everybody who waits gets his turn, and whoever has got it keeps it for long enough to be worth the move.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace gpupool::quota {

using MoveTime = std::chrono::nanoseconds;  // of the steady clock

constexpr MoveTime kIdleAfter = std::chrono::milliseconds(20);       // without a command
constexpr MoveTime kSurelyIdleAfter = std::chrono::milliseconds(500);  // also where it has just got its memory back

// A session and its memory on one GPU.
struct MemoryUse {
  uint64_t session = 0;
  std::string tenant;
  uint64_t resident = 0;                 // bytes on the GPU
  uint64_t movable = 0;                  // of them
  uint64_t in_host = 0;                  // bytes
  std::optional<MoveTime> idle_since;    // none: at work
  MoveTime stays_until{};                // it has got its memory a short time ago
  std::optional<MoveTime> waits_since;   // for room, itself
  std::optional<uint64_t> will_keep;     // it has an order, and may go down to so many resident bytes
};

struct MemoryWish {
  uint64_t session = 0;
  uint64_t bytes = 0;
  bool returns = false;  // its own memory, from host memory
  MoveTime since{};      // when it began to wait
};

struct MoveOrder {
  uint64_t session = 0;
  uint64_t bytes = 0;   // as much as this, as far as possible
  uint64_t most = 0;    // and no more than this
  uint64_t keep = 0;    // resident bytes below which it must not go
  bool at_once = false;  // between two commands; else only when it is idle
};

struct MoveChoice {
  std::vector<MoveOrder> orders;
  bool hopeless = false;  // waiting will not help
  bool entitled = false;  // to what it wishes, by its tenant's guaranteed part
};

// `sessions`: all of the GPU, that which wishes too. `guaranteed`: bytes, by tenant.
MoveChoice choose_moves(const MemoryWish& wish, const std::vector<MemoryUse>& sessions,
                        const std::function<uint64_t(const std::string&)>& guaranteed, uint64_t device_bytes, uint64_t host_room,
                        MoveTime now);

}  // namespace gpupool::quota
