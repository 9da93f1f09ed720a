// The client's contexts and streams, with the worker's state of each: pooled events, pinned staging memory,
// recent uses.
//
// Executor's thread only, except EventPool (any thread) and make_current() (any thread, for itself). Commands
// create and destroy contexts; HandleTable creates and destroys streams.
#pragma once
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/worker/device/device_api.h"
#include "server/worker/session/current_command.h"
#include "server/worker/session/progress.h"

namespace gpupool::worker {

// Makes `context` (null: none) current in the calling thread. Costs nothing if it already is.
CUresult make_current(const DeviceApi& api, CUcontext context);
// Returns the context that make_current() has made current, or null if unknown.
CUcontext current_context();
// Makes another context current in the calling thread for the duration of a scope.
class VisitContext {
 public:
  VisitContext(const DeviceApi& api, CUcontext context)
      : api_(api), before_(current_context()), result_(make_current(api, context)) {}
  ~VisitContext() { make_current(api_, before_); }
  VisitContext(const VisitContext&) = delete;
  VisitContext& operator=(const VisitContext&) = delete;
  CUresult result() const { return result_; }

 private:
  const DeviceApi& api_;
  const CUcontext before_;
  const CUresult result_;
};
// Call after a context was destroyed: a new context may get the same address.
void invalidate_current_context();
// A green context is current in one thread at a time: the thread that has called
// allow_green_contexts_in_this_thread(). In all other threads make_current() uses the primary context
// instead, which has the same events. set_primary_of() registers the primary context; null unregisters the
// green context before it is destroyed.
void allow_green_contexts_in_this_thread();
void set_primary_of(CUcontext green, CUcontext primary);

// Reusable events of one context, all with the same flags. Any thread, with the context current.
class EventPool {
 public:
  // The default flags request blocking synchronization: a waiting thread must not take a CPU core from device
  // code on the host or from other clients.
  explicit EventPool(const DeviceApi& api, unsigned flags = CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC)
      : api_(api), flags_(flags) {}
  CUevent take();  // returns null if the device could not create one
  // The error after take() returned null: the context's own error if it is broken, else
  // CUDA_ERROR_OUT_OF_MEMORY.
  CUresult take_error() const;
  void give(CUevent event);
  // Destroys the idle events; all events must have been given back.
  void clear();
  // Forgets the events; the context is gone, and its events with it.
  void abandon();

 private:
  const DeviceApi& api_;
  const unsigned flags_;
  std::mutex mutex_;
  std::vector<CUevent> idle_;
};

// Local memory of a function or kernel: bytes per thread, the maximum over the devices queried so far.
struct KernelMemory {
  uint64_t devices = 0;  // bit mask of the devices queried
  uint64_t bytes = 0;
};
constexpr uint64_t bit_of_device(int device) {
  return device >= 0 && device < 64 ? uint64_t{1} << device : 0;
}

struct ContextState;
class CopyLane;      // pending copies to the host (small_copies.h)
struct ComputeLane;  // measured work of a stream (compute_lane.h)
struct StagingChunk;

struct StreamState {
  ContextState* context = nullptr;
  CUstream stream = nullptr;             // null: the context's legacy default stream
  uint64_t handle = 0;                   // the client's handle; 0: legacy stream
  bool used = false;                     // listed in context->used: had work since the last record for a free
  bool dirty = false;                    // had work since it was last seen idle
  std::shared_ptr<CopyLane> lane;        // created by the first copy to the host
  std::shared_ptr<ComputeLane> compute;  // created by the first work for the device
  StagingChunk* slab = nullptr;          // where the next small copy to the device is staged
  size_t slab_used = 0;
  std::optional<bool> blocking;  // cached: whether it and the legacy stream wait for each other's work
  uint64_t ordered = 0;          // number of the last barrier that its work is ordered after
  uint64_t cleared = 0;          // number of the last clear (zeroing) that its work is ordered after
  uint64_t last_use = 0;         // Contexts::uses() at the last use
  uint64_t use_before = 0;
  static constexpr uint64_t kNoGate = ~uint64_t{0};
  uint64_t oldest_gate = kNoGate;  // lowest sequence number of its closed gates (stream_gates.h)
  bool own = false;                // internal stream of the client, for copies that other streams wait for
  unsigned kept = 0;               // commands in the backlog that give it work (backlog.h)
  std::shared_ptr<StreamProgress> progress = std::make_shared<StreamProgress>();
};

struct ContextState {
  ContextState(const DeviceApi& api, uint64_t handle, CUcontext object, int device, bool primary);

