// Contexts and CUDA's per-thread state. Both live in the client, so the context calls that cudart makes with
// almost every other call, and its start-up queries, need no round trip.
//
// A Context is created on the server by the first command that names it. A primary context keeps its handle
// for the life of the process, across release and reset. Thread-safe, except ThreadState, which belongs to
// its thread.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "client/session/handles.h"
#include "protocol/driver/cuda_header.h"

namespace gpupool::client {

class Session;
struct Device;

// A stream of the client's own for internal work. Normally used for one piece of work at a time; shared when
// all are in use (borrow_stream() of side_stream.h).
struct InternalStream {
  uint64_t stream = 0;
  uint32_t epoch = 0;
  int uses = 0;
};

struct Context : Object {
  Device* device = nullptr;
  bool primary = false;
  unsigned flags = 0;
  unsigned long long id = 0;  // cuCtxGetId
  // Green contexts: the device's primary context, which has their memory, modules and events, and its epoch
  // at creation.
  Context* root = nullptr;
  uint32_t root_epoch = 0;
  uint64_t green = 0;  // CUgreenCtx of a green context
  Context& owner() { return root ? *root : *this; }
  const Context& owner() const { return root ? *root : *this; }
  std::atomic<bool> active{true};  // false: a primary context that is not retained, or was reset since
  std::atomic<bool> on_server{false};
  std::atomic<int> sticky_error{0};  // a CUresult that every further call on this context returns
  // Error of work between servers; returned once, by the next call that waits.
  std::atomic<int> late_error{0};
  std::vector<InternalStream> wait_streams;  // see cross_server.cc; guarded by mutex
  std::vector<InternalStream> side_streams;  // see side_stream.h; guarded by mutex
  int cross_server_uses = 0;                 // number of held streams that use this context (cross_server.cc)
  std::mutex mutex;                          // guards retains and the transition to on_server
  int retains = 0;                           // cuDevicePrimaryCtxRetain count
  std::atomic<int> attached{0};              // cuCtxAttach calls without cuCtxDetach
  std::atomic<uint32_t> epoch{0};  // incremented by reset, which destroys the streams of earlier epochs
  uint64_t copy_stream = 0;        // for copies inside host functions; made at first use; guarded by mutex
  uint32_t copy_stream_epoch = 0;
  // Set when a stream that the legacy stream synchronises with gets work that may write the program's memory;
  // cleared when the legacy stream or the context is waited for.
  std::atomic<bool> writes_host_memory{false};
  // Set once the context has streams that the legacy stream synchronises with.
  std::atomic<bool> blocking_streams{false};
  // Under a memory quota: the largest local memory per thread, in bytes, for which the server has found room
  // (lower 32 bits), and the context's epoch at that time (upper 32 bits).
  std::atomic<uint64_t> local_memory{0};
  std::atomic<uint64_t> last_mirror_use{0};       // number of its last work that may use memory of mirrors.h
  std::atomic<uint64_t> completed_mirror_use{0};  // uses up to this number are known to be complete
};

struct ThreadState {
  struct PerThreadStream {
    uint64_t context;
    uint32_t epoch;
    uint64_t stream;
  };
  std::vector<uint64_t> contexts;  // context stack, top at the end
  std::vector<PerThreadStream> streams;
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
};

// Returns the calling thread's state. Created at first use, freed when the thread ends.
ThreadState& thread_state();

// Returns a new cuCtxGetId value, for contexts that are not primary.
unsigned long long new_context_id();

// Returns the calling thread's current context, or null: *error is then CUDA_ERROR_CONTEXT_IS_DESTROYED or
// CUDA_ERROR_INVALID_CONTEXT.
Context* current_context(CUresult* error = nullptr);

// Returns the current context's session; null: no context is current.
Session* current_session();

// Creates the context on its server if it is not there yet. Under a memory quota, which contexts count
// against, this waits for the server and returns its error. Otherwise errors surface at a later call that
// waits.
CUresult ensure_on_server(Context& context);

// Returns the real stream behind CU_STREAM_PER_THREAD for the calling thread and context; created at first
// use.
CUresult per_thread_stream(Context& context, uint64_t* stream);

}  // namespace gpupool::client
