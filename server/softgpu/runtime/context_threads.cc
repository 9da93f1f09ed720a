// The state that each calling thread has for contexts (context.h): its stack of current contexts, and its
// default streams.
#include <sys/syscall.h>
#include <unistd.h>

#include <map>
#include <utility>

#include "server/softgpu/runtime/context.h"
#include "server/softgpu/runtime/runtime.h"

namespace gpupool::softgpu {
namespace {

bool on_main_thread() {
  return syscall(SYS_gettid) == getpid();
}

// The main thread's is never freed, because exit handlers may call the driver.
struct ThreadContexts {
  std::vector<Ref<Context>> stack;
};
thread_local ThreadContexts* thread_contexts = nullptr;
struct ThreadContextsOwner {
  bool armed = false;
  ~ThreadContextsOwner() {
    if (armed && !on_main_thread()) delete std::exchange(thread_contexts, nullptr);
  }
};
thread_local ThreadContextsOwner thread_contexts_owner;

std::vector<Ref<Context>>& context_stack() {
  if (thread_contexts == nullptr) {
    thread_contexts = new ThreadContexts;
    thread_contexts_owner.armed = true;
  }
  return thread_contexts->stack;
}

}  // namespace

Ref<Stream> Context::per_thread_stream() {
  // The thread's default streams, one per context. Those of the main thread are never freed, because exit
  // handlers may call the driver.
  struct Mine {
    uint64_t epoch;
    Ref<Stream> stream;
  };
  using Cache = std::map<Context*, Mine>;
  thread_local Cache* cache = nullptr;
  struct Owner {
    bool armed = false;
    ~Owner() {
      if (!armed || on_main_thread()) return;
      for (auto& [context, mine] : *cache) mine.stream->context().drop_per_thread_stream(*mine.stream);
      delete std::exchange(cache, nullptr);
    }
  };
  thread_local Owner owner;
  if (cache == nullptr) {
    cache = new Cache;
    owner.armed = true;
  }
  Mine& mine = (*cache)[this];
  if (!mine.stream || mine.epoch != epoch()) {
    mine.epoch = epoch();
    mine.stream = make_stream(0, 0, false);
    std::lock_guard guard(context_mutex_);
    costs().charge(Cost::stream_create);
    streams_.push_back(mine.stream);
  }
  return mine.stream;
}

void Context::drop_per_thread_stream(Stream& stream) {
  forget_stream(stream);
}

Ref<Context> current_context() {
  if (thread_contexts == nullptr || thread_contexts->stack.empty()) return nullptr;
  return thread_contexts->stack.back();
}

void set_current_context(Ref<Context> context) {
  std::vector<Ref<Context>>& stack = context_stack();
  if (!context) {
    if (!stack.empty()) stack.pop_back();
  } else if (stack.empty()) {
    stack.push_back(std::move(context));
  } else {
    stack.back() = std::move(context);
  }
}

void push_context(Ref<Context> context) {
  context_stack().push_back(std::move(context));
}

Ref<Context> pop_context() {
  std::vector<Ref<Context>>& stack = context_stack();
  if (stack.empty()) return nullptr;
  Ref<Context> top = std::move(stack.back());
  stack.pop_back();
  return top;
}

}  // namespace gpupool::softgpu
