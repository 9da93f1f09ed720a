#include "server/worker/host_callbacks.h"

namespace gpupool::worker {

HostCallbacks::Turn* HostCallbacks::add(uint64_t id, const void* context) {
  const std::lock_guard lock(mutex_);
  if (callbacks_.size() >= kMaxHostCallbacks) return nullptr;
  auto [place, is_new] = callbacks_.try_emplace(id);
  if (!is_new) return nullptr;
  place->second.turn = std::make_unique<Turn>(Turn{this, id, context});
  return place->second.turn.get();
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
      if (state.turn->context == context) state.done = true;
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
  self->changed_.wait(lock, [self = self, id = id] { return self->ended_ || self->callbacks_.at(id).done; });
  self->callbacks_.erase(id);
}

}  // namespace gpupool::worker
