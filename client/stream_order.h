// The order of work in streams as far as this process has made it: by events that are recorded and waited for, and by calls that wait. It
// tells whether memory that one stream has freed may be used by another one (REUSE_FOLLOW_EVENT_DEPENDENCIES of memory pools).
//
// Time is a counter of frees. "Stream A up to time t" stands for everything that was given to A before the free numbered t. Streams that have
// freed nothing are not kept, so a program without memory pools pays one load per call. Streams are named by their handle, a null stream by
// its context's. Every answer errs on the side of "not known". Any thread.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "client/block_pool.h"

namespace gpupool::client {

class StreamOrder {
 public:
  // At most one point of each stream.
  using Points = std::vector<FreePoint>;

  bool active() const { return active_.load(std::memory_order_relaxed); }
  // The stream frees memory now. `root`: the context itself, or the primary one of a green context.
  FreePoint freed(uint64_t stream, uint64_t context, uint64_t root);

  // Everything that is done once what the stream (all streams of the context) has now is done. Taken before the call that waits.
  Points reach(uint64_t stream) const;
  Points reach_context(uint64_t context) const;
  // The host has seen it done.
  void passed(const Points& points);
  bool is_passed(const FreePoint& point) const;

  // The stream waits for it: after the command has been queued.
  void waits(uint64_t stream, const Points& points);
  bool is_behind(uint64_t stream, const FreePoint& point) const;

  // Around cuEventRecord: begin before the command is queued, end after it. Nothing is known of an event while it is being recorded.
  void begin_record(uint64_t event);
  void end_record(uint64_t event, const Points& points);
  // Something else than begin_record() may record the event (a graph, a kernel's attribute, another process): nothing is known of it any more.
  void distrust(uint64_t event);
  void forget_event(uint64_t event);
  // The points before an event's last record. `record` tells whether it was recorded anew since.
  struct EventState {
    uint64_t record = 0;
    Points points;
  };
  EventState of_event(uint64_t event) const;
  bool is_recorded_anew(uint64_t event, const EventState& since) const;

  // The last free of every stream where it has not been passed as far as is known.
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
    uint64_t freed = 0, passed = 0;  // time of its last free; up to where its work is known to be done
    bool destroyed = false;
  };
  struct Event {
    uint64_t record = 0;    // counts them
    unsigned recording = 0;
    bool overlapped = false, distrusted = false;
    Points points;
  };
  static void merge(Points& to, const Points& from);
  void add_reach(uint64_t stream, Points& points) const;  // mutex_ held, as below
  bool is_passed_locked(const FreePoint& point) const;
  void prune(Points& points) const;

  std::atomic<bool> active_{false};
  mutable std::mutex mutex_;
  uint64_t clock_ = 0;
  std::unordered_map<uint64_t, Stream> streams_;  // those that have freed memory; of others everything is passed
  std::unordered_map<uint64_t, Points> behind_;   // by stream: what it waits for or has waited for
  std::unordered_map<uint64_t, Event> events_;
};

// The process has one, which is never destroyed.
inline StreamOrder& stream_order() {
  static StreamOrder* const only = new StreamOrder;
  return *only;
}

}  // namespace gpupool::client
