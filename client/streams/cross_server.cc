#include "client/streams/cross_server.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <system_error>
#include <thread>

#include "client/memory/compared_copies.h"
#include "client/memory/mirrors.h"
#include "client/streams/side_stream.h"
#include "protocol/calls/errors.h"
#include "protocol/wire/commands.h"

namespace gpupool::client {
namespace {

// Threads that are started on demand and never end, like all threads of the client.
class ThreadPool {
 public:
  explicit ThreadPool(size_t most) : most_(most) {}
  void run(std::function<void()> task) {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_one();
    if (idle_ >= tasks_.size() || threads_ >= most_) return;
    try {
      std::thread([this] { work(); }).detach();
      ++threads_;
    } catch (const std::system_error&) {
      // No thread can be created: an existing thread runs the task, or the first one that can be created.
    }
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      ++idle_;
      changed_.wait(lock, [this] { return !tasks_.empty(); });
      --idle_;
      const auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  const size_t most_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  size_t threads_ = 0;
  size_t idle_ = 0;
};

// Copies wait for servers. Resuming streams must not queue behind copies, which may wait for those streams.
ThreadPool& copy_threads() {
  static ThreadPool* const only = new ThreadPool(4);
  return *only;
}
ThreadPool& resume_thread() {
  static ThreadPool* const only = new ThreadPool(1);
  return *only;
}

std::atomic<uint64_t> next_hold{uint64_t{1} << 63};  // separate from the ids of host functions
std::atomic<int> held{0};
std::atomic<bool> value_waits{false};

// Guards Context::cross_server_uses.
struct Uses {
  std::mutex mutex;
  std::condition_variable changed;
};
Uses& uses() {
  static Uses* const only = new Uses;
  return *only;
}

// A held stream, and the contexts that must live until it resumes.
class HeldStream {
 public:
  HeldStream(Context& context, CUstream stream, Context* from, Context* to)
      : context_(context), stream_(stream), contexts_{&context, from, to} {
    std::lock_guard lock(uses().mutex);
    for (Context* const named : contexts_) {
      if (named) ++named->cross_server_uses;
    }
    held.fetch_add(1);
    context.session->receiver().add_interest();  // to receive wire::kSendAwaitRoom while no thread waits
  }
  ~HeldStream() {
    context_.session->receiver().drop_interest();
    held.fetch_sub(1);
    std::lock_guard lock(uses().mutex);
    for (Context* const named : contexts_) {
      if (named) --named->cross_server_uses;
    }
    uses().changed.notify_all();
  }
  HeldStream(const HeldStream&) = delete;
  HeldStream& operator=(const HeldStream&) = delete;

  CUresult hold() {
    return context_.session->post(wire::Command::hold_stream, &context_,
                                  wire::HoldStream{cuda::handle_bits(stream_), id_});
  }
  void resume(CUresult result) {
    if (result != CUDA_SUCCESS) context_.late_error = result;
    (void)guarded([&] {
      return context_.session->post(wire::Command::resume_stream, nullptr, wire::ResumeStream{id_});
    });
  }

