// The order of work in streams as far as this process has established it, by recording and waiting for events
// and by calls that wait. Used to decide whether memory that one stream has freed may be used by another one
// (REUSE_FOLLOW_EVENT_DEPENDENCIES of memory pools).
//
// Time is a counter of frees. "Stream A up to time t" means all work given to A before the free numbered t.
// Streams that have freed nothing are not tracked, so a program without memory pools pays one atomic load per
// call. A stream is identified by its handle, a null stream by its context's handle. Answers are
// conservative: an unknown order counts as unordered. Thread-safe.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "client/memory/block_pool.h"

namespace gpupool::client {

class StreamOrder {
 public:
  // At most one point per stream.
  using Points = std::vector<FreePoint>;

  bool active() const { return active_.load(std::memory_order_relaxed); }
  // Notes a free in the stream now. `root`: the context itself, or the primary context of a green context.
  FreePoint freed(uint64_t stream, uint64_t context, uint64_t root);

  // All points that are passed once the present work of the stream (of all streams of the context) is done.
  // Call before the wait.
  Points reach(uint64_t stream) const;
  Points reach_context(uint64_t context) const;
  // The host has seen the work before these points complete.
  void passed(const Points& points);
  bool is_passed(const FreePoint& point) const;

  // The stream waits for these points. Call after the command has been queued.
  void waits(uint64_t stream, const Points& points);
  bool is_ordered_after(uint64_t stream, const FreePoint& point) const;

  // Brackets cuEventRecord: begin before the command is queued, end after it. While an event is being
  // recorded nothing is known about it.
  void begin_record(uint64_t event);
  void end_record(uint64_t event, const Points& points);
  // The event may be recorded by other means than begin_record() (a graph, a launch attribute, another
  // process): nothing is known about it any more.
  void invalidate_event(uint64_t event);
  void forget_event(uint64_t event);
  // The points before an event's last record. `record` identifies that record.
  struct EventState {
    uint64_t record = 0;
    Points points;
  };
  EventState of_event(uint64_t event) const;
  bool is_recorded_anew(uint64_t event, const EventState& since) const;

  // For every stream, its last free that is not known to be passed.
  struct Unpassed {
    FreePoint point;
    uint64_t context = 0;
  };
  std::vector<Unpassed> unpassed() const;
  void stream_destroyed(uint64_t stream);
  // Everything in the context is done.
  void context_destroyed(uint64_t context);

 private:
  struct Stream {
    uint64_t context = 0, root = 0;
    uint64_t freed = 0, passed = 0;  // time of its last free; time up to which its work is known to be done
    bool destroyed = false;
  };
  struct Event {
    uint64_t record = 0;  // number of records
    unsigned recording = 0;
    bool overlapped = false, invalidated = false;
    Points points;
  };
  static void merge(Points& to, const Points& from);
  void add_reach(uint64_t stream, Points& points) const;  // mutex_ held, as for the functions below
  bool is_passed_locked(const FreePoint& point) const;
  void prune(Points& points) const;

  std::atomic<bool> active_{false};
  mutable std::mutex mutex_;
  uint64_t clock_ = 0;
  // Streams that have freed memory; all others count as passed.
  std::unordered_map<uint64_t, Stream> streams_;
  std::unordered_map<uint64_t, Points> behind_;  // by stream: points that it waits for or has waited for
  std::unordered_map<uint64_t, Event> events_;
};

// The object of the process; never destroyed.
inline StreamOrder& stream_order() {
  static StreamOrder* const only = new StreamOrder;
  return *only;
}

}  // namespace gpupool::client
