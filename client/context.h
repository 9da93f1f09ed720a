// Contexts, and the state that CUDA keeps per host thread: all of it lives in the client, so that the start-up queries and
// the context calls of cudart (which come with almost every other call) never travel.
//
// A Context is created on the server by the first command that names it. Primary contexts keep their handle for the life
// of the process, across release and reset. Any thread.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "client/handles.h"
#include "protocol/cuda/cuda_header.h"

namespace gpupool::client {

class Session;
struct Device;

// A stream of the client's own that is lent to one piece of work at a time as far as there are enough (lend_stream() of side_stream.h).
struct LentStream {
  uint64_t stream = 0;
  uint32_t epoch = 0;
  int uses = 0;
};

struct Context : Object {
  Device* device = nullptr;
  bool primary = false;
  unsigned flags = 0;
  unsigned long long id = 0;         // cuCtxGetId
  // Of a green context: the device's primary one, which has its memory, modules and events, and what that was then.
  Context* root = nullptr;
  uint32_t root_epoch = 0;
  uint64_t green = 0;                // its CUgreenCtx
  Context& owner() { return root ? *root : *this; }
  const Context& owner() const { return root ? *root : *this; }
  std::atomic<bool> active{true};    // false: a primary context that is not retained, or was reset since
  std::atomic<bool> on_server{false};
  std::atomic<int> sticky_error{0};  // a CUresult that every further call on this context returns
  std::atomic<int> late_error{0};    // of work between servers: the next call that waits returns it, once
  std::vector<LentStream> lent;      // under mutex
  std::vector<LentStream> side_streams;  // side_stream.h; under mutex
  int bridges = 0;                   // work between servers that uses this context (bridge.cc)
  std::mutex mutex;                  // guards retains and the step to on_server
  int retains = 0;                   // cuDevicePrimaryCtxRetain
  std::atomic<int> attached{0};      // cuCtxAttach without cuCtxDetach
  std::atomic<uint32_t> epoch{0};    // raised by reset: streams of before are gone
  uint64_t copy_stream = 0;          // for copies inside host functions; made at first use, under mutex
  uint32_t copy_stream_epoch = 0;
  // Work that may write the program's memory and that the legacy stream comes behind, since that was last waited for.
  std::atomic<bool> host_writers{false};
  // Streams that the legacy one waits for have been made.
  std::atomic<bool> blocking_streams{false};
  // Of local memory, where a memory quota holds: the most bytes per thread that the server has found room for, and in its upper half the
  // context's epoch then.
  std::atomic<uint64_t> local_memory{0};
  std::atomic<uint64_t> touches{0};  // numbers its last work that may use memory of mirrors.h
  std::atomic<uint64_t> waited{0};   // up to there it is known to be over
};

struct ThreadState {
  struct PerThreadStream {
    uint64_t context;
    uint32_t epoch;
    uint64_t stream;
  };
  std::vector<uint64_t> contexts;  // the stack, top at the end
  std::vector<PerThreadStream> streams;
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
};

// Of the calling thread; made at first use, freed when the thread ends.
ThreadState& thread_state();

// cuCtxGetId of a context that is not a primary one.
unsigned long long new_context_id();

// The calling thread's current context: null when there is none. *error tells of a destroyed one.
Context* current_context(CUresult* error = nullptr);

// Its session; null when there is none.
Session* current_session();

// Makes sure that its server knows the context before a command names it. Where a memory quota holds, in which the context counts, this waits
// for the server: an error is then the context's. Else errors surface at a later call that waits.
CUresult ensure_on_server(Context& context);

// What CU_STREAM_PER_THREAD means for the calling thread and context: a real stream, made at first use.
CUresult per_thread_stream(Context& context, uint64_t* stream);

}  // namespace gpupool::client
