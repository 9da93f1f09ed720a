#include "client/streams/stream_order.h"

#include <algorithm>

namespace gpupool::client {

void StreamOrder::merge(Points& to, const Points& from) {
  for (const FreePoint& point : from) {
    const auto known =
        std::find_if(to.begin(), to.end(), [&](const FreePoint& one) { return one.stream == point.stream; });
    if (known == to.end())
      to.push_back(point);
    else
      known->time = std::max(known->time, point.time);
  }
}

bool StreamOrder::is_passed_locked(const FreePoint& point) const {
  const auto stream = streams_.find(point.stream);
  return stream == streams_.end() || point.time <= stream->second.passed;
}

void StreamOrder::prune(Points& points) const {
  std::erase_if(points, [this](const FreePoint& point) { return is_passed_locked(point); });
}

FreePoint StreamOrder::freed(uint64_t stream, uint64_t context, uint64_t root) {
  const std::lock_guard lock(mutex_);
  active_.store(true, std::memory_order_relaxed);
  Stream& known = streams_[stream];
  known.context = context;
  known.root = root;
  known.freed = ++clock_;
  return {stream, clock_};
}

void StreamOrder::add_reach(uint64_t stream, Points& points) const {
  if (const auto known = streams_.find(stream);
      known != streams_.end() && known->second.freed > known->second.passed) {
    merge(points, {{stream, known->second.freed}});
  }
  if (const auto waited = behind_.find(stream); waited != behind_.end()) merge(points, waited->second);
}

StreamOrder::Points StreamOrder::reach(uint64_t stream) const {
  if (!active()) return {};
  const std::lock_guard lock(mutex_);
  Points points;
  add_reach(stream, points);
  return points;
}

StreamOrder::Points StreamOrder::reach_context(uint64_t context) const {
  if (!active()) return {};
  const std::lock_guard lock(mutex_);
  Points points;
  for (const auto& [stream, known] : streams_) {
    if (known.context == context || known.root == context) add_reach(stream, points);
  }
  return points;
}

void StreamOrder::passed(const Points& points) {
  if (points.empty()) return;
  const std::lock_guard lock(mutex_);
  for (const FreePoint& point : points) {
    const auto stream = streams_.find(point.stream);
    if (stream == streams_.end()) continue;
    stream->second.passed = std::max(stream->second.passed, point.time);
    if (stream->second.destroyed && stream->second.passed >= stream->second.freed) streams_.erase(stream);
  }
}

bool StreamOrder::is_passed(const FreePoint& point) const {
  const std::lock_guard lock(mutex_);
  return is_passed_locked(point);
}

void StreamOrder::waits(uint64_t stream, const Points& points) {
  if (points.empty()) return;
  const std::lock_guard lock(mutex_);
  Points& known = behind_[stream];
  prune(known);
  merge(known, points);
}

bool StreamOrder::is_ordered_after(uint64_t stream, const FreePoint& point) const {
  const std::lock_guard lock(mutex_);
  const auto waited = behind_.find(stream);
  return waited != behind_.end() &&
         std::any_of(waited->second.begin(), waited->second.end(), [&](const FreePoint& known) {
           return known.stream == point.stream && point.time <= known.time;
         });
}

void StreamOrder::begin_record(uint64_t event) {
  const std::lock_guard lock(mutex_);
  Event& known = events_[event];
  ++known.record;
  known.points.clear();
  if (known.recording++ != 0) known.overlapped = true;
}

void StreamOrder::end_record(uint64_t event, const Points& points) {
  const std::lock_guard lock(mutex_);
  const auto known = events_.find(event);
  if (known == events_.end() || --known->second.recording != 0) return;
  // If records overlap, the last one is unknown.
  if (!known->second.overlapped && !known->second.invalidated) known->second.points = points;
  known->second.overlapped = false;
}

void StreamOrder::invalidate_event(uint64_t event) {
  const std::lock_guard lock(mutex_);
  Event& known = events_[event];
  ++known.record;
  known.invalidated = true;
  known.points.clear();
}

void StreamOrder::forget_event(uint64_t event) {
  const std::lock_guard lock(mutex_);
  events_.erase(event);
}

StreamOrder::EventState StreamOrder::of_event(uint64_t event) const {
  if (!active()) return {};
  const std::lock_guard lock(mutex_);
  const auto known = events_.find(event);
  return known == events_.end() ? EventState{} : EventState{known->second.record, known->second.points};
}

bool StreamOrder::is_recorded_anew(uint64_t event, const EventState& since) const {
  const std::lock_guard lock(mutex_);
  const auto known = events_.find(event);
  return known == events_.end() || known->second.record != since.record;
}

std::vector<StreamOrder::Unpassed> StreamOrder::unpassed() const {
  const std::lock_guard lock(mutex_);
  std::vector<Unpassed> all;
  for (const auto& [stream, known] : streams_) {
    if (known.freed > known.passed) all.push_back({{stream, known.freed}, known.context});
  }
  return all;
}

void StreamOrder::stream_destroyed(uint64_t stream) {
  if (!active()) return;
  const std::lock_guard lock(mutex_);
  behind_.erase(stream);
  const auto known = streams_.find(stream);
  if (known == streams_.end()) return;
  known->second.destroyed = true;
  if (known->second.passed >= known->second.freed) streams_.erase(known);
}

void StreamOrder::context_destroyed(uint64_t context) {
  if (!active()) return;
  const std::lock_guard lock(mutex_);
  std::erase_if(streams_, [context](const auto& known) {
    return known.second.context == context || known.second.root == context;
  });
}

}  // namespace gpupool::client
