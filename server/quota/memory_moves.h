// Oversubscription: chooses the sessions whose memory moves to host memory to make room on a full GPU. The
// algorithm alone, without clock or processes; WorkerPool calls it.
//
// A tenant keeps its guaranteed memory. Sessions move in this order: idle ones, the longest idle first; those
// that wait for room themselves and began to later; busy ones that have had their memory for a while. For a
// tenant that has less than its guaranteed memory, all sessions of other tenants are considered at once. Busy
// sessions move memory between two commands. So every waiting session gets memory, and keeps it for long
// enough to be worth the move.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace gpupool::quota {

using MoveTime = std::chrono::nanoseconds;  // of the steady clock

constexpr MoveTime kIdleAfter = std::chrono::milliseconds(20);  // without a command
// For a session that has just got its memory back.
constexpr MoveTime kSurelyIdleAfter = std::chrono::milliseconds(500);

// A session and its memory on one GPU.
struct MemoryUse {
  uint64_t session = 0;
  std::string tenant;
  uint64_t resident = 0;                // bytes on the GPU
  uint64_t movable = 0;                 // part of `resident`
  uint64_t in_host = 0;                 // bytes
  std::optional<MoveTime> idle_since;   // empty: busy
  MoveTime stays_until{};               // it got its memory back recently; not to be moved before
  std::optional<MoveTime> waits_since;  // for room for itself
  std::optional<uint64_t> will_keep;    // it has an open order; so many resident bytes remain
};

struct MemoryRequest {
  uint64_t session = 0;
  uint64_t bytes = 0;
  bool returns = false;  // its own memory, back from host memory
  MoveTime since{};      // when it began to wait
};

struct MoveOrder {
  uint64_t session = 0;
  uint64_t bytes = 0;    // to move, as far as possible
  uint64_t most = 0;     // upper limit
  uint64_t keep = 0;     // resident bytes that must remain
  bool at_once = false;  // between two commands; false: only when it is idle
};

struct MoveChoice {
  std::vector<MoveOrder> orders;
  bool hopeless = false;  // waiting will not help
  bool entitled = false;  // the tenant's guaranteed memory covers the request
};

// `sessions`: all sessions on the GPU, including the requesting one. `guaranteed` returns bytes for a
// tenant's name.
MoveChoice choose_moves(const MemoryRequest& request, const std::vector<MemoryUse>& sessions,
                        const std::function<uint64_t(const std::string&)>& guaranteed, uint64_t device_bytes,
                        uint64_t host_room, MoveTime now);

}  // namespace gpupool::quota
