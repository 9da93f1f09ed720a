#include "server/softgpu/runtime/context.h"

#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <string>

#include "protocol/driver/context_local_storage.h"
#include "protocol/driver/export_tables.h"
#include "server/softgpu/exec/grid.h"
#include "server/softgpu/runtime/device.h"
#include "server/softgpu/runtime/graph.h"
#include "server/softgpu/runtime/module.h"
#include "server/softgpu/runtime/runtime.h"

namespace gpupool::softgpu {
namespace {

std::atomic<uint64_t> next_id{1};

uint32_t queue_limit() {
  const Config& config = runtime().config();
  return config.rules.enforces(Rule::bounded_queues) ? config.queue_entries : UINT32_MAX;
}

bool on_main_thread() {
  return syscall(SYS_gettid) == getpid();
}

}  // namespace

Context::Context(Device& device, bool primary, unsigned flags)
    : device_(device),
      root_(this),
      primary_(primary),
      id_(next_id.fetch_add(1)),
      flags_(flags),
      queues_(runtime().config().connections),
      queue_limit_(queue_limit()),
      issues_in_order_(runtime().config().rules.enforces(Rule::shared_queues)) {
  reset_settings();
}

Context::Context(Device& device, std::shared_ptr<const Multiprocessors> multiprocessors)
    : device_(device),
      root_(&device.primary()),
      primary_(false),
      multiprocessors_(std::move(multiprocessors)),
      id_(next_id.fetch_add(1)),
      flags_(0),
      queues_(runtime().config().connections),
      queue_limit_(queue_limit()),
      issues_in_order_(runtime().config().rules.enforces(Rule::shared_queues)) {}

Context::~Context() = default;

void Context::write_device_output() {
  const std::string text = take_printf_output();
  if (!text.empty()) fwrite(text.data(), 1, text.size(), stdout);
  write_assertions();
}

void Context::write_assertions() {
  const std::string assertions = take_assert_output();
  if (!assertions.empty()) fwrite(assertions.data(), 1, assertions.size(), stderr);
}

int Context::multiprocessor_count() const {
  return multiprocessors_ ? static_cast<int>(multiprocessors_->count()) : device_.multiprocessors();
}

CUresult Context::activate() {
  if (!green() && runtime().config().rules.enforces(Rule::context_memory)) {
    std::shared_ptr<Memory> own;
    if (const CUresult result = device_.create_physical(device_.context_bytes(), &own);
        result != CUDA_SUCCESS)
      return result;
    std::lock_guard guard(mutex_);
    own_memory_ = std::move(own);
  }
  if (!green()) costs().charge(Cost::context_create);
  if (green()) {
    std::lock_guard guard(root_->context_mutex_);
    root_->greens_.push_back(Ref<Context>::share(this));
  }
  std::lock_guard guard(context_mutex_);
  streams_made_ = 0;
  legacy_ = make_ref<Stream>(Ref<Context>::share(this), assign_queue(), 0u, 0, true, next_id.fetch_add(1));
  error_.store(CUDA_SUCCESS, std::memory_order_release);
  ending_.store(false, std::memory_order_release);
  epoch_.fetch_add(1, std::memory_order_acq_rel);
  active_.store(true, std::memory_order_release);
  if (!green()) runtime().log("context created on device " + std::to_string(device_.index()));
  return CUDA_SUCCESS;
}

void Context::tear_down() {
  // Wait for work in flight: programs reset the device right after a launch. Operations that wait for a value
  // give up, which also releases a thread that holds the lock while it waits for space in a hardware queue.
  ending_.store(true, std::memory_order_release);
  runtime().value_waiter().kick();
  std::vector<Ref<Context>> greens;
  {
    std::lock_guard guard(root_->context_mutex_);
    if (green())
      std::erase_if(root_->greens_, [this](const Ref<Context>& other) { return other.get() == this; });
    greens.swap(greens_);  // empty for a green context
  }
  for (const Ref<Context>& green : greens) green->tear_down();
  synchronize();
  cuda::context_local_storage().destroy_context(reinterpret_cast<CUcontext>(handle_));
  active_.store(false, std::memory_order_release);
  synchronize();  // work that other threads queued meanwhile
  std::unordered_set<uint64_t> children;
  {
    std::lock_guard guard(mutex_);
    children.swap(children_);
    reset_settings();
  }
  for (const uint64_t child : children) {
    if (const Ref<Module> module = runtime().handles().find<Module>(child)) module->unload();
  }
  for (const uint64_t child : children) runtime().handles().remove(child, HandleTable::kind_of(child));
  std::vector<Ref<Stream>> streams;
  std::vector<Orphan> orphans;
  Ref<Stream> legacy;
  Ref<Op> barrier;
  {
    std::lock_guard guard(context_mutex_);
    streams.swap(streams_);
    orphans.swap(orphans_);
    legacy = std::move(legacy_);
    for (HardwareQueue& queue : queues_) streams.push_back(std::move(queue.last_stream));
    barrier = std::move(barrier_);
  }
  runtime().free_context_memory(*this);
  {
    std::lock_guard guard(mutex_);
    own_memory_.reset();
    local_memory_.reset();
    printf_memory_.reset();
    heap_memory_.reset();
  }
  if (!green()) costs().charge(Cost::context_destroy);
  error_.store(CUDA_SUCCESS, std::memory_order_release);
}

void Context::fail(CUresult error) {
  write_assertions();  // before the error becomes visible
  int none = CUDA_SUCCESS;
  std::atomic<int>& whose = error == CUDA_ERROR_CONTEXT_IS_DESTROYED ? error_ : root_->error_;
  if (whose.compare_exchange_strong(none, error, std::memory_order_acq_rel)) runtime().value_waiter().kick();
}

CUresult Context::create_stream(unsigned flags, int priority, CUstream* stream) {
  Ref<Stream> created = make_ref<Stream>(Ref<Context>::share(this), assign_queue(), flags, priority, false,
                                         next_id.fetch_add(1));
  created->handle = runtime().handles().add(created);
  if (created->handle == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  add_child(created->handle);
  *stream = reinterpret_cast<CUstream>(created->handle);
  std::lock_guard guard(context_mutex_);
  costs().charge(Cost::stream_create);
  streams_.push_back(std::move(created));
  return CUDA_SUCCESS;
}

CUresult Context::create_event(unsigned flags, CUevent* event) {
  std::shared_ptr<SharedEvent> shared;
  if ((flags & CU_EVENT_INTERPROCESS) != 0) {
    shared = device_.shared().make_event();
    if (!shared) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return adopt_event(flags, std::move(shared), event);
}

CUresult Context::adopt_event(unsigned flags, std::shared_ptr<SharedEvent> shared, CUevent* event) {
  const Ref<Event> created = make_ref<Event>(Ref<Context>::share(this), flags, std::move(shared));
  const uint64_t handle = runtime().handles().add(created);
  if (handle == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  add_child(handle);
  costs().charge(Cost::event_create);
  *event = reinterpret_cast<CUevent>(handle);
  return CUDA_SUCCESS;
}

void Context::forget_stream(Stream& stream) {
  std::lock_guard guard(context_mutex_);
  std::erase_if(orphans_, [](const Orphan& orphan) { return orphan.op->done(); });
  if (stream.last_ && !stream.last_->done()) orphans_.push_back({stream.last_, stream.blocking()});
  std::erase_if(streams_, [&](const Ref<Stream>& other) { return other.get() == &stream; });
}

void Context::destroy_stream(Stream& stream) {
  remove_child(stream.handle);
  forget_stream(stream);
}

Ref<Stream> Context::legacy_stream() {
  std::lock_guard guard(context_mutex_);
  return legacy_;
}

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
    mine.stream =
        make_ref<Stream>(Ref<Context>::share(this), assign_queue(), 0u, 0, false, next_id.fetch_add(1));
    std::lock_guard guard(context_mutex_);
    costs().charge(Cost::stream_create);
    streams_.push_back(mine.stream);
  }
  return mine.stream;
}

void Context::drop_per_thread_stream(Stream& stream) {
  forget_stream(stream);
}

HardwareQueue& Context::assign_queue() {
  return queues_[streams_made_.fetch_add(1, std::memory_order_relaxed) % queues_.size()];
}

// Blocks while the queue is full. Consecutive operations of one stream need no issue order, since each waits
// for the one before.
void Context::enter_queue(Stream& stream, Op& first, Op& last) {
  HardwareQueue& queue = stream.queue_;
  queue.add_operation(queue_limit_);
  last.set_queue(&queue);
  if (queue.last_stream.get() == &stream || !issues_in_order_) return;
  if (queue.last_stream && queue.last_stream->last_) first.follow_in_queue(*queue.last_stream->last_);
  queue.last_stream = Ref<Stream>::share(&stream);
}

CUresult Context::order(Stream& stream, Op& first, const Ref<Op>& last, uint64_t price) {
  std::lock_guard guard(context_mutex_);
  if (!active()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  costs().occupy_for(price);
  enter_queue(stream, first, *last);
  const auto follow = [&](Stream& other) {
    if (!other.last_) return;
    if (other.last_->done()) {
      other.last_.reset();
    } else {
      first.after(*other.last_);
    }
  };
  follow(stream);
  if (stream.legacy()) {
    for (const Ref<Stream>& other : streams_) {
      if (other->blocking()) follow(*other);
    }
    for (const Orphan& orphan : orphans_) {
      if (orphan.blocking) first.after(*orphan.op);
    }
  } else if (stream.blocking()) {
    follow(*legacy_);
  }
  if (barrier_) {
    first.after(*barrier_);
    if (barrier_->done()) barrier_.reset();
  }
  stream.last_ = last;
  return CUDA_SUCCESS;
}

CUresult Context::enqueue(Stream& stream, const Ref<Op>& op, Op* also_after) {
  if (stream.capturing()) {
    std::lock_guard guard(graph_mutex());
    if (const Ref<Capture> capture = stream.capture()) return capture->add_op(stream, op);
  }
  // The legacy default stream would have to wait for work that is only captured.
  if (stream.legacy() && invalidate_captures(true)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  op->set_context(this);
  if (also_after != nullptr) op->after(*also_after);
  const CUresult result = order(stream, *op, op, costs().on() ? costs().price(op->cost()) : 0);
  if (result == CUDA_SUCCESS) op->submit();
  return result;
}

CUresult Context::enqueue_graph_launch(Stream& stream, const Ref<Op>& begin, const Ref<Op>& end,
                                       uint64_t price) {
  if (stream.legacy() && invalidate_captures(true)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  begin->set_context(this);
  return order(stream, *begin, end, price);
}

CUresult Context::enqueue_behind_all(const Ref<Op>& op, bool barrier) {
  op->set_context(this);
  {
    std::lock_guard guard(context_mutex_);
    if (!active()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    costs().charge(op->cost());
    std::vector<Ref<Op>> ops;
    collect_all(ops);
    for (const Ref<Op>& other : ops) op->after(*other);
    orphans_.push_back({op, true});
    if (barrier) {
      barrier_ = op;
      for (const Ref<Context>& green : greens_) {
        std::lock_guard its(green->context_mutex_);
        green->barrier_ = op;
      }
    }
  }
  op->submit();
  return CUDA_SUCCESS;
}

void Context::run_when_done(const Ref<Op>& op) {
  {
    std::lock_guard guard(context_mutex_);
    std::vector<Ref<Op>> ops;
    collect_all(ops);
    for (const Ref<Op>& other : ops) op->after(*other);
    if (!ops.empty()) orphans_.push_back({op, false});
  }
  op->submit();
}

void Context::push_last(Stream& stream, std::vector<Ref<Op>>& ops) {
  if (!stream.last_) return;
  if (stream.last_->done()) {
    stream.last_.reset();
  } else {
    ops.push_back(stream.last_);
  }
}

bool Context::invalidate_captures(bool blocking_only) {
  if (captures_in_progress.load(std::memory_order_relaxed) == 0) [[likely]]
    return false;
  std::vector<Ref<Stream>> capturing;
  {
    std::lock_guard guard(context_mutex_);
    for (const Ref<Stream>& stream : streams_) {
      if (stream->capturing() && (stream->blocking() || !blocking_only)) capturing.push_back(stream);
    }
  }
  if (capturing.empty()) return false;
  std::lock_guard guard(graph_mutex());
  for (const Ref<Stream>& stream : capturing) {
    if (const Ref<Capture> capture = stream->capture()) capture->invalid = true;
  }
  return true;
}

void Context::collect_all(std::vector<Ref<Op>>& ops) {
  if (legacy_) push_last(*legacy_, ops);
  for (const Ref<Stream>& stream : streams_) push_last(*stream, ops);
  std::erase_if(orphans_, [](const Orphan& orphan) { return orphan.op->done(); });
  for (const Orphan& orphan : orphans_) ops.push_back(orphan.op);
  for (const Ref<Context>& green : greens_) {
    std::lock_guard its(green->context_mutex_);
    green->collect_all(ops);
  }
}

void Context::collect_for(Stream& stream, std::vector<Ref<Op>>& ops) {
  push_last(stream, ops);
  if (!stream.legacy()) return;
  for (const Ref<Stream>& other : streams_) {
    if (other->blocking()) push_last(*other, ops);
  }
}

void Context::wait_for(std::span<const Ref<Op>> ops, bool blocking) const {
  const bool spin = !blocking && spins();
  bool waited = false;
  for (const Ref<Op>& op : ops) waited |= op->wait(spin);
  if (waited) charge_wakeup(spin);
}

void Context::charge_wakeup(bool spun) const {
  costs().charge(spun ? Cost::wakeup_spin : Cost::wakeup_interrupt);
}

CUresult Context::wait_all(const std::vector<Ref<Op>>& ops) {
  wait_for(ops);
  write_device_output();
  runtime().trim_pools(device_);
  return error();
}

CUresult Context::synchronize() {
  std::vector<Ref<Op>> ops;
  {
    std::lock_guard guard(context_mutex_);
    collect_all(ops);
  }
  return wait_all(ops);
}

void Context::synchronize_locked(uint64_t price) {
  std::lock_guard guard(context_mutex_);
  std::vector<Ref<Op>> ops;
  collect_all(ops);
  wait_for(ops);
  costs().occupy_for(price);
}

void Context::charge_event_query() {
  std::unique_lock guard(context_mutex_, std::defer_lock);
  if (runtime().config().rules.enforces(Rule::event_calls_lock)) guard.lock();
  costs().charge(Cost::event_query);
}

CUresult Context::synchronize(Stream& stream) {
  std::vector<Ref<Op>> ops;
  {
    std::lock_guard guard(context_mutex_);
    collect_for(stream, ops);
  }
  return wait_all(ops);
}

bool Context::idle(Stream& stream) {
  std::vector<Ref<Op>> ops;
  std::lock_guard guard(context_mutex_);
  costs().charge(Cost::event_query);
  collect_for(stream, ops);
  return ops.empty();
}

bool Context::idle() {
  std::vector<Ref<Op>> ops;
  std::lock_guard guard(context_mutex_);
  collect_all(ops);
  return ops.empty();
}

void Context::add_child(uint64_t handle) {
  std::lock_guard guard(mutex_);
  children_.insert(handle);
}

void Context::remove_child(uint64_t handle) {
  std::lock_guard guard(mutex_);
  children_.erase(handle);
}

// --- The calling thread's contexts ---

namespace {

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
