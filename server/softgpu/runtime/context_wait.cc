// Waiting for the work of a context and of its streams (context.h).
#include "server/softgpu/runtime/context.h"
#include "server/softgpu/runtime/device.h"
#include "server/softgpu/runtime/runtime.h"

namespace gpupool::softgpu {

void Context::push_last(Stream& stream, std::vector<Ref<Op>>& ops) {
  if (!stream.last_) return;
  if (stream.last_->done()) {
    stream.last_.reset();
  } else {
    ops.push_back(stream.last_);
  }
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

}  // namespace gpupool::softgpu
