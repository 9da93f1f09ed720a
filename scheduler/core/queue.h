// Those who wait: by priority, then fairly between tenants (weighted dominant share), then by their arrival.
#pragma once
#include <array>
#include <map>
#include <queue>
#include <unordered_map>
#include <vector>

#include "scheduler/core/demand.h"
#include "scheduler/core/tenant.h"

namespace gpupool::scheduler {

struct Waiter {
  Stream stream = 0;
  uint64_t number = 0;    // of the request, for people
  std::string tenant;
  pool::Request request;  // without its ticket
  Time arrived = 0;
  std::string shape;
  uint64_t failed_at = 0;  // the capacity's number when it last found no place
  bool over_quota = false;  // when it was last looked at
  // What its holder has been told, and when.
  uint32_t told_place = 0, told_waiting = 0;
  std::string told_why;
  Time told = 0;

  std::string queue_id() const { return "q" + std::to_string(number); }
  // True if this request is served before another one of the same tenant.
  bool before(const Waiter& other) const {
    if (request.priority() != other.request.priority()) return request.priority() > other.request.priority();
    return std::pair(arrived, number) < std::pair(other.arrived, other.number);
  }
};

class Queue {
 public:
  using Line = std::map<std::pair<Time, uint64_t>, Stream>;  // of one tenant, by arrival
  using Lines = std::map<std::string, Line>;                 // by tenant; they stay when they are empty

  Waiter& add(Waiter waiter);
  void remove(Stream stream);
  Waiter* find(Stream stream);
  Waiter* find(const std::string& tenant, const std::string& request_id);  // of those that have an id
  const Lines& lines(lease::Priority priority) const { return lines_[priority]; }
  size_t size() const { return waiting_.size(); }
  const std::unordered_map<Stream, Waiter>& all() const { return waiting_; }

 private:
  std::unordered_map<Stream, Waiter> waiting_;
  std::map<std::pair<std::string, std::string>, Stream> by_id_;
  std::array<Lines, lease::Priority_ARRAYSIZE> lines_;
};

// Goes through one priority in the order in which they are to be served. The queue and the tenants may change only by what
// is said here.
class FairOrder {
 public:
  FairOrder(const Queue& queue, lease::Priority priority, const std::map<std::string, Tenant>& tenants, const PoolTotal& total);

  // Null: that was all.
  Stream next();
  // Of the last one: its tenant has so much more now.
  void granted(uint64_t milli, uint64_t memory);
  void skipped() { again(); }  // it stays; the tenant's next may be served
  void blocked() {}            // nor the tenant's others

 private:
  struct Turn {
    double share;  // weighted
    std::pair<Time, uint64_t> arrived;
    const Tenant* tenant;
    uint64_t milli, memory;  // what the tenant would have
    Queue::Line::const_iterator at, end;
    // The last in this order is served first.
    bool operator<(const Turn& other) const { return share != other.share ? share > other.share : arrived > other.arrived; }
  };
  void push(Turn turn);
  void again();

  const PoolTotal total_;
  std::priority_queue<Turn> turns_;
  std::optional<Turn> last_;
};

}  // namespace gpupool::scheduler
