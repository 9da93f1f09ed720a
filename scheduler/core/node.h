// A GPU host as the scheduler's core knows it: what it has, what is taken of it, and how it does.
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
inline Amount operator+(Amount a, const Amount& b) { return a += b; }
// What is left; nothing where there is too little.
inline Amount less(const Amount& a, const Amount& b) {
  return {a.milli - std::min(a.milli, b.milli), a.memory - std::min(a.memory, b.memory)};
}

struct HostAmount {
  uint64_t cpu_milli = 0;
  uint64_t memory = 0;
  HostAmount& operator+=(const HostAmount& other) { return cpu_milli += other.cpu_milli, memory += other.memory, *this; }
  HostAmount& operator-=(const HostAmount& other) { return cpu_milli -= other.cpu_milli, memory -= other.memory, *this; }
  bool within(const HostAmount& limit) const { return cpu_milli <= limit.cpu_milli && memory <= limit.memory; }
  bool operator==(const HostAmount&) const = default;
};
inline HostAmount operator+(HostAmount a, const HostAmount& b) { return a += b; }
inline HostAmount less(const HostAmount& a, const HostAmount& b) {
  return {a.cpu_milli - std::min(a.cpu_milli, b.cpu_milli), a.memory - std::min(a.memory, b.memory)};
}

// The account of one thing that is shared.
template <class T>
struct Book {
  T total;
  T used;         // by all leases that are not gone
  T ending;       // part of it: by those that are to go
  T preemptible;  // part of it: by best-effort ones that are not ending
  T reserved;     // for the head of the queue; with `used` it may be more than there is
  bool withheld = false;  // nothing more is leased of it
  T free() const { return withheld ? T{} : less(total, used); }
  T spare() const { return withheld ? T{} : less(total, used + reserved); }
};

// A node's word that a GPU is its own (claims.cc).
struct Claim {
  Time since = 0;        // without a pause; 0: since before this was recorded
  bool trusted = false;  // an operator says so, too
};

struct Gpu {
  std::string uuid, model;
  Claim claim;
  std::string withheld_because;  // not empty: another node reports the same GPU, and no more leases of it are placed here
  Book<Amount> book;
  pool::GpuUse use;  // as reported
};

struct Node {
  pool::Inventory inventory;
  std::vector<Gpu> gpus;  // in the inventory's order
  Book<HostAmount> host;
  std::set<LeaseId> leases;  // with a part here

  bool drained = false;
  std::string drained_because;
  Time drained_at = 0;    // 0: not known
  std::string removed_boot;

  Stream stream = 0;
  Time heard = 0;         // of a node of the store: when the core was made
  bool ever_heard = false;
  bool silent = true;
  bool lost = false;
  Time stopped_at = 0;    // when its poold said that it stops; 0: it did not
  pool::NodeState::Condition shown = pool::NodeState::SILENT;
  std::string shown_because;
  Time since = 0;         // of `shown`
  bool ready = false;
  std::string not_ready_because;
  int64_t clock_ahead = 0;
  std::string lie;        // why nothing that it says is believed; until it is another process, or an operator trusts it
  bool foreign_key = false;  // its poold lacks the key that leases are signed with
  Time flapping_until = 0;
  std::deque<Time> attended;
  bool was_open = false;   // as the placer knows it
  std::string told_fence;
  std::set<LeaseId> strangers;  // leases with sessions here that were not granted

  const std::string& name() const { return inventory.node(); }
  const std::string& boot() const { return inventory.boot(); }
  bool forgotten() const { return boot().empty(); }  // an operator has removed it, and it has not been heard since
  bool removed() const { return !removed_boot.empty() && removed_boot == boot(); }
  std::string fence() const {
    if (!lie.empty()) return lie;
    if (removed()) return "an operator has removed it; restart its poold";
    if (foreign_key) {
      return "its poold lacks this scheduler's public key: put what pool-scheduler --print-public-key prints into a file that [pool] public_keys "
             "(--pool-public-key) names, then send poold SIGHUP";
    }
    if (flapping_until > 0) return "it came and went too often within a minute";
    if (!strangers.empty()) return "sessions run there with a lease that is over or was never granted";
    return "";
  }
  // Leases are placed here.
  bool open() const { return !silent && !lost && stopped_at == 0 && ready && !drained && fence().empty(); }
  // The condition that operators are shown, and its cause.
  std::pair<pool::NodeState::Condition, std::string> condition() const;
};

}  // namespace gpupool::scheduler
