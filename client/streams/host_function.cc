#include "client/streams/host_function.h"

#include <condition_variable>
#include <deque>
#include <thread>
#include <unordered_map>

#include "client/memory/compared_copies.h"
#include "client/memory/mirrors.h"
#include "client/memory/page_faults.h"
#include "client/streams/cross_server.h"
#include "protocol/wire/commands.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

// Sends a host function's changes of memory that kernels also use, in the client's own streams. Returns the
// stream that the function's stream must wait for: `behind` or, if that is 0, one of the client's own.
uint64_t push_written(Session& session, uint64_t behind) {
  (void)guarded([&] {
    std::vector<Context*> senders =
        mirrors().any() ? mirrors().after_host_function() : std::vector<Context*>();
    if (compared_copies().any()) {
      const std::vector<Context*> more = compared_copies().after_host_function();
      senders.insert(senders.end(), more.begin(), more.end());
    }
    for (Context* const context : senders) {
      CUstream own = nullptr;
      if (context->session != &session || internal_stream(*context, &own) != CUDA_SUCCESS ||
          cuda::handle_bits(own) == behind)
        continue;
      if (behind == 0)
        behind = cuda::handle_bits(own);
      else
        (void)synchronize_stream(*context, own);
    }
    return CUDA_SUCCESS;
  });
  return behind;
}

// Runs host functions on threads of its own, which never end: one for the program's functions, as NVIDIA's
// driver does, one for copies. While functions are outstanding the session receives in the background.
class HostFunctions {
 public:
  struct Function {
    CUhostFn function = nullptr;          // cuLaunchHostFunc
    CUstreamCallback callback = nullptr;  // cuStreamAddCallback
    CUstream stream = nullptr;
    void* user = nullptr;
    std::function<uint64_t()> action;  // work of the client (run_in_stream) or of a graph node
    bool of_graph = false;
    bool kept = false;  // graph nodes: may be launched again
    Session* session = nullptr;
    std::deque<uint64_t> commands{};  // sequence numbers of commands for which it has not been announced yet
    bool of_program() const { return function || callback; }
    bool is_pending() const { return of_program() || of_graph; }
  };

  uint64_t add(Function function) {
    std::lock_guard lock(mutex_);
    functions_[++last_id_] = std::make_shared<Function>(std::move(function));
    return last_id_;
  }
  void forget(const std::vector<uint64_t>& ids) {
    std::vector<std::shared_ptr<Function>> gone;  // destroyed after the lock is released
    std::lock_guard lock(mutex_);
    for (const uint64_t id : ids) {
      const auto found = functions_.find(id);
      if (found == functions_.end()) continue;
      found->second->kept = false;
      if (!found->second->commands.empty()) continue;
      gone.push_back(std::move(found->second));
      functions_.erase(found);
    }
  }
  // Notes that the functions will run for this command. Returns how many of them exist.
  size_t expect(uint64_t command, const std::vector<uint64_t>& ids) {
    size_t count = 0;
    std::lock_guard lock(mutex_);
    for (const uint64_t id : ids) {
      const auto found = functions_.find(id);
      if (found == functions_.end()) continue;
      found->second->commands.push_back(command);
      pending_ += found->second->is_pending();
      ++count;
    }
    return count;
  }
  bool pending() const { return pending_.load() != 0; }
  void dispatch(uint64_t id, uint64_t command) {
    std::lock_guard lock(mutex_);
    const auto found = functions_.find(id);
    if (found == functions_.end() || std::erase(found->second->commands, command) == 0) return;
    const std::shared_ptr<Function> function = found->second;
    if (!function->kept && function->commands.empty()) functions_.erase(found);
    run_soon({id, function, CUDA_SUCCESS});
  }
  // No further functions of this command (0: of the session) will be announced.
  void cancel(const Session& session, uint64_t command, CUresult why) {
    std::lock_guard lock(mutex_);
    for (auto entry = functions_.begin(); entry != functions_.end();) {
      const auto [id, function] = *entry;
      const size_t count =
          function->session != &session ? 0 : std::erase_if(function->commands, [&](uint64_t one) {
            return command == 0 || one == command;
          });
      entry = count != 0 && !function->kept && function->commands.empty() ? functions_.erase(entry)
                                                                          : std::next(entry);
      for (size_t i = 0; i < count; ++i) run_soon({id, function, why});
    }
  }

