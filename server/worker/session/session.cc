#include "server/worker/session/session.h"

#include <array>
#include <cstdlib>
#include <cstring>

#include "protocol/wire/graphs.h"
#include "server/worker/handlers/call_rows.h"
#include "server/worker/handlers/commands.h"
#include "server/worker/handlers/host_function.h"

namespace gpupool::worker {

thread_local Session* t_session = nullptr;

namespace {

using Handler = Outcome (*)(Session&, Command&);

constexpr uint16_t kCommandIds[] = {
#define COMMAND(id, name) id,
#include "protocol/wire/commands.def"
#undef COMMAND
};
constexpr Handler kHandlers[] = {
#define COMMAND(id, name) &commands::name,
#include "protocol/wire/commands.def"
#undef COMMAND
};
constexpr const char* kCommandNames[] = {
#define COMMAND(id, name) #name,
#include "protocol/wire/commands.def"
#undef COMMAND
};
constexpr bool without_gaps() {
  for (size_t i = 0; i < std::size(kCommandIds); ++i) {
    if (kCommandIds[i] != wire::kFirstCommand + i) return false;
  }
  return true;
}
static_assert(without_gaps(), "ids in commands.def must be consecutive");

constexpr size_t kMaxPeers = 64;  // per session
constexpr size_t kKeptReplyBytes = 1u << 20;
constexpr std::chrono::microseconds kShortestSleep{500};  // while frees are pending
constexpr std::chrono::microseconds kLongestSleep{50'000};
// A client in synchronous mode gets a kept command's error if the gate opens within this time.
constexpr std::chrono::milliseconds kLongestToAccept{20};
constexpr uint64_t kMostKept = 64u << 20;  // bytes of the backlog while the executor may stop receiving
constexpr std::chrono::milliseconds kCheckClientEvery{
    100};                                            // interval of checks for the end of the connection
constexpr std::chrono::seconds kLongestQuiesce{10};  // for waits in a context that is being destroyed

// GPU time is neither measured nor limited without poold, or with GPUPOOL_ACCOUNTING=off (to measure the cost
// of accounting).
Usage measured(const SessionStart& start) {
  const char* const accounting = std::getenv("GPUPOOL_ACCOUNTING");
  const bool off = start.control == nullptr || (accounting != nullptr && std::strcmp(accounting, "off") == 0);
  return off ? Usage{} : start.usage;
}

}  // namespace

const char* command_name(uint16_t id) {
  if (id >= wire::kFirstCommand)
    return id - wire::kFirstCommand < static_cast<int>(std::size(kCommandNames))
               ? kCommandNames[id - wire::kFirstCommand]
               : "?";
  const auto row = find_row(id);
  return row ? call_rows()[*row].name : "none";
}

Session::Session(SessionStart& start)
    : start(start),
      counters(start.usage.counters()),
      ledger(start.usage.account, start.usage.page, start.usage.slot),
      outbox(*start.connection, counters, ledger),
      capture(outbox),
      contexts(api, current_command),
      gates(
          contexts, [this] { this->start.connection->interrupt(); },
          [this](StreamState& stream) { compute.pause(stream); }),
      backlog(contexts, gates),
      back_pressure(*this),
      scrubber(
          api, contexts, waits, [this] { return answer_later(); },
          [this] { this->start.connection->interrupt(); }),
      table(api, contexts, counters, start.visible),
      compute(
          api, measured(start), waits,
          [this] { (void)this->start.control->send<server::ControlKind::turn>(); },
          [this] { this->start.connection->interrupt(); }),
      remote(start.connection->direct_memory(), outbox, start.bandwidth),
      staging(api, remote.memory(), start.usage),
      shared_memory(api, waits),
      small_copies(api, outbox, staging, waits, capture, output_possible),
      links(copies, outbox, start.compression, start.welcome_bulk, start.bulk_token),
      peer_requests(start.control),
      exported_handles(api, start.control, start.server_id, start.session_number),
      checkpoint_image(ledger, exported_handles, outbox),
      memory(api, contexts, outbox, ledger, scrubber, remote.memory()),
      moves(*this),
      checkpoint(*this),
      virtual_memory(api, memory, scrubber),
      arrays(api, contexts, memory, scrubber, waits),
      memory_charges(api, contexts, table, memory, ledger, start),
      graphs(*this),
      uploads(start.usage),
      cached_images(start.control, start.image_nonce, start.largest_image),
      images(api),
      linkers(api),
      events(api),
      inbox(*start.connection, counters.bytes_from_client, [this] { return before_sleep(); }) {
  table.on_stream_destroy([this](StreamState& stream) { before_stream_destroyed(stream); });
  table.on_code_unloaded([this](uint64_t handle) {
    memory.forget_variables(handle);
    if (!postponed_unloads.keep_charge_of(handle)) forget_code(handle);
  });
  table.keep_if([this](uint64_t handle) { return backlog.destroys(handle); });
  table.release_memory_by([this](CUmemGenericAllocationHandle handle) { virtual_memory.release(handle); });
  table.hide_arrays_if([this](const void* array) { return arrays.is_dirty(array); });
  table.destroy_array_by([this](void* array) { arrays.drop(array); });
  memory.on_release(
      [this](CUmemGenericAllocationHandle handle) { return exported_handles.withdraw(handle); });
  memory.take_range(start.range_base, start.range_size);
  if (!start.direct_memory) memory.disable_direct_access();
}

Session::~Session() {
  if (t_session == this) t_session = nullptr;
}

bool Session::run() {
  t_session = this;
  current_command.begin_session();
  invalidate_current_context();
  if (const char* const missing = api.load(start.symbol)) {
    outbox.end(std::string("the device library has no ") + missing);
    return false;
  }
  allow_green_contexts_in_this_thread();
  partition.load(start.symbol);
  resources.load(start.symbol);
  guarded.load(start.symbol);
  compute.load(start.symbol);
  for (const CallRow& row : call_rows()) {
    void* const function = start.symbol(row.name);
    void* const wrapper = guarded.wrapper(row.name);
    functions_.push_back({function && wrapper ? wrapper : function, wrapper ? nullptr : row.name});
  }
  if (api.cuThreadExchangeStreamCaptureMode) {
    // The client checks what its threads may do during a stream capture. The worker's own calls must not
    // invalidate a capture.
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    api.cuThreadExchangeStreamCaptureMode(&mode);
  }
  moves.begin();
  checkpoint.begin();
  while (true) {
    const auto header = inbox.next();
    if (!header) {
      if (header.error().code == ErrorCode::malformed) outbox.end(header.error().message);
      return header.error().code == ErrorCode::closed;
    }
    if (header->sequence != last_sequence_ + 1) {
      outbox.end("command " + std::to_string(header->sequence) + " received after " +
                 std::to_string(last_sequence_));
      return false;
    }
    last_sequence_ = header->sequence;
    current_command.count_received(last_sequence_);
    quota::count(counters.calls);
    if (!receive(*header)) return false;
    if (header->id == static_cast<uint16_t>(wire::Command::goodbye)) return true;
    if (!settle() || !make_room()) return false;
  }
}

bool Session::receive(const wire::CommandHeader& header) {
  if (!settle()) return false;
  current_command.begin(header.sequence, header.id, header.context);
  Command command{header};
  const bool ordered = gates.any() || !backlog.empty();
  // The data of a copy is received directly into its destination, unless the copy may have to be kept.
  const bool in_pieces = header.id == static_cast<uint16_t>(wire::Command::copy_to_device) && !ordered;
  if (!in_pieces) {
    const auto body = inbox.body(header.length);
    if (!body) {
      if (body.error().code == ErrorCode::closed)
        outbox.end("the connection closed in the middle of a command");
      return false;
    }
    command.body = wire::Reader(*body);
  }
  if (!checkpoint.before_command(header.id) || !moves.before_command(header.id)) return false;
  if (!postponed_unloads.empty()) unload_postponed();
  bool alive = true;
  if (!ordered)
    alive = finish(command, execute(command));
  else if (!keep(command, &alive))
    alive = replay(command);
  if (!alive) return false;
  compute.end_pieces_if_asked();
  back_pressure.update();
  current_command.end();
  moves.after_command();
  return true;
}

bool Session::keep(Command& command, bool* alive) {
  *alive = true;
  const CommandOrder order = order_of(*this, command);
  const char* const waits_for = backlog.must_wait(order);
  if (!waits_for) return false;
  if (order.rule == CommandOrder::Rule::query) {
    *alive = finish(command, CUDA_ERROR_NOT_READY);
    return true;
  }
  if (command.header.id == static_cast<uint16_t>(wire::Command::bulk_to_device))
    commands::announce_bulk_to_device(*this, command, order);
  if (command.header.id == static_cast<uint16_t>(wire::Command::free_memory))
    memory.expect_late(command.header.sequence);
  wire::Reader body = command.body;
  const auto bytes = body.get_bytes(body.remaining());
  std::optional<Backlog::Clock::time_point> answer_by;
  if (command.wants_reply() && returns_early(command.header.id))
    answer_by = Backlog::Clock::now() + kLongestToAccept;
  backlog.keep({command.header, {bytes.begin(), bytes.end()}, order, answer_by, waits_for});
  // A gate that opened since must_wait() did not interrupt the executor, because nothing was waiting for it.
  *alive = settle();
  return true;
}

// Executes a command whose body has been received completely.
bool Session::replay(Command& command) {
  if (command.header.id != static_cast<uint16_t>(wire::Command::copy_to_device))
    return finish(command, execute(command));
  inbox.replay(command.body);
  const Outcome outcome = execute(command);
  inbox.end_replay();
  return finish(command, outcome);
}

bool Session::run_backlog() {
  // The next part of a graph may wait for its turn on the GPU; marking a command as running keeps signs of
  // life going.
  std::optional<CurrentCommand::Inner> inner;
  if (current_command.sequence() == 0)
    inner.emplace(current_command, std::max<uint64_t>(last_sequence_, 1), uint16_t{0}, uint64_t{0});
  const bool alive =
      !gates.settle() || backlog.run([this](Backlog::KeptCommand& kept) { return execute_kept(kept); });
  back_pressure.update();
  return alive;
}

bool Session::execute_kept(Backlog::KeptCommand& kept) {
  const CurrentCommand::Inner inner(current_command, kept.header.sequence, kept.header.id,
                                    kept.header.context);
  Command command{kept.header};
  command.body = wire::Reader(kept.body);
  const bool alive = replay(command);
  compute.end_pieces_if_asked();
  return alive;
}

bool Session::make_room() {
  const auto too_much = [this] { return backlog.bytes() > start.usage.most_queued(kMostKept); };
  if (!too_much()) return true;
  const Waiting waiting("the client to complete host functions or copies, because the backlog is full");
  current_command.begin(std::max<uint64_t>(last_sequence_, 1), 0, 0);
  // Stop waiting if a stream waits for a command that has not been received yet.
  while (!outbox.over() && too_much() && !gates.any_by_number()) {
    gates.wait(kCheckClientEvery);
    if (!settle()) return false;
  }
  current_command.end();
  if (gates.any_by_number() && backlog.bytes() > back_pressure.limit()) {
    outbox.end("too many commands queued behind a host function or another server: " +
               std::to_string(backlog.bytes() >> 20) + " MiB");
  }
  return !outbox.over();
}

bool Session::empty_backlog(ContextState& context, std::chrono::steady_clock::time_point deadline) {
  while (gates.any_in(context) || backlog.any_in(context)) {
    graphs.give_up_launches(context);
    gates.open_numbered(context);
    if (!settle()) return false;
    if (!gates.any_in(context) && !backlog.any_in(context)) break;
    if (outbox.over() || std::chrono::steady_clock::now() >= deadline) break;
    gates.wait(kCheckClientEvery);
  }
  for (const Backlog::KeptCommand& kept : backlog.remove(context)) {
    if (const auto copy = copies.take_announced(kept.header.sequence)) {
      copy->cancel();
      copies.remove(kept.header.sequence);
    }
    if (kept.header.id == static_cast<uint16_t>(wire::Command::free_memory))
      memory.retire(kept.header.sequence);
    if (commands::has_host_functions(kept.header.id)) {
      commands::report_not_called(*this, kept.header.sequence, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    }
    if ((kept.header.flags & wire::kWantsReply) != 0)
      outbox.send(wire::MessageKind::reply, CUDA_ERROR_CONTEXT_IS_DESTROYED, kept.header.sequence);
  }
  return true;
}

bool Session::when_done(StreamState& stream, const char* purpose, std::function<void(CUresult)> then) {
  const auto pool = stream.context->events;
  const CUevent event = pool->take();
  // Returns the event to its pool even if the session ends before a thread waits for it.
  std::shared_ptr<void> lent(event, [pool](void* lent) {
    if (lent) pool->give(static_cast<CUevent>(lent));
  });
  if (!event || api.cuEventRecord(event, stream.stream) != CUDA_SUCCESS) return false;
  return waits.submit(stream.context->object, {purpose, stream.handle},
                      [this, lent, context = stream.context->object, then = std::move(then)]() mutable {
                        make_current(api, context);
                        const CUresult result = api.cuEventSynchronize(static_cast<CUevent>(lent.get()));
                        lent.reset();
                        then(result);
                        make_current(api, nullptr);
                      });
}

void Session::forget_code(uint64_t handle) {
  images.forget(handle);
  memory_charges.forget_image(handle);
}

void Session::unload_postponed() {
  if (graphs.launching() || !backlog.empty()) return;
  ContextState* const before = contexts.current();
  postponed_unloads.run_all([this](CUcontext context) { make_current(api, context); },
                            [this](uint64_t handle) { forget_code(handle); });
  if (before) make_current(api, before->object);
}

// State of a postponed reply; shared with the function that answer_later() returns, which outlives the
// command.
struct Session::Postponed {
  uint64_t sequence = 0;
  bool wants_reply = false;
  CUresult deferred = CUDA_SUCCESS;  // error of an earlier command
  wire::Buffer body;
};

std::function<void(CUresult)> Session::answer_later() {
  postponed_ = std::make_shared<Postponed>();
  return [this, postponed = postponed_](CUresult result) {
    if (!postponed->wants_reply) return defer(result);
    if (result != CUDA_SUCCESS) return defer(postponed->deferred), answer(postponed->sequence, result);
    answer(postponed->sequence, postponed->deferred, std::as_bytes(std::span(postponed->body)));
  };
}

Outcome Session::execute(Command& command) {
  const auto outer = std::exchange(postponed_, nullptr);
  Outcome outcome = execute_now(command);
  if (const auto postponed = std::exchange(postponed_, outer);
      postponed && outcome.next == Outcome::Next::reply) {
    postponed->sequence = command.header.sequence;
    postponed->wants_reply = command.wants_reply();
    postponed->deferred = postponed->wants_reply ? take_deferred() : CUDA_SUCCESS;
    postponed->body = reply_body;
    return Outcome::parked();
  }
  return outcome;
}

Outcome Session::execute_now(Command& command) {
  reply_body.clear();
  if (reply_body.capacity() > kKeptReplyBytes) reply_body.shrink_to_fit();
  const uint16_t id = command.header.id;
  if (id < wire::kFirstCommand) return execute_row(command);
  if (id >= wire::kFirstCommand + std::size(kHandlers)) return Outcome::malformed("unknown command");
  return kHandlers[id - wire::kFirstCommand](*this, command);
}

Outcome Session::execute_row(Command& command) {
  const auto index = find_row(command.header.id);
  // A client that was built with newer headers may know more rows.
  if (!index) return CUDA_ERROR_NOT_SUPPORTED;
  const CallRow& row = call_rows()[*index];
  if (!enter(command) && row.needs_context) return CUDA_ERROR_INVALID_CONTEXT;
  wire::Writer writer(reply_body);
  const RowFunction& function = functions_[*index];
  const InDriver in(function.driver_name);
  const auto result = row.execute(function.address, command.body, writer, table, memory);
  if (!result) return Outcome::malformed(row.name);
  if (table.broken()) return Outcome::malformed("an invalid new handle");
  return *result;
}

bool Session::finish(const Command& command, const Outcome& outcome) {
  current_command.count_executed();
  switch (outcome.next) {
    case Outcome::Next::lost: return false;
    case Outcome::Next::malformed:
      outbox.end("malformed command " + std::to_string(command.header.sequence) + " (id " +
                 std::to_string(command.header.id) + "): " + outcome.why);
      return false;
    case Outcome::Next::parked: return !outbox.over();
    case Outcome::Next::reply: break;
  }
  if (outcome.result != CUDA_SUCCESS && commands::has_host_functions(command.header.id)) {
    commands::report_not_called(*this, command.header.sequence, outcome.result);
  }
  if (!command.wants_reply()) {
    defer(outcome.result);
    return !outbox.over();
  }
  const CUresult result = outcome.result == CUDA_SUCCESS ? take_deferred() : outcome.result;
  memory.collect();
  return outbox.send(wire::MessageKind::reply, result, command.header.sequence, reply_body);
}

std::optional<std::chrono::microseconds> Session::before_sleep() {
  auto longest = compute.before_sleep();
  const auto accepted = [this](const wire::CommandHeader& header) {
    const bool is_update = header.id == static_cast<uint16_t>(wire::Command::update_graph);
    const wire::GraphResult updated{CU_GRAPH_EXEC_UPDATE_SUCCESS, wire::kNoGraphNode};
    outbox.send(wire::MessageKind::reply, take_deferred(), header.sequence,
                is_update ? std::as_bytes(std::span(&updated, 1)) : std::span<const std::byte>());
  };
  if (const auto next = backlog.answer_overdue(accepted)) {
    const auto look = std::chrono::ceil<std::chrono::microseconds>(*next);
    longest = longest ? std::min(*longest, look) : look;
  }
  if (current_command.sequence() == 0) {  // not in the middle of a command
    // Marking a command as running keeps signs of life going while memory is moved or the session is locked.
    current_command.begin(std::max<uint64_t>(last_sequence_, 1), 0, 0);
    const Waiting waiting("memory being moved between GPU and host");
    if (!settle()) outbox.close();
    for (const auto look : {moves.before_sleep(), checkpoint.before_sleep()}) {
      if (look) longest = longest ? std::min(*longest, *look) : *look;
    }
    current_command.end();
  }
  if (!memory.pending()) {
    next_sleep_ = kShortestSleep;
    return longest;
  }
  memory.collect();
  next_sleep_ = std::min(next_sleep_ * 2, kLongestSleep);
  return longest ? std::min(*longest, next_sleep_) : next_sleep_;
}

void Session::answer(uint64_t sequence, CUresult result, std::span<const std::byte> body) {
  publish();
  memory.collect();
  outbox.send(wire::MessageKind::reply, result, sequence, body);
}

void Session::publish() {
  if (output_possible.load(std::memory_order_relaxed)) capture.flush();
  small_copies.flush();
}

bool Session::is_idle(StreamState& stream) {
  // Uses an event instead of a query, because a stream may also have to wait for others (as the legacy stream
  // does).
  EventPool& pool = *stream.context->events;
  const CUevent event = pool.take();
  if (!event) return false;
  const bool idle =
      api.cuEventRecord(event, stream.stream) == CUDA_SUCCESS && api.cuEventQuery(event) == CUDA_SUCCESS;
  pool.give(event);
  return idle;
}

void Session::fetch_output(StreamState& stream) {
  // The stream is idle, so this returns at once; it makes the driver print the output of device code.
  if (output_possible.load(std::memory_order_relaxed)) api.cuStreamSynchronize(stream.stream);
}

std::shared_ptr<Peer> Session::peer(const wire::PeerTarget& target) {
  const PeerName name{target.address, target.session_id, target.port, target.rdma};
  const auto known = peers_.find(name);
  if (known != peers_.end() && !known->second->broken()) return known->second;
  if (known != peers_.end()) peers_.erase(known);
  if (peers_.size() >= kMaxPeers) return nullptr;
  return peers_[name] = std::make_shared<Peer>(target.rdma != 0, peer_requests, start.dead_peer_timeout,
                                               start.rdma, start.bandwidth);
}

ContextState* Session::enter(const Command& command) {
  ContextState* const context = contexts.find(command.header.context);
  return contexts.enter(context) == CUDA_SUCCESS ? context : nullptr;
}

void Session::before_stream_destroyed(StreamState& stream) {
  graphs.give_up_launches(stream);
  gates.drop(stream);
  backlog.forget(stream);
  compute.before_stream_destroyed(stream);
  staging.close_slab(stream);
  if (!stream.used) return;
  ContextState& context = *stream.context;
  // Most of the oldest events have passed, so the list stays short even without frees.
  std::erase_if(context.destroyed_stream_events, [&](CUevent event) {
    if (api.cuEventQuery(event) == CUDA_ERROR_NOT_READY) return false;
    context.events->give(event);
    return true;
  });
  const CUevent event = context.events->take();
  if (event && api.cuEventRecord(event, stream.stream) == CUDA_SUCCESS) {
    context.destroyed_stream_events.push_back(event);
    return;
  }
  if (event) context.events->give(event);
  api.cuStreamSynchronize(stream.stream);
}

bool Session::leave(ContextState& context) {
  scrubber.finish_all();  // zeroing may be queued behind any work on the device
  const Waiting waiting("copies and waits in a context that is being destroyed");
  const auto deadline = std::chrono::steady_clock::now() + kLongestQuiesce;
  if (!empty_backlog(context, deadline)) return false;
  contexts.enter(&context);
  compute.leave(context);
  if (!waits.drain(context.object, deadline) || !copies.drain(context.object, deadline)) return false;
  api.cuCtxSynchronize();
  postponed_unloads.run_those_of(context.object, [this](uint64_t handle) { forget_code(handle); });
  publish();
  small_copies.drop_context(context);
  for (const CUevent event : context.destroyed_stream_events) context.events->give(event);
  context.destroyed_stream_events.clear();
  if (context.barrier) context.events->give(std::exchange(context.barrier, nullptr));
  scrubber.leave(context);
  staging.drop_context(context, false);
  shared_memory.drop_context(context);
  memory.drop_context(context, false);
  exported_handles.withdraw_events(context);
  graphs.drop(context);
  linkers.drop(context);
  arrays.drop_objects(context);
  table.drop_context(context);
  compute.drop(context);
  context.timed_events->clear();
  context.events->clear();
  return true;
}

CUresult Session::destroy(CUcontext object, bool primary, GreenContext green) {
  if (green) {
    set_primary_of(object, nullptr);
    partition.destroy(green);
    return CUDA_SUCCESS;
  }
  if (primary || !api.cuCtxDestroy_v2) return CUDA_SUCCESS;
  return api.cuCtxDestroy_v2(object);
}

void Session::tear_down() {
  checkpoint.end();
  moves.end();
  compute.stop();
  links.close();
  remote.close();
  peer_requests.stop();
  for (auto& [name, peer] : peers_) peer->stop();
  for (auto& [handle, context] : contexts.all()) {  // ends waits for data that will not come any more
    contexts.enter(context.get());
    copies.cancel(context->object);
  }
  backlog.clear();
  gates.clear();
  links.stop();
  remote.stop();
  waits.stop();
  for (auto& [handle, context] : contexts.all()) {
    contexts.enter(context.get());
    api.cuCtxSynchronize();
    scrubber.leave(*context);
    staging.drop_context(*context, false);
    shared_memory.drop_context(*context);
    small_copies.drop_context(*context);
    linkers.drop(*context);
    arrays.drop_objects(*context);
  }
  graphs.clear();
  table.destroy_all();
  virtual_memory.drop_all();
  memory.drop_all();
  checkpoint_image.drop();
  for (auto& [handle, context] : contexts.all()) {
    contexts.enter(context.get());
    for (const CUevent event : context->destroyed_stream_events) context->events->give(event);
    compute.drop(*context);
    context->timed_events->clear();
    context->events->clear();
    contexts.enter(nullptr);
    destroy(context->object, context->primary, context->green);
    if (!context->primary) continue;
    for (; context->retained != 0; --context->retained) api.cuDevicePrimaryCtxRelease_v2(context->device);
  }
  contexts.enter(nullptr);
  memory.release_range();
  memory.release_avoided();
}

}  // namespace gpupool::worker
