#include "client/calls/host_function.h"

#include <condition_variable>
#include <deque>
#include <thread>
#include <unordered_map>

#include "client/capture.h"
#include "client/page_faults.h"
#include "client/shadows.h"
#include "protocol/cuda/exports.h"
#include "protocol/wire/commands.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

// One thread runs the host functions of streams, as CUDA's drivers do; it never ends. While functions are outstanding the session
// receives in the background.
class HostFunctions {
 public:
  struct Function {
    CUhostFn function = nullptr;          // cuLaunchHostFunc
    CUstreamCallback callback = nullptr;  // cuStreamAddCallback
    CUstream stream = nullptr;
    void* user = nullptr;
    std::function<uint64_t()> action;     // the client's own (run_in_stream)
    bool kept = false;                    // a graph's
    uint64_t launches = 0;                // of the graph, in which it is still to run
    bool of_program() const { return function || callback; }
  };

  uint64_t add(const Function& function) {
    std::lock_guard lock(mutex_);
    functions_[++last_id_] = function;
    if (function.of_program()) ++pending_;
    return last_id_;
  }
  void remove(uint64_t id) {
    std::lock_guard lock(mutex_);
    const auto found = functions_.find(id);
    if (found->second.of_program()) --pending_;
    functions_.erase(found);
  }
  uint64_t keep(std::function<uint64_t()> action) {
    std::lock_guard lock(mutex_);
    functions_[++last_id_] = {.action = std::move(action), .kept = true};
    return last_id_;
  }
  void forget(const std::vector<uint64_t>& ids) {
    std::lock_guard lock(mutex_);
    for (const uint64_t id : ids) {
      const auto found = functions_.find(id);
      if (found == functions_.end()) continue;
      found->second.kept = false;
      if (found->second.launches == 0) functions_.erase(found);
    }
  }
  void launched(const std::vector<uint64_t>& ids, bool failed) {
    std::lock_guard lock(mutex_);
    for (const uint64_t id : ids) failed ? --functions_.at(id).launches : ++functions_.at(id).launches;
    pending_ += failed ? -static_cast<int>(ids.size()) : static_cast<int>(ids.size());
  }
  bool pending() const { return pending_.load() != 0; }
  void run_soon(Session& session, uint64_t id) {
    std::lock_guard lock(mutex_);
    const auto found = functions_.find(id);
    if (found == functions_.end()) return;
    Lane& lane = found->second.of_program() ? of_program_ : copies_;
    lane.ready.emplace_back(&session, id);
    if (!lane.started) {
      lane.started = true;
      std::thread([this, &lane] { run(lane); }).detach();
    }
    lane.changed.notify_one();
  }

 private:
  // The program's functions run one after another on one thread. Copies have a thread of their own: they do not wait for a function in another
  // stream.
  struct Lane {
    std::deque<std::pair<Session*, uint64_t>> ready;
    std::condition_variable changed;
    bool started = false;
  };

  void run(Lane& lane) {
    page_faults::this_thread_runs_host_functions();
    std::unique_lock lock(mutex_);
    for (;;) {
      lane.changed.wait(lock, [&] { return !lane.ready.empty(); });
      const auto [session, id] = lane.ready.front();
      lane.ready.pop_front();
      const auto found = functions_.find(id);
      if (found == functions_.end()) continue;
      const bool of_graph = found->second.launches != 0;
      if (of_graph) --found->second.launches;
      const Function function = found->second;
      if (!function.kept && function.launches == 0) functions_.erase(found);
      lock.unlock();
      if (function.of_program() && shadows().any()) (void)guarded([] { return shadows().after_something(); });
      if (function.function) function.function(function.user);
      if (function.callback) function.callback(function.stream, CUDA_SUCCESS, function.user);
      if (function.of_program()) --pending_;
      const uint64_t behind = function.action ? function.action() : 0;
      if (of_graph) --pending_;
      (void)session->post(wire::Command::host_function_done, nullptr, wire::HostFunctionDone{id, behind});
      session->receiver().drop_interest();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::unordered_map<uint64_t, Function> functions_;
  uint64_t last_id_ = 0;
  Lane of_program_, copies_;
  std::atomic<int> pending_{0};  // the program's own, until they have ended
};

HostFunctions& host_functions() {
  static HostFunctions* const only = new HostFunctions;
  return *only;
}

CUresult post(Session& session, Context& context, CUstream stream, const HostFunctions::Function& function) {
  const uint64_t id = host_functions().add(function);
  session.receiver().add_interest();
  const CUresult result =
      session.post(wire::Command::host_function, &context, wire::HostFunction{cuda::handle_bits(stream), id});
  if (result != CUDA_SUCCESS) {
    host_functions().remove(id);
    session.receiver().drop_interest();
  }
  return result;
}

CUresult launch(const HostFunctions::Function& function, CUstream stream) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (!function.of_program()) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = ready_with_stream(&session, &context, stream); result != CUDA_SUCCESS) return result;
    const auto captured = capture::add(*context, stream, CU_GRAPH_NODE_TYPE_HOST, [&](NodeWork& work) {
      if (!function.function) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
      work = HostWork{{function.function, function.user}};
      return CUDA_SUCCESS;
    });
    if (captured) [[unlikely]] return *captured;
    return post(*session, *context, stream, function);
  });
}

CUresult add_callback(CUstream stream, CUstreamCallback callback, void* user, unsigned flags, CUstream seen) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return launch({.callback = callback, .stream = seen, .user = user}, stream);
}

}  // namespace

namespace gpupool::client {

void run_host_function(Session& session, uint64_t callback) { host_functions().run_soon(session, callback); }

bool host_functions_pending() { return host_functions().pending(); }

CUresult run_in_stream(Session& session, Context& context, CUstream stream, std::function<uint64_t()> action) {
  return post(session, context, stream, {.action = std::move(action)});
}

uint64_t keep_host_function(std::function<uint64_t()> action) { return host_functions().keep(std::move(action)); }

void forget_host_functions(const std::vector<uint64_t>& ids) { host_functions().forget(ids); }

void host_functions_launched(Session& session, const std::vector<uint64_t>& ids, bool failed) {
  host_functions().launched(ids, failed);
  for (size_t i = 0; i < ids.size(); ++i) failed ? session.receiver().drop_interest() : session.receiver().add_interest();
}

}  // namespace gpupool::client

CUDA_EXPORT CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* user) {
  return launch({.function = function, .user = user}, stream);
}
CUDA_EXPORT CUresult cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn function, void* user) {
  return launch({.function = function, .user = user}, or_per_thread(stream));
}

CUDA_EXPORT CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void* user, unsigned int flags) {
  return add_callback(stream, callback, user, flags, stream);
}
CUDA_EXPORT CUresult cuStreamAddCallback_ptsz(CUstream stream, CUstreamCallback callback, void* user,
                                              unsigned int flags) {
  return add_callback(or_per_thread(stream), callback, user, flags, stream);
}