 private:
  Context& context_;
  const CUstream stream_;
  Context* const contexts_[3];
  const uint64_t id_ = next_hold.fetch_add(1);
};

// True if the context or its server is lost. Other errors belong to earlier commands of the context and do
// not affect this work.
bool is_broken(CUresult answer) {
  return cuda::is_sticky(answer) || answer == Session::failure();
}

void return_stream(Context& context, CUstream stream) {
  std::lock_guard lock(context.mutex);
  for (InternalStream& one : context.wait_streams) one.uses -= one.stream == cuda::handle_bits(stream);
}

}  // namespace

CUresult wait_for_event(Context& context, CUstream stream, const Object& event) {
  auto* const other = handles().find_as<Context>(Kind::context, event.context);
  if (!other) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (const CUresult result = other->session->before_call(other); result != CUDA_SUCCESS) return result;
  const auto held_stream = std::make_shared<HeldStream>(context, stream, other, nullptr);
  // The event may be recorded again before the stream gets here, so a separate stream waits for its present
  // record.
  CUstream wait_stream = nullptr;
  if (const CUresult result = borrow_stream(*other, other->wait_streams, &wait_stream);
      result != CUDA_SUCCESS)
    return result;
  const auto done = [held_stream, other, wait_stream](CUresult result) {
    return_stream(*other, wait_stream);
    if (result != CUDA_SUCCESS && !is_broken(result)) other->late_error = result;
    held_stream->resume(is_broken(result) ? result : CUDA_SUCCESS);
  };
  CUresult result = rows::cuStreamWaitEvent::at(
      {other->session, other}, {wait_stream, cuda::handle_from_bits<CUevent>(event.handle), 0});
  if (result == CUDA_SUCCESS) result = held_stream->hold();
  if (result != CUDA_SUCCESS) {
    return_stream(*other, wait_stream);
    return result;
  }
  result = other->session->call_later(
      wire::Command::synchronize_stream, *other,
      [&](wire::Writer& writer) { writer.put(wire::SynchronizeStream{cuda::handle_bits(wait_stream)}); },
      [done](CUresult reply) { resume_thread().run([done, reply] { done(reply); }); });
  if (result != CUDA_SUCCESS) done(CUDA_SUCCESS);
  return result;
}

namespace {

// Returns one context for each session of `contexts`, except the session of `context`.
std::vector<Context*> other_sessions(const Context& context, std::initializer_list<Context*> contexts) {
  std::vector<Context*> found;
  for (Context* const one : contexts) {
    const auto same = [&](const Context* other) { return other->session == one->session; };
    if (one && one->session != context.session && std::none_of(found.begin(), found.end(), same))
      found.push_back(one);
  }
  return found;
}

}  // namespace

CUresult run_between(Context& context, CUstream stream, Context* from, Context* to,
                     std::function<CUresult()> work) {
  const auto held_stream = std::make_shared<HeldStream>(context, stream, from, to);
  struct Start {
    std::atomic<size_t> missing{2};  // replies, and the hold
    CUresult result = CUDA_SUCCESS;
    bool held = false;
  };
  const std::vector<Context*> others = other_sessions(context, {from, to});
  const auto start = std::make_shared<Start>();
  start->missing += others.size();
  const auto arrive = [held_stream, start, work = std::move(work)] {
    if (start->missing.fetch_sub(1) != 1 || !start->held) return;
    copy_threads().run([held_stream, start, work] {
      const CUresult before = start->result;
      const CUresult result = is_broken(before) ? before : guarded(work);
      held_stream->resume(result != CUDA_SUCCESS ? result : before);
    });
  };
  // Waits in a separate stream for the work before this call. Waiting for `stream` itself would miss what it
  // has yet to wait for (legacy stream, events) and would include work that it gets meanwhile.
  CUstream wait_stream = nullptr;
  if (const CUresult result = borrow_stream(context, context.wait_streams, &wait_stream);
      result != CUDA_SUCCESS)
    return result;
  CUresult asked = order_after(context, wait_stream, context, stream);
  if (asked == CUDA_SUCCESS) {
    asked = context.session->call_later(
        wire::Command::synchronize_stream, context,
        [&](wire::Writer& writer) { writer.put(wire::SynchronizeStream{cuda::handle_bits(wait_stream)}); },
        [held_stream, &context, wait_stream, start, arrive](CUresult result) {
          // Off this thread, because it locks.
          resume_thread().run([held_stream, &context, wait_stream] { return_stream(context, wait_stream); });
          start->result = result;
          arrive();
        });
  }
  if (asked != CUDA_SUCCESS) return return_stream(context, wait_stream), asked;
  // The work runs in the client's own streams, which do not wait for synchronous copies that all streams wait
  // for (`before_all`). So wait until those queued before this call are done.
  for (Context* const other : others) {
    const CUresult sent = other->session->call_later(
        wire::Command::await_barriers, *other, [](wire::Writer&) {},
        [other, arrive](CUresult result) {
          if (result != CUDA_SUCCESS && !is_broken(result)) other->late_error = result;
          arrive();
        });
    if (sent != CUDA_SUCCESS) arrive();  // the work will get the same error
  }
  const CUresult result = held_stream->hold();
  start->held = result == CUDA_SUCCESS;
  arrive();
  return result;
}

bool streams_held() {
  return held.load(std::memory_order_relaxed) != 0;
}
void note_value_waits() {
  value_waits.store(true, std::memory_order_relaxed);
}
bool streams_may_block() {
  return streams_held() || value_waits.load(std::memory_order_relaxed);
}

void await_cross_server_work(Context& context) {
  std::unique_lock lock(uses().mutex);
  uses().changed.wait(lock, [&] { return context.cross_server_uses == 0; });
}

CUresult synchronize_stream(Context& context, CUstream stream) {
  wire::Buffer reply;
  const uint64_t last = compared_copies().last_use();
  if (!stream) context.writes_host_memory.store(false, std::memory_order_relaxed);
  const CUresult result = context.session->call(wire::Command::synchronize_stream, &context,
                                                wire::SynchronizeStream{cuda::handle_bits(stream)}, reply);
  return result == CUDA_SUCCESS && compared_copies().any()
             ? compared_copies().after_stream(context, stream, last)
             : result;
}

CUresult synchronize_context(Context& context) {
  wire::Buffer reply;
  const uint64_t last_mirror_use = mirrors().last_use_of(context), last = compared_copies().last_use();
  context.writes_host_memory.store(false, std::memory_order_relaxed);
  const CUresult result = context.session->call(
      static_cast<uint16_t>(wire::Command::synchronize_context), &context, [](wire::Writer&) {}, reply);
  if (result == CUDA_SUCCESS && last_mirror_use != 0) Mirrors::note_completed(context, last_mirror_use);
  return result == CUDA_SUCCESS && compared_copies().any() ? compared_copies().after_context(context, last)
                                                           : result;
}

}  // namespace gpupool::client
