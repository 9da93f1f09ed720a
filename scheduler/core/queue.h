// The queue of waiting requests: ordered by priority, then by the tenants' weighted dominant share (dominant
// resource fairness), then by arrival. Used by Core, on its thread.
#pragma once
#include <array>
#include <map>
#include <queue>
#include <unordered_map>
#include <vector>

#include "scheduler/core/demand.h"
#include "scheduler/core/tenant.h"

namespace gpupool::scheduler {

struct WaitingRequest {
  Stream stream = 0;
  uint64_t number = 0;  // shown to users as "qNUMBER"
  std::string tenant;
  pool::Request request;  // without ticket and tenant
  Time arrived = 0;
  std::string shape;        // Demand::shape()
  uint64_t failed_at = 0;   // Core::capacity_ when placement last failed
  bool over_quota = false;  // at the last schedule()
  // The last QueuePlace sent to its client, and when.
  uint32_t sent_place = 0, sent_waiting = 0;
  std::string sent_why;
  Time sent_at = 0;

  std::string queue_id() const { return "q" + std::to_string(number); }
  // True if this request is served before another one of the same tenant.
  bool before(const WaitingRequest& other) const {
    if (request.priority() != other.request.priority()) return request.priority() > other.request.priority();
    return std::pair(arrived, number) < std::pair(other.arrived, other.number);
  }
};

class Queue {
 public:
  using Line = std::map<std::pair<Time, uint64_t>, Stream>;  // of one tenant, by arrival
  using Lines = std::map<std::string, Line>;                 // by tenant; empty lines are kept

  WaitingRequest& add(WaitingRequest waiter);
  void remove(Stream stream);
  WaitingRequest* find(Stream stream);
  WaitingRequest* find(const std::string& tenant, const std::string& request_id);  // by a non-empty id
  const Lines& lines(lease::Priority priority) const { return lines_[priority]; }
  size_t size() const { return waiting_.size(); }
  const std::unordered_map<Stream, WaitingRequest>& all() const { return waiting_; }

 private:
  std::unordered_map<Stream, WaitingRequest> waiting_;
  std::map<std::pair<std::string, std::string>, Stream> by_id_;
  std::array<Lines, lease::Priority_ARRAYSIZE> lines_;
};

// Iterates over the requests of one priority in the order in which they are to be served. After each next()
// call exactly one of granted(), skipped() and blocked(). While it exists, the queue and the tenants may
// change only in the ways reported to it.
class FairOrder {
 public:
  FairOrder(const Queue& queue, lease::Priority priority, const std::map<std::string, Tenant>& tenants,
            const PoolTotal& total);

  // Returns 0 at the end.
  Stream next();
  // The last request was granted and has left the queue; its tenant now uses this much more.
  void granted(uint64_t milli, uint64_t memory);
  void skipped() { again(); }  // the last request stays queued; go on to the tenant's next one
  void blocked() {}            // skip all further requests of the tenant

 private:
  struct Turn {
    double share;  // weighted
    std::pair<Time, uint64_t> arrived;
    const Tenant* tenant;
    uint64_t milli, memory;  // the tenant's usage with everything granted so far
    Queue::Line::const_iterator at, end;
    // std::priority_queue serves the greatest first: the smallest share, then the earliest arrival.
    bool operator<(const Turn& other) const {
      return share != other.share ? share > other.share : arrived > other.arrived;
    }
  };
  void push(Turn turn);
  void again();

  const PoolTotal total_;
  std::priority_queue<Turn> turns_;
  std::optional<Turn> last_;
};

}  // namespace gpupool::scheduler