 private:
  struct PendingCall {
    uint64_t id;
    std::shared_ptr<Function> function;
    // Not CUDA_SUCCESS: the function is not called (a cuStreamAddCallback callback is, with this result).
    CUresult result;
  };
  // The program's functions run one after another on one thread. Copies have their own, so that they do not
  // wait for a function in another stream.
  struct Runner {
    std::deque<PendingCall> ready;
    std::condition_variable changed;
    bool started = false;
  };

  // Call with the mutex held.
  void run_soon(PendingCall call) {
    Runner& runner = call.function->of_program() ? program_runner_ : copy_runner_;
    runner.ready.push_back(std::move(call));
    if (!runner.started) {
      runner.started = true;
      std::thread([this, &runner] { run(runner); }).detach();
    }
    runner.changed.notify_one();
  }

  void run(Runner& runner) {
    page_faults::mark_host_function_thread();
    std::unique_lock lock(mutex_);
    for (;;) {
      runner.changed.wait(lock, [&] { return !runner.ready.empty(); });
      const PendingCall call = std::move(runner.ready.front());
      runner.ready.pop_front();
      lock.unlock();
      run(call);
      lock.lock();
    }
  }

  void run(const PendingCall& call) {
    const Function& function = *call.function;
    const bool is_called = call.result == CUDA_SUCCESS;
    if (is_called && function.is_pending() && compared_copies().any())
      (void)guarded([] { return compared_copies().after_other_wait(); });
    if (is_called && function.function) function.function(function.user);
    if (function.callback) function.callback(function.stream, call.result, function.user);
    uint64_t behind = is_called && function.action ? function.action() : 0;
    if (mirrors().any() || compared_copies().any()) behind = push_written(*function.session, behind);
    if (function.is_pending()) --pending_;
    if (is_called)
      (void)function.session->post(wire::Command::host_function_done, nullptr,
                                   wire::HostFunctionDone{call.id, behind});
    function.session->receiver().drop_interest();
  }

  std::mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<Function>> functions_;
  uint64_t last_id_ = 0;
  Runner program_runner_, copy_runner_;
  std::atomic<int> pending_{0};  // functions of the program and of graphs that have not ended
};

HostFunctions& host_functions() {
  static HostFunctions* const only = new HostFunctions;
  return *only;
}

CUresult post(Session& session, Context& context, CUstream stream, HostFunctions::Function function) {
  function.session = &session;
  const uint64_t id = host_functions().add(std::move(function));
  const CUresult result = post_with_host_functions(session, context, wire::Command::host_function,
                                                   wire::HostFunction{cuda::handle_bits(stream), id}, {id});
  if (result != CUDA_SUCCESS) host_functions().forget({id});  // no effect if it was sent
  return result;
}

}  // namespace

namespace gpupool::client {

void dispatch_host_function(Session& session, uint64_t callback, uint64_t command, CUresult result) {
  if (result == CUDA_SUCCESS)
    host_functions().dispatch(callback, command);
  else
    host_functions().cancel(session, command, result);
}

bool host_functions_pending() {
  return host_functions().pending();
}

CUresult run_in_stream(Session& session, Context& context, CUstream stream,
                       std::function<uint64_t()> action) {
  return post(session, context, stream, {.action = std::move(action)});
}

CUresult run_in_stream(Session& session, Context& context, CUstream stream, const ProgramFunction& function) {
  return post(session, context, stream,
              {.function = function.function,
               .callback = function.callback,
               .stream = function.stream,
               .user = function.user});
}

uint64_t keep_host_function(Session& session, std::function<uint64_t()> action) {
  return host_functions().add(
      {.action = std::move(action), .of_graph = true, .kept = true, .session = &session});
}

void forget_host_functions(const std::vector<uint64_t>& ids) {
  host_functions().forget(ids);
}

void expect_host_functions(Session& session, uint64_t command, const std::vector<uint64_t>& ids) {
  for (size_t i = host_functions().expect(command, ids); i != 0; --i) session.receiver().add_interest();
}

}  // namespace gpupool::client