  const uint64_t handle;
  const CUcontext object;
  const int device;
  const bool primary;
  // GreenContext (device_partition.h) on some multiprocessors; `object` is its CUcontext
  void* green = nullptr;
  // Set in the client's green contexts: the primary context, whose memory and modules they use.
  ContextState* root = nullptr;
  unsigned retained = 1;              // primary contexts: number of times the client has retained it
  std::shared_ptr<EventPool> events;  // shared with waits that may outlive the context
  std::shared_ptr<EventPool> timed_events;
  StreamState legacy;
  std::unordered_map<CUstream, std::unique_ptr<StreamState>> streams;
  std::vector<StreamState*> used;  // streams with StreamState::used
  // Events recorded on streams that were destroyed since the last record for a free.
  std::vector<CUevent> destroyed_stream_events;
  CUevent barrier = nullptr;     // event that all streams of all contexts wait for before their next work
  uint64_t barrier_number = 0;   // number of `barrier`, counted over all contexts
  bool launched = false;         // kernels were launched since the output of device printf was last fetched
  CUstream scrubbing = nullptr;  // owned by Scrubber
  void* zeros = nullptr;         // owned by Scrubber; pinned
  uint64_t charged = 0;          // bytes of the quota, charged by MemoryCharges
  // Local memory that the device keeps for the context. Never shrinks (CU_CTX_LMEM_RESIZE_TO_MAX).
  struct LocalMemory {
    uint64_t at_first = 0;  // bytes per thread: the stack limit of a new context; 0: not queried yet
    uint64_t bytes = 0;     // per thread, now
    uint64_t charged = 0;   // part of ContextState::charged
  };
  LocalMemory local;  // not used in a green context: see owner()
  struct Limit {
    size_t at_first = 0;
    uint64_t charged = 0;  // bytes charged because the limit was raised
  };
  std::unordered_map<int, Limit> limits;  // limits that the client has set, by CUlimit
  // Events that only the client's cuEventRecord records. Null value: not recorded yet.
  std::unordered_map<CUevent, std::shared_ptr<const Recorded>> recorded;

  // The context that owns objects created in this one, except streams: the primary context of a green
  // context.
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
  Contexts(const DeviceApi& api, CurrentCommand& current_command)
      : api_(api), current_command_(current_command) {}

  ContextState* find(uint64_t handle);
  ContextState* find_primary(int device);
  StreamState* find_stream(CUstream stream);  // null: the legacy stream of the current context
  ContextState* find_on(int device);          // returns any context on the device, or null
  ContextState* add(uint64_t handle, CUcontext object, int device, bool primary);
  void remove(uint64_t handle);
  ContextState* current() const { return current_; }
  CurrentCommand& current_command() const { return current_command_; }
  // Makes the context (null: none) the session's current one, also in the driver.
  CUresult enter(ContextState* context);
  // Likewise for the context with this handle. Returns null if the client has none or it cannot be made
  // current.
  ContextState* enter_named(uint64_t handle) {
    ContextState* const context = find(handle);
    return enter(context) == CUDA_SUCCESS ? context : nullptr;
  }
  // Orders future work of `stream` after all work that `earlier` has got so far. Leaves the context of
  // `stream` current.
  void order_after(StreamState& stream, StreamState& earlier);
  // Orders future work of all streams of all contexts after all work that `stream` has got so far.
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
  // Undoes the last note_use(): that call was a query, which gives the stream no work.
  void undo_note_use(StreamState& stream) { stream.last_use = stream.use_before; }
  uint64_t uses() const { return uses_; }
  // Call when the device reports that the stream is idle.
  void seen_idle(StreamState& stream);
  // True if the client's work in the stream is known to be done; for the legacy stream, also the work that it
  // waits for.
  bool is_done(StreamState& stream) const;
  // Tracks an event of the current context from cuEventCreate on. note_record() must precede the driver's
  // cuEventRecord.
  void track_event(CUevent event);
  void note_record(CUevent event, CUstream stream);
  // Stops tracking an event that is destroyed or that other commands may record.
  void stop_tracking_event(CUevent event);
  // Returns the work that is done once the event has passed, or null if unknown.
  std::shared_ptr<const Recorded> recorded(CUevent event) const;
  // True if the stream and the legacy stream of its context wait for each other's work. Must not be called
  // for the legacy stream.
  bool is_blocking(StreamState& stream) const;
  // Orders future work of all streams after the zeroing of new memory that `stream`, an internal stream of
  // the current context, has got so far. The context must be the session's only one, because an error in it
  // would let other contexts continue.
  CUresult order_all_after_clear(CUstream stream);
  // Returns the context with unfinished clears, or null.
  ContextState* clearing();
  // Waits for unfinished clears. After an error the memory may not be zero.
  CUresult await_clears();
  void forget_clears(const ContextState& context);
  auto& all() { return contexts_; }

 private:
  void wait_for_barriers(StreamState& stream);
  void wait_for_clears(StreamState& stream);

  const DeviceApi& api_;
  CurrentCommand& current_command_;
  std::unordered_map<uint64_t, std::unique_ptr<ContextState>> contexts_;
  ContextState* current_ = nullptr;
  uint64_t barriers_ = 0;  // number of barriers set so far
  ContextState* clearing_ = nullptr;
  CUevent clear_event_ = nullptr;  // recorded behind the last clear of `clearing_`
  uint64_t clears_ = 0;
  uint64_t uses_ = 0;
};

constexpr size_t kMaxContexts = 256;       // per client
constexpr size_t kMaxPooledEvents = 1024;  // idle events per context

}  // namespace gpupool::worker
