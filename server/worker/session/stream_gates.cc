#include "server/worker/session/stream_gates.h"

#include <algorithm>
#include <utility>

#include "protocol/control/dump.pb.h"
#include "server/worker/timeline/host_span.h"

namespace gpupool::worker {

void StreamGate::open() {
  if (is_open_.exchange(true)) return;
  if (wait_) wait_->finish();
  gates_.any_open_.store(true);
  // The executor sets `awaited_` before its last check of any_open_, so at least one of the two sees the
  // other's store.
  if (gates_.awaited_.load()) gates_.wake_();
  const std::lock_guard lock(gates_.mutex_);
  gates_.opened_one_.notify_all();
}

std::shared_ptr<StreamGate> StreamGates::close(StreamState& stream, uint64_t sequence, const char* reason,
                                               StreamGate::Opened opened, bool for_all_streams,
                                               MemoryRange memory) {
  closing_(stream);
  auto gate = std::make_shared<StreamGate>(*this, stream, sequence, reason, for_all_streams,
                                           std::move(opened), memory);
  {
    const std::lock_guard lock(mutex_);
    closed_.push_back(gate);
  }
  stream.oldest_gate = std::min(stream.oldest_gate, sequence);
  for_all_streams_ += for_all_streams;
  return gate;
}

std::shared_ptr<StreamGate> StreamGates::close_by_number(StreamState& stream, uint64_t sequence,
                                                         const char* reason, uint64_t number,
                                                         StreamGate::Opened opened) {
  if (numbers_.contains(number)) return nullptr;
  auto gate = close(stream, sequence, reason, std::move(opened));
  if (begin_wait_) gate->wait_ = begin_wait_(stream, reason);
  return numbers_[number] = std::move(gate);
}

std::shared_ptr<StreamGate> StreamGates::take(uint64_t number) {
  auto node = numbers_.extract(number);
  return node ? std::move(node.mapped()) : nullptr;
}

void StreamGates::open_by_number(uint64_t number) {
  if (const auto gate = take(number)) return gate->open();
  opened_early_.insert(number);
  // Clients count upwards, so the first is the oldest.
  if (opened_early_.size() > kMostOpenedEarly) opened_early_.erase(opened_early_.begin());
}

bool StreamGates::any_before(uint64_t sequence) const {
  return std::any_of(closed_.begin(), closed_.end(),
                     [&](const auto& gate) { return gate->sequence_ < sequence; });
}

bool StreamGates::any_for_all_streams_before(uint64_t sequence) const {
  if (for_all_streams_ == 0) return false;
  return std::any_of(closed_.begin(), closed_.end(),
                     [&](const auto& gate) { return gate->for_all_streams_ && gate->sequence_ < sequence; });
}

bool StreamGates::any_in(const ContextState& context) const {
  return std::any_of(closed_.begin(), closed_.end(),
                     [&](const auto& gate) { return gate->stream_->context == &context; });
}

bool StreamGates::any_accesses(const MemoryRange& memory, uint64_t sequence) const {
  return std::any_of(closed_.begin(), closed_.end(), [&](const auto& gate) {
    return gate->sequence_ < sequence && gate->memory_.overlaps(memory);
  });
}

template <class Which>
std::vector<std::shared_ptr<StreamGate>> StreamGates::take_if(Which which) {
  std::vector<std::shared_ptr<StreamGate>> taken;
  const std::lock_guard lock(mutex_);
  std::erase_if(closed_, [&](const auto& gate) {
    if (!which(*gate)) return false;
    taken.push_back(gate);
    return true;
  });
  return taken;
}

void StreamGates::describe(admin::WorkerDump& dump) {
  const std::lock_guard lock(mutex_);
  dump.set_closed_gates(closed_.size());
  for (const auto& gate : closed_) {
    if (dump.gates_size() == kMostListed) return;
    admin::ClosedGate& one = *dump.add_gates();
    one.set_context(gate->context_handle_);
    one.set_stream(gate->stream_handle_);
    one.set_reason(gate->reason_);
    one.set_age_ms(age_ms(gate->since_));
    one.set_opened(gate->is_open_.load());
  }
}

void StreamGates::forget(StreamGate& gate) {
  StreamState& stream = *gate.stream_;
  stream.oldest_gate = StreamState::kNoGate;
  for (const auto& other : closed_) {
    if (other->stream_ == &stream) stream.oldest_gate = std::min(stream.oldest_gate, other->sequence_);
  }
  for_all_streams_ -= gate.for_all_streams_;
}

bool StreamGates::settle() {
  if (!any_open_.load() || !any_open_.exchange(false)) return false;
  const auto open = take_if([](const StreamGate& gate) { return gate.is_open_.load(); });
  for (const auto& gate : open) forget(*gate);
  std::erase_if(numbers_, [](const auto& entry) { return entry.second->is_open_.load(); });
  for (const auto& gate : open) {
    StreamState& stream = *gate->stream_;
    contexts_.enter(stream.context);
    contexts_.note_use_unordered(stream);  // other threads have given the stream work
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
  for (const auto& gate : take_if([&](const StreamGate& gate) { return gate.stream_ == &stream; })) {
    forget(*gate);
    gate->opened_ = nullptr;
  }
}

void StreamGates::clear() {
  numbers_.clear();
  for (const auto& gate : take_if([](const StreamGate&) { return true; })) {
    forget(*gate);
    gate->opened_ = nullptr;
  }
}

}  // namespace gpupool::worker
