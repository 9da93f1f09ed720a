#include "server/worker/host_callbacks.h"

#include <algorithm>

namespace gpupool::worker {

HostCallbacks::Turn* HostCallbacks::keep(uint64_t id, const void* context) {
  const std::lock_guard lock(mutex_);
  if (callbacks_.size() >= kMaxHostCallbacks) return nullptr;
  auto [place, is_new] = callbacks_.try_emplace(id);
  if (!is_new) return nullptr;
  place->second.turn = std::make_unique<Turn>(Turn{this, id, context});
  place->second.kept = true;
  return place->second.turn.get();
}

void HostCallbacks::only(uint64_t id) {
  const std::lock_guard lock(mutex_);
  if (const auto found = callbacks_.find(id); found != callbacks_.end()) found->second.only = true;
}

void HostCallbacks::launched(uint64_t id, std::shared_ptr<ComputeLane> lane) {
  const std::lock_guard lock(mutex_);
  if (const auto found = callbacks_.find(id); found != callbacks_.end()) found->second.launches.push_back(std::move(lane));
}

void HostCallbacks::not_launched(uint64_t id) {
  const std::lock_guard lock(mutex_);
  if (const auto found = callbacks_.find(id); found != callbacks_.end()) found->second.launches.pop_back();
}

void HostCallbacks::let_go(uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = callbacks_.find(id);
  if (found == callbacks_.end()) return;
  found->second.kept = false;
  if (found->second.launches.empty()) callbacks_.erase(found);
}

bool HostCallbacks::pending() {
  const std::lock_guard lock(mutex_);
  return std::any_of(callbacks_.begin(), callbacks_.end(), [](const auto& known) { return !known.second.launches.empty(); });
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
  std::unique_lock lock(self->mutex_);
  State& state = self->callbacks_.at(id);  // stays where it is
  std::shared_ptr<ComputeLane> lane;
  if (!state.launches.empty()) {
    lane = std::move(state.launches.front());
    state.launches.front() = nullptr;
  }
  const bool only = state.only;
  lock.unlock();
  if (lane) self->waits_(*lane, true, only);
  self->tell_(id, context);
  lock.lock();
  self->changed_.wait(lock, [self = self, &state] { return self->ended_ || state.done || state.released; });
  const bool over = self->ended_ || state.released;
  if (lane && !over) {
    lock.unlock();
    self->waits_(*lane, false, only);
    lock.lock();
  }
  if (!state.launches.empty()) state.launches.pop_front();
  if (state.kept || !state.launches.empty()) state.done = false;  // until the next launch
  else self->callbacks_.erase(id);
}

}  // namespace gpupool::worker
