#include "server/worker/stream_gates.h"

#include <algorithm>
#include <utility>

namespace gpupool::worker {

void StreamGate::open() {
  if (is_open_.exchange(true)) return;
  gates_.any_open_.store(true);
  // The executor sets `awaited_` before it looks at any_open_ for the last time: one of the two sees the other's store.
  if (gates_.awaited_.load()) gates_.wake_();
  const std::lock_guard lock(gates_.mutex_);
  gates_.opened_one_.notify_all();
}

std::shared_ptr<StreamGate> StreamGates::close(StreamState& stream, StreamGate::Opened opened, bool for_all_streams) {
  auto gate = std::make_shared<StreamGate>(*this, stream, for_all_streams, std::move(opened));
  closed_.push_back(gate);
  ++stream.gates;
  for_all_streams_ += for_all_streams;
  return gate;
}

std::shared_ptr<StreamGate> StreamGates::close_by_number(StreamState& stream, uint64_t number) {
  if (numbers_.contains(number)) return nullptr;
  return numbers_[number] = close(stream);
}

std::shared_ptr<StreamGate> StreamGates::take(uint64_t number) {
  auto node = numbers_.extract(number);
  return node ? std::move(node.mapped()) : nullptr;
}

bool StreamGates::any_in(const ContextState& context) const {
  return std::any_of(closed_.begin(), closed_.end(), [&](const auto& gate) { return gate->stream_->context == &context; });
}

void StreamGates::forget(StreamGate& gate) {
  --gate.stream_->gates;
  for_all_streams_ -= gate.for_all_streams_;
}

bool StreamGates::settle() {
  if (!any_open_.load() || !any_open_.exchange(false)) return false;
  std::vector<std::shared_ptr<StreamGate>> open;
  std::erase_if(closed_, [&](const auto& gate) {
    if (!gate->is_open_) return false;
    open.push_back(gate);
    return true;
  });
  for (const auto& gate : open) forget(*gate);
  std::erase_if(numbers_, [](const auto& entry) { return entry.second->is_open_.load(); });
  for (const auto& gate : open) {
    StreamState& stream = *gate->stream_;
    contexts_.enter(stream.context);
    contexts_.note_use_unordered(stream);  // other threads have given it work
    if (const auto opened = std::exchange(gate->opened_, nullptr)) opened(stream);
  }
  return !open.empty();
}

void StreamGates::wait(std::chrono::milliseconds longest) {
  std::unique_lock lock(mutex_);
  opened_one_.wait_for(lock, longest, [this] { return any_open_.load(); });
}

void StreamGates::open_numbered(const ContextState& context) {
  std::erase_if(numbers_, [&](const auto& entry) {
    if (entry.second->stream_->context != &context) return false;
    entry.second->open();
    return true;
  });
}

void StreamGates::drop(const StreamState& stream) {
  std::erase_if(numbers_, [&](const auto& entry) { return entry.second->stream_ == &stream; });
  std::erase_if(closed_, [&](const auto& gate) {
    if (gate->stream_ != &stream) return false;
    forget(*gate);
    gate->opened_ = nullptr;
    return true;
  });
}

void StreamGates::clear() {
  numbers_.clear();
  for (const auto& gate : closed_) {
    forget(*gate);
    gate->opened_ = nullptr;
  }
  closed_.clear();
}

}  // namespace gpupool::worker
