#include "server/worker/session/backlog.h"

#include <algorithm>
#include <utility>

#include "protocol/control/dump.pb.h"
#include "server/worker/session/session.h"

namespace gpupool::worker {
namespace {

using Rule = CommandOrder::Rule;

uint64_t bytes_of(const Backlog::KeptCommand& command) {
  return sizeof command + command.body.size();
}

bool same_owner(const ContextState& one, const ContextState& other) {
  const auto owner = [](const ContextState& context) { return context.root ? context.root : &context; };
  return owner(one) == owner(other);
}

void add_to(std::unordered_map<uint64_t, size_t>& counts, uint64_t key, int one) {
  const auto place = counts.try_emplace(key, 0).first;
  place->second += static_cast<size_t>(one);
  if (place->second == 0) counts.erase(place);
}

}  // namespace

// True if `which` is true for any stream that has kept commands or a gate closed before `sequence`.
bool Backlog::any_waiting(uint64_t sequence, const std::function<bool(StreamState&)>& which) const {
  const auto gated = [&](const auto& gate) {
    return StreamGates::sequence_of(*gate) < sequence && which(StreamGates::stream_of(*gate));
  };
  return std::any_of(streams_.begin(), streams_.end(), [&](StreamState* stream) { return which(*stream); }) ||
         std::any_of(gates_.closed().begin(), gates_.closed().end(), gated);
}

// The legacy stream and the blocking streams of its context wait for each other's work.
bool Backlog::waits_with_legacy(StreamState& stream, uint64_t sequence) const {
  StreamState& legacy = stream.context->legacy;
  if (&stream != &legacy) return waits(legacy, sequence) && contexts_.is_blocking(stream);
  return any_waiting(sequence, [&](StreamState& other) {
    return other.context == stream.context && contexts_.is_blocking(other);
  });
}

const char* Backlog::must_wait(const CommandOrder& order) const {
  if (order.rule == Rule::at_once) return nullptr;
  if (gates_.any_accesses(order.frees, order.sequence)) return "a copy from or to its memory";
  const bool names_objects = order.reads.count != 0 || order.writes.count != 0;
  const bool own = order.stream && order.stream->own;
  if (alone_ != 0 && !own && (names_objects || order.rule != Rule::in_order))
    return "an earlier command that orders all later ones";
  const bool barrier = for_all_streams_ != 0 || gates_.any_for_all_streams_before(order.sequence);
  const bool awaits_barriers =
      (order.gives_work && !own) || order.rule == Rule::after_barriers || order.rule == Rule::after_context;
  if (barrier && awaits_barriers) return "an earlier copy that orders all streams";
  if (order.rule == Rule::alone)
    return gates_.any_before(order.sequence) || !kept_.empty() ? "all earlier commands" : nullptr;
  if (order.rule == Rule::after_context && order.context &&
      any_waiting(order.sequence,
                  [&](const StreamState& stream) { return same_owner(*stream.context, *order.context); })) {
    return "work in a stream of its context";
  }
  if (order.stream && waits(*order.stream, order.sequence)) {
    return order.stream->oldest_gate < order.sequence ? "its stream's gate"
                                                      : "an earlier command in its stream";
  }
  // A wait for a stream other than the legacy one does not cover work that the legacy stream gets later.
  const bool with_legacy =
      order.stream && (order.gives_work || order.stream == &order.stream->context->legacy);
  if (with_legacy && waits_with_legacy(*order.stream, order.sequence))
    return "ordering with the legacy stream";
  const auto is_written = [this](uint64_t key) { return writes_.contains(key) || held_.contains(key); };
  const bool with_object = std::any_of(order.reads.begin(), order.reads.end(), is_written) ||
                           std::any_of(order.writes.begin(), order.writes.end(), [&](uint64_t key) {
                             return is_written(key) || reads_.contains(key) || held_reads_.contains(key);
                           });
  return with_object ? "an earlier command that uses the same object" : nullptr;
}

// Adds the command to the summary that later commands are compared with (`one` = 1), or removes it (-1).
void Backlog::count(const CommandOrder& order, int one) {
  if (order.stream && order.gives_work) {
    if (order.stream->kept == 0) streams_.push_back(order.stream);
    order.stream->kept += static_cast<unsigned>(one);
    if (order.stream->kept == 0) std::erase(streams_, order.stream);
  }
  for (const uint64_t key : order.reads) add_to(reads_, key, one);
  for (const uint64_t key : order.writes) add_to(writes_, key, one);
  alone_ += static_cast<size_t>(one * (order.rule == Rule::alone));
  for_all_streams_ += static_cast<size_t>(one * order.for_all_streams);
}

void Backlog::hold(uint64_t key) {
  add_to(held_, key, 1);
}

void Backlog::release(uint64_t key) {
  add_to(held_, key, -1);
}

void Backlog::hold_read(uint64_t key) {
  add_to(held_reads_, key, 1);
}

void Backlog::release_read(uint64_t key) {
  add_to(held_reads_, key, -1);
}

void Backlog::reset_counts() {
  for (StreamState* const stream : streams_) stream->kept = 0;
  streams_.clear();
  reads_.clear();
  writes_.clear();
  alone_ = for_all_streams_ = 0;
}

void Backlog::keep(KeptCommand command) {
  count(command.order, 1);
  to_answer_ += command.answer_by.has_value();
  if (command.order.stream) command.stream = command.order.stream->handle;
  {
    const std::lock_guard lock(mutex_);
    bytes_ += bytes_of(command);
    kept_.push_back(std::move(command));
  }
  gates_.set_awaited(true);
}

bool Backlog::run(const std::function<bool(KeptCommand&)>& execute) {
  if (kept_.empty() || !running_.empty()) return true;
  {
    const std::lock_guard lock(mutex_);
    running_.swap(kept_);
  }
  reset_counts();
  while (!running_.empty()) {
    const char* const waits_for = must_wait(running_.front().order);
    std::unique_lock lock(mutex_);
    KeptCommand command = std::move(running_.front());
    running_.pop_front();
    if (waits_for) {
      count(command.order, 1);
      command.waits_for = waits_for;
      kept_.push_back(std::move(command));
      continue;
    }
    bytes_ -= bytes_of(command);
    lock.unlock();
    to_answer_ -= command.answer_by.has_value();
    if (!execute(command)) return false;
  }
  if (kept_.empty()) gates_.set_awaited(false);
  return true;
}

std::optional<Backlog::Clock::duration> Backlog::answer_overdue(
    const std::function<void(const wire::CommandHeader&)>& answer) {
  if (to_answer_ == 0) return std::nullopt;
  const auto now = Clock::now();
  std::optional<Clock::duration> next;
  for (KeptCommand& kept : kept_) {
    if (!kept.answer_by) continue;
    if (*kept.answer_by > now) {
      next = std::min(next.value_or(*kept.answer_by - now), *kept.answer_by - now);
      continue;
    }
    kept.answer_by.reset();
    kept.header.flags &= static_cast<uint16_t>(~wire::kWantsReply);
    --to_answer_;
    answer(kept.header);
  }
  return next;
}

bool Backlog::any_in(const ContextState& context) const {
  const auto is_in = [&](const KeptCommand& kept) {
    return kept.order.context == &context || (kept.order.stream && kept.order.stream->context == &context);
  };
  return std::any_of(kept_.begin(), kept_.end(), is_in);
}

void Backlog::forget(const StreamState& stream) {
  std::erase(streams_, &stream);
  const std::lock_guard lock(mutex_);
  for (auto* const commands : {&kept_, &running_}) {
    for (KeptCommand& kept : *commands) {
      if (kept.order.stream == &stream) kept.order.stream = nullptr;
    }
  }
}

std::vector<Backlog::KeptCommand> Backlog::remove(const ContextState& context) {
  std::vector<KeptCommand> removed;
  const std::lock_guard lock(mutex_);
  std::erase_if(kept_, [&](KeptCommand& kept) {
    if (kept.order.context != &context && !(kept.order.stream && kept.order.stream->context == &context))
      return false;
    count(kept.order, -1);
    bytes_ -= bytes_of(kept);
    to_answer_ -= kept.answer_by.has_value();
    removed.push_back(std::move(kept));
    return true;
  });
  return removed;
}

void Backlog::clear() {
  reset_counts();
  to_answer_ = 0;
  const std::lock_guard lock(mutex_);
  kept_.clear();
  running_.clear();
  bytes_ = 0;
}

void Backlog::describe(admin::WorkerDump& dump) {
  const std::lock_guard lock(mutex_);
  dump.set_backlog(size());
  dump.set_backlog_bytes(bytes_);
  for (const auto* const commands : {&kept_, &running_}) {
    for (const KeptCommand& kept : *commands) {
      if (dump.kept_size() == kMostKeptListed) return;
      admin::KeptCommand& one = *dump.add_kept();
      one.set_command(command_name(kept.header.id));
      one.set_context(kept.header.context);
      if (kept.stream != CurrentCommand::kNoStream) one.set_stream(kept.stream);
      one.set_waits_for(kept.waits_for);
    }
  }
}

}  // namespace gpupool::worker
