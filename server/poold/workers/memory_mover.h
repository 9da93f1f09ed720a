// Oversubscribed memory: when a GPU is full, moves other sessions' device memory to host memory.
// quota/memory_moves.h chooses the sessions. poold's thread.
//
// Values in session pages may be false. A worker that falsifies them is at worst not asked, or asked in vain;
// other tenants' guarantees and the limit of host memory do not depend on these values.
//
// The functions for messages return false if the worker that sent the message was ended.
#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "protocol/control/hello.pb.h"
#include "server/handover/handover.h"
#include "server/poold/upgrade/state.pb.h"
#include "server/poold/workers/workers.h"
#include "server/quota/memory_moves.h"
#include "server/tenants/tenants.h"

namespace gpupool::server {

class MemoryMover {
 public:
  // `tenants` and `devices` must outlive this object. `host_memory`: limit for all sessions' memory in host
  // memory, in bytes; 0: memory never moves.
  MemoryMover(Workers& workers, const Tenants& tenants, const std::vector<control::Device>& devices,
              uint64_t host_memory)
      : workers_(workers), tenants_(tenants), devices_(devices), host_memory_(host_memory) {}
  MemoryMover(const MemoryMover&) = delete;
  MemoryMover& operator=(const MemoryMover&) = delete;

  bool make_room(Worker& asking, const packet::MemoryNeeded& wanted);
  bool moved_out(Worker& worker, const packet::MovedOut& done);
  void session_ended(const Worker& worker) { moves_.erase(worker.session); }
  // For this process's next program (server/poold/upgrade).
  void save(uint64_t session, upgrade::Session& to) const;
  void restore(uint64_t session, const upgrade::Session& from);

 private:
  using Clock = std::chrono::steady_clock;
  struct Moves {
    // Requests for room: first, latest, and the last warning.
    Clock::time_point wants_since{}, wanted{}, warned{};
    struct Order {
      int gpu;
      uint64_t keep, most;
    };
    std::optional<Order> order;          // not answered yet
    Clock::time_point declined_until{};  // the session is busy without commands: do not ask before
    uint64_t allowed = 0;                // limit for its bytes in host memory
  };

  bool moves_memory_of(int32_t gpu) const;
  Moves& of(const Worker& worker) { return moves_[worker.session]; }
  bool waits_for_memory(const Worker& worker, Clock::time_point now);
  void note_wish(const Worker& asking, const packet::MemoryNeeded& wanted, Clock::time_point now);
  void send(const quota::MoveOrder& order, int32_t gpu, const Worker& asking);
  std::vector<quota::MemoryUse> memory_uses(int gpu, Clock::time_point now);
  uint64_t in_host(const Worker& worker);
  uint64_t host_room();

  Workers& workers_;
  const Tenants& tenants_;
  const std::vector<control::Device>& devices_;
  const uint64_t host_memory_;
  std::map<uint64_t, Moves> moves_;  // by session
};

}  // namespace gpupool::server
