// The client's contexts and streams, with what the worker keeps per context and stream: its events, its pinned staging
// memory, which streams were used since when.
//
// The executor's thread alone uses it, but for EventPool (any thread) and make_current (any thread, for itself).
// Contexts come and go by commands; streams by HandleTable.
#pragma once
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/worker/at_work.h"
#include "server/worker/device_api.h"
#include "server/worker/progress.h"

namespace gpupool::worker {

// Makes `context` (null: none) current for the calling thread; costs nothing when it is already.
CUresult make_current(const DeviceApi& api, CUcontext context);
// What make_current made so; null where that is not known.
CUcontext current_context();
// Another context is current for the calling thread within a scope, and then the one before.
class VisitContext {
 public:
  VisitContext(const DeviceApi& api, CUcontext context) : api_(api), before_(current_context()), result_(make_current(api, context)) {}
  ~VisitContext() { make_current(api_, before_); }
  VisitContext(const VisitContext&) = delete;
  VisitContext& operator=(const VisitContext&) = delete;
  CUresult result() const { return result_; }

 private:
  const DeviceApi& api_;
  const CUcontext before_;
  const CUresult result_;
};
// After a context was destroyed its address may come back as another one.
void forget_current();
// A green context may be current in one thread at a time: the one that has called keep_green_contexts(). For all others
// make_current() takes the primary context, which has the same events. Null: the green one is about to go.
void keep_green_contexts();
void set_primary_of(CUcontext green, CUcontext primary);

// Events of one context, all with the same flags, for reuse. Any thread, with a current context.
class EventPool {
 public:
  // Blocking synchronisation: a waiting thread must not take a core from the device's host code or other clients.
  explicit EventPool(const DeviceApi& api, unsigned flags = CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC) : api_(api), flags_(flags) {}
  CUevent take();             // null: the device could not give one
  CUresult why_none() const;  // of take(), in the same context: its own error where it failed meanwhile
  void give(CUevent event);
  // Destroys the idle ones; those in use must have come back.
  void clear();
  // The context is gone and its events with it.
  void abandon();

 private:
  const DeviceApi& api_;
  const unsigned flags_;
  std::mutex mutex_;
  std::vector<CUevent> idle_;
};

// Local memory of a function or kernel: bytes per thread, on the device that takes most of those that were asked.
struct KernelMemory {
  uint64_t devices = 0;  // that were asked, a bit for each
  uint64_t bytes = 0;
};
constexpr uint64_t bit_of_device(int device) { return device >= 0 && device < 64 ? uint64_t{1} << device : 0; }

struct ContextState;
class CopyLane;      // copies to the host that are on their way (bulk.h)
struct ComputeLane;  // what is measured of a stream (compute_lane.h)
struct StagingChunk;

struct StreamState {
  ContextState* context = nullptr;
  CUstream stream = nullptr;          // null: the context's legacy default stream
  uint64_t handle = 0;                // the client's; 0 likewise
  bool used = false;                  // in context->used: work since the last record for a free
  bool dirty = false;                 // work since it was last seen idle
  std::shared_ptr<CopyLane> lane;     // made with the first copy to the host
  std::shared_ptr<ComputeLane> compute;  // made with the first work for the device
  StagingChunk* slab = nullptr;       // where small copies to the device are staged next
  size_t slab_used = 0;
  std::optional<bool> blocking;       // the legacy stream and this one wait for each other's work; once it was asked
  uint64_t ordered = 0;               // the last barrier that it is behind
  uint64_t cleared = 0;               // the last clear that it is behind
  uint64_t last_use = 0;              // counts the uses of all streams
  uint64_t use_before = 0;
  static constexpr uint64_t kNoGate = ~uint64_t{0};
  uint64_t oldest_gate = kNoGate;     // of its closed ones, the lowest sequence number (stream_gates.h)
  bool own = false;                   // the client copies there what other streams wait for
  unsigned kept = 0;                  // commands of the backlog that give it work (backlog.h)
  std::shared_ptr<Progress> progress = std::make_shared<Progress>();
};

struct ContextState {
  ContextState(const DeviceApi& api, uint64_t handle, CUcontext object, int device, bool primary);

