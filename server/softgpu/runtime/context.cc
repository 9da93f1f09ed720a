#include "server/softgpu/runtime/context.h"

#include <stdio.h>

#include <string>

#include "protocol/driver/context_local_storage.h"
#include "protocol/driver/export_tables.h"
#include "server/softgpu/exec/grid.h"
#include "server/softgpu/runtime/device.h"
#include "server/softgpu/runtime/module.h"
#include "server/softgpu/runtime/runtime.h"

namespace gpupool::softgpu {
namespace {

std::atomic<uint64_t> next_id{1};

uint32_t queue_limit() {
  const Config& config = runtime().config();
  return config.rules.enforces(Rule::bounded_queues) ? config.queue_entries : UINT32_MAX;
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
  legacy_ = make_stream(0, 0, true);
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

// Streams and contexts take their ids from one sequence.
Ref<Stream> Context::make_stream(unsigned flags, int priority, bool legacy) {
  return make_ref<Stream>(Ref<Context>::share(this), assign_queue(), flags, priority, legacy,
                          next_id.fetch_add(1));
}

CUresult Context::create_stream(unsigned flags, int priority, CUstream* stream) {
  Ref<Stream> created = make_stream(flags, priority, false);
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

void Context::add_child(uint64_t handle) {
  std::lock_guard guard(mutex_);
  children_.insert(handle);
}

void Context::remove_child(uint64_t handle) {
  std::lock_guard guard(mutex_);
  children_.erase(handle);
}

}  // namespace gpupool::softgpu
