// DeviceMemory: frees, which wait in groups for the events that were recorded before them, and the end of
// mappings (device_memory.h).
#include <time.h>

#include <algorithm>

#include "server/worker/memory/device_memory.h"

namespace gpupool::worker {
namespace {

constexpr timespec kPollEvery{0, 100'000};  // polling interval; event waits have no timeout

}  // namespace

void DeviceMemory::unmap(const Piece& piece) {
  if (piece.mapping.away) return;
  if (piece.mapping.moved) {
    release_host(piece.mapping);
    return uncharge(piece.mapping.device, piece.mapping.size);
  }
  if (windows_) windows_->drop(piece.address, piece.mapping.size);
  unmapping(piece.address, piece.mapping.size);
  api_.cuMemUnmap(piece.address, piece.mapping.size);
  api_.cuMemRelease(piece.mapping.memory);
  if (piece.mapping.charge != 0)
    return leave_charge(piece.mapping.device, piece.mapping.size, piece.mapping.charge);
  ledger_.note_movable(piece.mapping.device, -static_cast<int64_t>(piece.mapping.size));
  uncharge(piece.mapping.device, piece.mapping.size);
}

CUresult DeviceMemory::free(uint64_t address, uint64_t size, uint64_t sequence, ContextState* context,
                            std::span<StreamState* const> streams, std::vector<CUevent> events) {
  const auto refuse = [&](CUresult why) {
    for (const CUevent event : events) context->events->give(event);
    return why;
  };
  // Only whole, adjacent mappings can be freed.
  const auto first = mappings_.find(address);
  auto last = first;
  uint64_t covered = 0;
  while (size != 0 && covered < size) {
    if (last == mappings_.end() || last->first != address + covered) return refuse(CUDA_ERROR_INVALID_VALUE);
    covered += last->second.size;
    ++last;
  }
  if (covered != size) return refuse(CUDA_ERROR_INVALID_VALUE);
  if (pending_.load(std::memory_order_relaxed) >= kMaxPendingFrees) return refuse(CUDA_ERROR_OUT_OF_MEMORY);
  Free free{sequence, {}};
  for (auto mapping = first; size != 0 && mapping != last; ++mapping) {
    free.pieces.push_back({mapping->first, mapping->second});
    if (mapping->second.charge != 0) releasing(mapping->second.memory);
    moved_ -= mapping->second.moved != nullptr;
  }
  if (size != 0) mappings_.erase(first, last);

  // The memory may still be in the process of being zeroed: wait for that, too.
  ContextState* const clearing = size != 0 ? contexts_.clearing() : nullptr;
  if (!context) context = clearing;
  const CUcontext before = current_context();
  if (clearing) make_current(api_, clearing->object);
  Group group;
  if (context) {
    group.context = context->object;
    group.pool = context->events;
    group.events = std::move(events);
    const auto wait_for = [&](CUstream stream) {
      const CUevent event = group.pool->take();
      if (event && api_.cuEventRecord(event, stream) == CUDA_SUCCESS) return group.events.push_back(event);
      // No event available, or the context is broken; then this returns at once.
      if (event) group.pool->give(event);
      api_.cuStreamSynchronize(stream);
    };
    for (StreamState* const stream : streams) wait_for(stream->stream);
    if (clearing) wait_for(clearing->scrubbing);
  }
  if (clearing) make_current(api_, before);
  {
    const std::lock_guard lock(mutex_);
    if (group.events.empty() && !groups_.empty()) {
      groups_.back().frees.push_back(std::move(free));
    } else {
      group.frees.push_back(std::move(free));
      groups_.push_back(std::move(group));
    }
    pending_.fetch_add(1, std::memory_order_release);
  }
  collect();
  return CUDA_SUCCESS;
}

void DeviceMemory::expect_late(uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  late_.insert(sequence);
}

bool DeviceMemory::passed(Group& group) {
  while (!group.events.empty()) {
    if (group.context != current_context()) make_current(api_, group.context);
    // Any other error means that the context is broken and none of its work runs any more.
    if (api_.cuEventQuery(group.events.back()) == CUDA_ERROR_NOT_READY) return false;
    group.pool->give(group.events.back());
    group.events.pop_back();
  }
  return !is_being_read(group);
}

bool DeviceMemory::is_being_read(const Group& group) const {
  if (!reader_.is_being_read) return false;
  return std::ranges::any_of(group.frees, [this](const Free& free) {
    return std::ranges::any_of(free.pieces, [this](const Piece& piece) {
      return reader_.is_being_read(piece.address, piece.mapping.size);
    });
  });
}

void DeviceMemory::finish(Group& group) {
  for (const Free& free : group.frees) {
    for (const Piece& piece : free.pieces) unmap(piece);
    late_.erase(free.sequence);
    retired_ = std::max(retired_, free.sequence);
  }
  outbox_.set_retired(late_.empty() ? retired_ : std::min(retired_, *late_.begin() - 1));
  pending_.fetch_sub(group.frees.size(), std::memory_order_release);
}

void DeviceMemory::collect() {
  if (!pending()) return;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return;  // another thread is collecting
  const CUcontext before = current_context();
  while (!groups_.empty() && passed(groups_.front())) {
    finish(groups_.front());
    groups_.pop_front();
  }
  make_current(api_, before);
}

bool DeviceMemory::wait_for_free(std::chrono::steady_clock::time_point stop) {
  const Waiting waiting("memory that is being freed");
  const size_t before = pending_.load(std::memory_order_acquire);
  while (true) {
    collect();
    const size_t now = pending_.load(std::memory_order_acquire);
    if (now < before) return true;
    if (now == 0 || std::chrono::steady_clock::now() >= stop) return false;
    ::nanosleep(&kPollEvery, nullptr);
  }
}

void DeviceMemory::settle() {
  const auto stop = std::chrono::steady_clock::now() + kLongestSettle;
  while (wait_for_free(stop)) {
  }
}

void DeviceMemory::drop_context(ContextState& context, bool gone) {
  const auto peers = peers_;
  for (const auto& [accessing, accessed] : peers) {
    if (accessing == &context || accessed == &context) forbid_access(*accessing, *accessed);
  }
  {
    const std::lock_guard lock(mutex_);
    for (Group& group : groups_) {
      if (group.context != context.object || group.events.empty()) continue;
      if (!gone) {
        for (const CUevent event : group.events) group.pool->give(event);
      }
      group.events.clear();
    }
  }
  collect();
  for (auto mapping = mappings_.begin(); mapping != mappings_.end();) {
    if (mapping->second.context != &context) {
      ++mapping;
      continue;
    }
    moved_ -= mapping->second.moved != nullptr;
    if (mapping->second.charge != 0) releasing(mapping->second.memory);
    unmap({mapping->first, mapping->second});
    mapping = mappings_.erase(mapping);
  }
}

void DeviceMemory::drop_all() {
  const std::lock_guard lock(mutex_);
  for (Group& group : groups_) finish(group);
  groups_.clear();
  for (const auto& [address, mapping] : mappings_) {
    if (mapping.charge != 0) releasing(mapping.memory);
    unmap({address, mapping});
  }
  mappings_.clear();
  moved_ = 0;
  variables_.clear();
}

}  // namespace gpupool::worker