  const uint64_t handle;
  const CUcontext object;
  const int device;
  const bool primary;
  void* green = nullptr;              // on some of the device's multiprocessors (device_partition.h); `object` is its context
  ContextState* root = nullptr;       // of a green context of the client's: the primary one, whose memory and modules it uses
  unsigned retained = 1;              // primary contexts: how often the client retains it
  std::shared_ptr<EventPool> events;  // shared with waits that outlive the context's last command
  std::shared_ptr<EventPool> timed_events;
  StreamState legacy;
  std::unordered_map<CUstream, std::unique_ptr<StreamState>> streams;
  std::vector<StreamState*> used;     // streams with StreamState::used
  std::vector<CUevent> departed;      // recorded on streams that were destroyed since the last record for a free
  CUevent barrier = nullptr;          // what every stream of every context waits for before its next work
  uint64_t barrier_number = 0;        // counts all contexts' barriers
  bool launched = false;              // kernels since device printf was last fetched
  CUstream scrubbing = nullptr;       // Scrubber's
  void* zeros = nullptr;              // likewise; pinned
  uint64_t charged = 0;               // bytes of the quota, by Footprints
  // Local memory that the device keeps for the context. It only grows: drivers do not shrink it any more (CU_CTX_LMEM_RESIZE_TO_MAX).
  struct LocalMemory {
    uint64_t at_first = 0;            // bytes per thread: the stack limit of a new context; 0: not asked yet
    uint64_t bytes = 0;               // per thread, now
    uint64_t charged = 0;             // part of ContextState::charged
  };
  LocalMemory local;                  // of a green context: see owner()
  struct Limit {
    size_t at_first = 0;
    uint64_t charged = 0;             // what it was raised by
  };
  std::unordered_map<int, Limit> limits;  // those that the client has set, by CUlimit
  // Events that only the client's cuEventRecord records; null: not recorded yet.
  std::unordered_map<CUevent, std::shared_ptr<const Recorded>> recorded;

  // What the objects made in it belong to, but for streams.
  ContextState& owner() { return root ? *root : *this; }
  // Every stream of the context, the legacy one first.
  template <class F>
  void for_each_stream(F&& visit) {
    visit(legacy);
    for (auto& [object, state] : streams) visit(*state);
  }
};

class Contexts {
 public:
  Contexts(const DeviceApi& api, AtWork& at_work) : api_(api), at_work_(at_work) {}

  ContextState* find(uint64_t handle);
  ContextState* find_primary(int device);
  StreamState* find_stream(CUstream stream);  // null: of the current context; none
  ContextState* find_on(int device);  // any; null: none is on that device
  ContextState* add(uint64_t handle, CUcontext object, int device, bool primary);
  void remove(uint64_t handle);
  ContextState* current() const { return current_; }
  AtWork& at_work() const { return at_work_; }
  // Also tells the device. Null: no context.
  CUresult enter(ContextState* context);
  // What `stream` gets from now on runs after what `earlier` has got by now. Leaves the context of `stream` current.
  void order_after(StreamState& stream, StreamState& earlier);
  // What any stream of any context gets from now on runs after what `stream` has got by now.
  void order_all_after(StreamState& stream);
  void note_use(StreamState& stream) {
    if (stream.ordered != barriers_) wait_for_barriers(stream);
    note_use_unordered(stream);
  }
  void note_use_unordered(StreamState& stream) {
    if (stream.cleared != clears_) wait_for_clears(stream);
    stream.dirty = true;
    stream.use_before = std::exchange(stream.last_use, ++uses_);
    if (stream.used) return;
    stream.used = true;
    stream.context->used.push_back(&stream);
  }
  // The last use was a question, which gives the stream nothing to do.
  void take_back_use(StreamState& stream) { stream.last_use = stream.use_before; }
  uint64_t uses() const { return uses_; }
  // The device says that the stream is idle.
  void seen_idle(StreamState& stream);
  // What the client gave the stream is known to be done, and what the legacy stream has to wait for.
  bool is_done(StreamState& stream) const;
  // An event of the current context's, from cuEventCreate on. `recorded` comes before the device hears of it.
  void event_created(CUevent event);
  void event_recorded(CUevent event, CUstream stream);
  // It is destroyed, or something else may record it: what it says is about nobody knows what.
  void event_untold(CUevent event);
  // What the event says once it has passed; null: nothing.
  std::shared_ptr<const Recorded> recorded(CUevent event) const;
  // The stream and the legacy one of its context wait for each other's work. Not to be asked of the legacy one.
  bool is_blocking(StreamState& stream) const;
  // New memory of the current context is being zeroed by what `stream`, of that context and the worker's own, has got by now: whatever any
  // stream gets from now on runs after it. The context must be the session's only one, since an error in it would let others go on.
  CUresult order_all_after_clear(CUstream stream);
  // The context with the clears that are not done; null: there are none.
  ContextState* clearing();
  // Waits for them. An error: the memory may not be zero.
  CUresult await_clears();
  void forget_clears(const ContextState& context);
  auto& all() { return contexts_; }

 private:
  void wait_for_barriers(StreamState& stream);
  void wait_for_clears(StreamState& stream);

  const DeviceApi& api_;
  AtWork& at_work_;
  std::unordered_map<uint64_t, std::unique_ptr<ContextState>> contexts_;
  ContextState* current_ = nullptr;
  uint64_t barriers_ = 0;  // so many were set
  ContextState* clearing_ = nullptr;
  CUevent clear_event_ = nullptr;  // behind the last clear of `clearing_`
  uint64_t clears_ = 0;
  uint64_t uses_ = 0;
};

constexpr size_t kMaxContexts = 256;        // of one client
constexpr size_t kMaxPooledEvents = 1024;   // idle ones of one context

}  // namespace gpupool::worker
