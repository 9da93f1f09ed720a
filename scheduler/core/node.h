// A GPU host in the scheduler's core: inventory, allocations and health. Owned by Core; its thread.
#pragma once
#include <algorithm>
#include <deque>
#include <set>
#include <string>
#include <vector>

#include "scheduler/core/types.h"

namespace gpupool::scheduler {

constexpr uint32_t kWholeGpu = 1000;

struct Amount {
  uint32_t milli = 0;
  uint64_t memory = 0;
  Amount& operator+=(const Amount& other) { return milli += other.milli, memory += other.memory, *this; }
  Amount& operator-=(const Amount& other) { return milli -= other.milli, memory -= other.memory, *this; }
  bool within(const Amount& limit) const { return milli <= limit.milli && memory <= limit.memory; }
  bool operator==(const Amount&) const = default;
};
inline Amount operator+(Amount a, const Amount& b) {
  return a += b;
}
// Subtracts, saturating at zero.
inline Amount less(const Amount& a, const Amount& b) {
  return {a.milli - std::min(a.milli, b.milli), a.memory - std::min(a.memory, b.memory)};
}

struct HostAmount {
  uint64_t cpu_milli = 0;
  uint64_t memory = 0;
  HostAmount& operator+=(const HostAmount& other) {
    return cpu_milli += other.cpu_milli, memory += other.memory, *this;
  }
  HostAmount& operator-=(const HostAmount& other) {
    return cpu_milli -= other.cpu_milli, memory -= other.memory, *this;
  }
  bool within(const HostAmount& limit) const {
    return cpu_milli <= limit.cpu_milli && memory <= limit.memory;
  }
  bool operator==(const HostAmount&) const = default;
};
inline HostAmount operator+(HostAmount a, const HostAmount& b) {
  return a += b;
}
inline HostAmount less(const HostAmount& a, const HostAmount& b) {
  return {a.cpu_milli - std::min(a.cpu_milli, b.cpu_milli), a.memory - std::min(a.memory, b.memory)};
}

// The allocations of one shared resource: a GPU or the CPU and memory of a host.
template <class T>
struct Allocations {
  T total;
  T used;                 // by all leases but suspended ones, ending ones included
  T ending;               // part of `used`: by leases that are ending or about to be suspended
  T preemptible;          // part of `used`: by best-effort leases that may be preempted
  T reserved;             // for the head of the queue; `used` + `reserved` may exceed `total`
  T kept;                 // likewise, for suspended leases that wait to be resumed
  bool withheld = false;  // no new leases of it
  T free() const { return withheld ? T{} : less(total, used); }
  T spare() const { return withheld ? T{} : less(total, used + reserved + kept); }
};

// A node's claim that it has a GPU (claims.h).
struct Claim {
  Time since = 0;        // reported without interruption since then; 0: since before this was recorded
  bool trusted = false;  // confirmed by an operator (trust_gpu())
};

struct Gpu {
  std::string uuid, model;
  Claim claim;
  std::string withheld_because;  // non-empty: why allocations.withheld is set
  Allocations<Amount> allocations;
  pool::GpuUse use;  // from the last report
};

struct Node {
  pool::Inventory inventory;
  std::vector<Gpu> gpus;  // in the inventory's order
  Allocations<HostAmount> host;
  std::set<LeaseId> leases;  // leases with a part on this node, also an arriving or a leaving one

  bool drained = false;
  std::string drained_because;
  Time drained_at = 0;      // 0: unknown
  bool moves_away = false;  // drained, and its leases are to move to other nodes
  // With `moves_away`: when the leases that are still here are evicted; 0: they are not. Holders of leases
  // that are not moving are told from `evict_notice_at` on.
  Time evict_at = 0, evict_notice_at = 0;
  std::string removed_boot;  // boot id of the poold process that an operator removed

  Stream stream = 0;
  Time last_report = 0;  // of the last report; for a restored node the time of restore()
  bool has_reported = false;
  bool silent = true;   // disconnected, or three heartbeats missed
  bool lost = false;    // no report for node_lost_ms; its leases were ended
  Time stopped_at = 0;  // when its poold announced a shutdown; 0: it did not
  pool::NodeState::Condition shown = pool::NodeState::SILENT;  // condition() at the last check_node()
  std::string shown_because;
  Time since = 0;  // when `shown` changed
  bool ready = false;
  std::string not_ready_because;
  int64_t clock_ahead = 0;  // milliseconds
  // Non-empty: why its reports are not trusted. Cleared by a restart of its poold, and by undrain and remove.
  std::string distrust_reason;
  std::optional<pool::SuspensionRoom> suspension_room;  // in the last report; null: an older poold
  bool lacks_signing_key = false;                       // its poold lacks the scheduler's public key
  Time flapping_until = 0;
  std::deque<Time> registrations;                         // within the last minute
  bool was_open = false;                                  // open() as last passed to the placer
  std::string sent_fence;                                 // fence() as last sent to the node
  std::set<LeaseId> unknown_leases;                       // have sessions here
  std::vector<pool::CountersRecorded> counters_recorded;  // for the answer to its last report

  const std::string& name() const { return inventory.node(); }
  const std::string& boot() const { return inventory.boot(); }
  bool forgotten() const { return boot().empty(); }  // removed by an operator, and not registered since
  bool removed() const { return !removed_boot.empty() && removed_boot == boot(); }
  std::string fence() const {
    if (!distrust_reason.empty()) return distrust_reason;
    if (removed()) return "removed by an operator; restart its poold";
    if (lacks_signing_key) {
      return "its poold lacks this scheduler's public key: write the output of pool-scheduler "
             "--print-public-key to a file in [pool] public_keys "
             "(--pool-public-key), then send poold SIGHUP";
    }
    if (flapping_until > 0) return "it reconnected too often within a minute";
    if (!unknown_leases.empty()) return "it has sessions of a lease that has ended or was never granted";
    return "";
  }
  // Returns the GPU with this UUID; null if the node has none.
  Gpu* find_gpu(const std::string& uuid) {
    const auto found =
        std::find_if(gpus.begin(), gpus.end(), [&](const Gpu& gpu) { return gpu.uuid == uuid; });
    return found == gpus.end() ? nullptr : &*found;
  }
  // True if suspended leases may be resumed here.
  bool may_resume() const { return !silent && !lost && stopped_at == 0 && ready && fence().empty(); }
  // True if new leases may be placed here.
  bool open() const { return may_resume() && !drained; }
  // Returns the condition shown to operators, and its cause.
  std::pair<pool::NodeState::Condition, std::string> condition() const;
};

}  // namespace gpupool::scheduler
