#include "server/worker/host_callbacks.h"

namespace gpupool::worker {

HostCallbacks::Turn* HostCallbacks::add_state(uint64_t id, const void* context, bool kept) {
  const std::lock_guard lock(mutex_);
  if (callbacks_.size() >= kMaxHostCallbacks) return nullptr;
  auto [place, is_new] = callbacks_.try_emplace(id);
  if (!is_new) return nullptr;
  place->second.turn = std::make_unique<Turn>(Turn{this, id, context});
  place->second.kept = kept;
  return place->second.turn.get();
}

HostCallbacks::Turn* HostCallbacks::add(uint64_t id, const void* context) { return add_state(id, context, false); }

HostCallbacks::Turn* HostCallbacks::keep(uint64_t id, const void* context) { return add_state(id, context, true); }

void HostCallbacks::launched(uint64_t id, bool failed) {
  const std::lock_guard lock(mutex_);
  const auto found = callbacks_.find(id);
  if (found == callbacks_.end()) return;
  failed ? --found->second.launches : ++found->second.launches;
}

void HostCallbacks::let_go(uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = callbacks_.find(id);
  if (found == callbacks_.end()) return;
  found->second.kept = false;
  if (found->second.launches == 0) callbacks_.erase(found);
}

void HostCallbacks::remove(uint64_t id) {
  const std::lock_guard lock(mutex_);
  callbacks_.erase(id);
}

bool HostCallbacks::done(uint64_t id) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = callbacks_.find(id);
    if (found == callbacks_.end()) return false;
    found->second.done = true;
  }
  changed_.notify_all();
  return true;
}

void HostCallbacks::release(const void* context) {
  {
    const std::lock_guard lock(mutex_);
    for (auto& [id, state] : callbacks_) {
      if (state.turn->context == context) state.released = true;
    }
  }
  changed_.notify_all();
}

void HostCallbacks::end_all() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
}

void HostCallbacks::run(void* turn) {
  const auto [self, id, context] = *static_cast<Turn*>(turn);
  self->tell_(id, context);
  std::unique_lock lock(self->mutex_);
  self->changed_.wait(lock, [self = self, id = id] {
    const State& state = self->callbacks_.at(id);
    return self->ended_ || state.done || state.released;
  });
  State& state = self->callbacks_.at(id);
  if (state.launches != 0) --state.launches;
  if (state.kept || state.launches != 0) state.done = false;  // until the next launch
  else self->callbacks_.erase(id);
}

}  // namespace gpupool::worker
