#include "server/worker/executor.h"

#include <array>
#include <cstdlib>
#include <cstring>

#include "server/worker/calls/commands.h"
#include "server/worker/rows.h"

namespace gpupool::worker {

thread_local Executor* t_executor = nullptr;

namespace {

using Handler = Outcome (*)(Executor&, Command&);

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
static_assert(without_gaps(), "commands.def is appended to, one id after the other");

constexpr size_t kMaxPeers = 64;  // of one session
constexpr size_t kKeptReplyBytes = 1u << 20;
constexpr std::chrono::microseconds kShortestSleep{500};   // with frees on their way
constexpr std::chrono::microseconds kLongestSleep{50'000};
constexpr std::chrono::seconds kLongestQuiesce{10};        // for waits in a context that is being destroyed

// Without poold, or for measurements of what it costs, GPU time is neither measured nor limited.
Usage measured(const SessionStart& start) {
  const char* const accounting = std::getenv("GPUPOOL_ACCOUNTING");
  const bool off = start.control == nullptr || (accounting != nullptr && std::strcmp(accounting, "off") == 0);
  return off ? Usage{} : start.usage;
}

}  // namespace

const char* command_name(uint16_t id) {
  if (id >= wire::kFirstCommand) return id - wire::kFirstCommand < static_cast<int>(std::size(kCommandNames)) ? kCommandNames[id - wire::kFirstCommand] : "?";
  const auto row = find_row(id);
  return row ? call_rows()[*row].name : "none";
}

Executor::Executor(SessionStart& start)
    : start(start),
      counters(start.usage.counters()),
      ledger(start.usage.account, start.usage.page, start.usage.slot),
      outbox(*start.connection, counters, ledger),
      capture(outbox),
      contexts(api, at_work),
      scrubber(api, contexts),
      table(api, contexts, counters, start.visible),
      compute(api, measured(start), waits, at_work, [this] { (void)this->start.control->send({.kind = server::ControlKind::turn}); }),
      remote(start.connection->direct_memory(), outbox, start.bandwidth),
      staging(api, remote.memory(), start.usage),
      shared_memory(api, waits),
      bulk(api, outbox, staging, waits, capture, output_possible),
      links(copies, outbox, start.compression, start.welcome_bulk),
      offers(api, start.control, start.server_id, start.session_number),
      checkpoint_image(ledger, offers, outbox),
      memory(api, contexts, outbox, ledger, scrubber, remote.memory()),
      moves(*this),
      checkpoint(*this),
      virtual_memory(api, memory, scrubber),
      arrays(api, contexts, memory, scrubber, waits),
      footprints(api, contexts, memory),
      callbacks([this](uint64_t id, const void* context) {
        // No driver call is allowed on the device's callback thread, and finished copies must be sent first.
        const bool told = waits.submit(context, [this, id, context] {
          make_current(api, static_cast<CUcontext>(const_cast<void*>(context)));
          publish();
          outbox.send(wire::MessageKind::host_callback, 0, 0, std::as_bytes(std::span(&id, 1)));
          make_current(api, nullptr);
        });
        if (!told) callbacks.done(id);
      }, [this](ComputeLane& lane, bool begins, bool only) { begins ? compute.goes_away(lane) : compute.comes_back(lane, only); }),
      graphs(*this),
      uploads(start.usage),
      cached_images(start.control, start.image_nonce, start.largest_image),
      images(api),
      linkers(api),
      events(api),
      inbox(*start.connection, counters.bytes_from_client, at_work, [this] { return before_sleep(); }) {
  table.on_stream_departing([this](StreamState& stream) { departing(stream); });
  table.on_code_gone([this](uint64_t handle) {
    memory.forget_variables(handle);
    if (!postponed_unloads.keep_charge_of(handle)) forget_code(handle);
  });
  table.release_memory_by([this](CUmemGenericAllocationHandle handle) { virtual_memory.release(handle); });
  table.destroy_array_by([this](void* array) { arrays.drop(array); });
  memory.on_release([this](CUmemGenericAllocationHandle handle) { return offers.withdraw(handle); });
  memory.take_range(start.range_base, start.range_size);
  if (!start.direct_memory) memory.stage_always();
}

Executor::~Executor() {
  if (t_executor == this) t_executor = nullptr;
}

bool Executor::run() {
  t_executor = this;
  forget_current();
  if (const char* const missing = api.load(start.symbol)) {
    outbox.end(std::string("the device library has no ") + missing);
    return false;
  }
  keep_green_contexts();
  partition.load(start.symbol);
  resources.load(start.symbol);
  guarded.load(start.symbol);
  compute.load(start.symbol);
  for (const CallRow& row : call_rows()) {
    void* const function = start.symbol(row.name);
    void* const wrapper = guarded.wrapper(row.name);
    functions_.push_back(function && wrapper ? wrapper : function);
  }
  if (api.cuThreadExchangeStreamCaptureMode) {
    // What the client's threads may do while one of them captures is checked in the client; the worker's own calls
    // must not break a capture.
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
      outbox.end("command " + std::to_string(header->sequence) + " came after " + std::to_string(last_sequence_));
      return false;
    }
    last_sequence_ = header->sequence;
    quota::count(counters.calls);
    at_work.begin(last_sequence_, header->id);
    Command command{*header};
    if (header->id != static_cast<uint16_t>(wire::Command::copy_to_device)) {
      const auto body = inbox.body(header->length);
      if (!body) {
        if (body.error().code == ErrorCode::closed) outbox.end("the connection ended within a command");
        return false;
      }
      command.body = wire::Reader(*body);
    }
    if (!checkpoint.before_command(header->id) || !moves.before_command(header->id)) return false;
    if (!finish(command, execute(command))) return false;
    compute.tidy();
    at_work.end();
    moves.after_command();
    if (header->id == static_cast<uint16_t>(wire::Command::goodbye)) return true;
  }
}

void Executor::forget_code(uint64_t handle) {
  images.forget(handle);
  footprints.forget_image(handle);
}

void Executor::unload_postponed() {
  if (callbacks.pending() || holds.any()) return;
  ContextState* const before = contexts.current();
  postponed_unloads.run_all([this](CUcontext context) { make_current(api, context); }, [this](uint64_t handle) { forget_code(handle); });
  if (before) make_current(api, before->object);
}

Outcome Executor::execute(Command& command) {
  if (!postponed_unloads.empty()) unload_postponed();
  reply_body.clear();
  if (reply_body.capacity() > kKeptReplyBytes) reply_body.shrink_to_fit();
  const uint16_t id = command.header.id;
  if (id < wire::kFirstCommand) return execute_row(command);
  if (id >= wire::kFirstCommand + std::size(kHandlers)) return Outcome::malformed("unknown command");
  return kHandlers[id - wire::kFirstCommand](*this, command);
}

Outcome Executor::execute_row(Command& command) {
  const auto index = find_row(command.header.id);
  // A client built with newer headers than this worker may know more rows.
  if (!index) return CUDA_ERROR_NOT_SUPPORTED;
  const CallRow& row = call_rows()[*index];
  if (!enter(command) && row.needs_context) return CUDA_ERROR_INVALID_CONTEXT;
  wire::Writer writer(reply_body);
  const auto result = row.execute(functions_[*index], command.body, writer, table);
  if (!result) return Outcome::malformed(row.name);
  if (table.broken()) return Outcome::malformed("a handle that cannot be");
  return *result;
}

bool Executor::finish(const Command& command, const Outcome& outcome) {
  switch (outcome.next) {
    case Outcome::Next::lost:
      return false;
    case Outcome::Next::malformed:
      outbox.end("malformed command " + std::to_string(command.header.sequence) + " (id " +
                 std::to_string(command.header.id) + "): " + outcome.why);
      return false;
    case Outcome::Next::parked:
      return !outbox.over();
    case Outcome::Next::reply:
      break;
  }
  if (!command.wants_reply()) {
    defer(outcome.result);
    return !outbox.over();
  }
  const CUresult result = outcome.result == CUDA_SUCCESS ? take_deferred() : outcome.result;
  memory.collect();
  return outbox.send(wire::MessageKind::reply, result, command.header.sequence, reply_body);
}

std::optional<std::chrono::microseconds> Executor::before_sleep() {
  auto longest = compute.before_sleep();
  if (at_work.sequence() == 0) {  // not in the middle of a command
    // Moving memory takes time, in which the client hears of this worker; so does being locked.
    at_work.begin(std::max<uint64_t>(last_sequence_, 1), 0);
    const AtWork::Waiting waiting(at_work, "its memory to be moved");
    for (const auto look : {moves.before_sleep(), checkpoint.before_sleep()}) {
      if (look) longest = longest ? std::min(*longest, *look) : *look;
    }
    at_work.end();
  }
  if (!memory.pending()) {
    next_sleep_ = kShortestSleep;
    return longest;
  }
  memory.collect();
  next_sleep_ = std::min(next_sleep_ * 2, kLongestSleep);
  return longest ? std::min(*longest, next_sleep_) : next_sleep_;
}

void Executor::answer(uint64_t sequence, CUresult result, std::span<const std::byte> body) {
  publish();
  memory.collect();
  outbox.send(wire::MessageKind::reply, result, sequence, body);
}

void Executor::publish() {
  if (output_possible.load(std::memory_order_relaxed)) capture.flush();
  bulk.flush();
}

bool Executor::is_idle(StreamState& stream) {
  // An event, not a query: a stream may also have to wait for others (the default stream does, and they for it).
  EventPool& pool = *stream.context->events;
  const CUevent event = pool.take();
  if (!event) return false;
  const bool idle = api.cuEventRecord(event, stream.stream) == CUDA_SUCCESS && api.cuEventQuery(event) == CUDA_SUCCESS;
  pool.give(event);
  return idle;
}

void Executor::fetch_output(StreamState& stream) {
  // Idle, so this returns at once; it is what makes the driver print.
  if (output_possible.load(std::memory_order_relaxed)) api.cuStreamSynchronize(stream.stream);
}

std::shared_ptr<Peer> Executor::peer(const std::string& address, const std::string& session_id, const std::string& token) {
  const auto endpoint = transport::Endpoint::parse(address);
  if (!endpoint || (endpoint->scheme != "tcp" && endpoint->scheme != "rdma") || !start.peers.contains(endpoint->host)) return nullptr;
  const std::string key = endpoint->text() + " " + session_id;
  const auto known = peers_.find(key);
  if (known != peers_.end() && !known->second->broken()) return known->second;
  if (known != peers_.end()) peers_.erase(known);
  if (peers_.size() >= kMaxPeers) return nullptr;
  return peers_[key] = std::make_shared<Peer>(*endpoint, session_id, token, start.dead_peer_timeout, start.rdma, start.bandwidth);
}

ContextState* Executor::enter(const Command& command) {
  ContextState* const context = contexts.find(command.header.context);
  return contexts.enter(context) == CUDA_SUCCESS ? context : nullptr;
}

void Executor::departing(StreamState& stream) {
  compute.departing(stream);
  staging.close_slab(stream);
  if (!stream.used) return;
  ContextState& context = *stream.context;
  // The oldest ones have passed in most cases: the list stays short without a free.
  std::erase_if(context.departed, [&](CUevent event) {
    if (api.cuEventQuery(event) == CUDA_ERROR_NOT_READY) return false;
    context.events->give(event);
    return true;
  });
  const CUevent event = context.events->take();
  if (event && api.cuEventRecord(event, stream.stream) == CUDA_SUCCESS) {
    context.departed.push_back(event);
    return;
  }
  if (event) context.events->give(event);
  api.cuStreamSynchronize(stream.stream);
}

bool Executor::leave(ContextState& context) {
  contexts.enter(&context);
  compute.leave(context);
  callbacks.release(context.object);
  holds.release(context);
  const AtWork::Waiting waiting(at_work, "its copies and waits to end");
  const auto deadline = std::chrono::steady_clock::now() + kLongestQuiesce;
  if (!waits.drain(context.object, deadline) || !copies.drain(context.object, deadline)) return false;
  api.cuCtxSynchronize();
  postponed_unloads.run_those_of(context.object, [this](uint64_t handle) { forget_code(handle); });
  publish();
  bulk.drop_context(context);
  for (const CUevent event : context.departed) context.events->give(event);
  context.departed.clear();
  if (context.barrier) context.events->give(std::exchange(context.barrier, nullptr));
  scrubber.leave(context);
  staging.drop_context(context, false);
  shared_memory.drop_context(context);
  memory.drop_context(context, false);
  offers.withdraw_events(context);
  graphs.drop(context);
  linkers.drop(context);
  arrays.drop_objects(context);
  table.drop_context(context);
  context.signals->clear();
  compute.drop(context);
  context.timed_events->clear();
  context.events->clear();
  return true;
}

CUresult Executor::destroy(CUcontext object, bool primary, GreenContext green) {
  if (green) {
    set_primary_of(object, nullptr);
    partition.destroy(green);
    return CUDA_SUCCESS;
  }
  if (primary || !api.cuCtxDestroy_v2) return CUDA_SUCCESS;
  return api.cuCtxDestroy_v2(object);
}

void Executor::tear_down() {
  checkpoint.end();
  moves.end();
  compute.stop();
  callbacks.end_all();
  links.close();
  remote.close();
  for (auto& [name, peer] : peers_) peer->stop();
  for (auto& [handle, context] : contexts.all()) {  // no stream waits for data that cannot come any more
    contexts.enter(context.get());
    holds.release(*context);
    copies.cancel(context->object);
  }
  links.stop();
  remote.stop();
  waits.stop();
  for (auto& [handle, context] : contexts.all()) {
    contexts.enter(context.get());
    api.cuCtxSynchronize();
    scrubber.leave(*context);
    staging.drop_context(*context, false);
    shared_memory.drop_context(*context);
    bulk.drop_context(*context);
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
    for (const CUevent event : context->departed) context->events->give(event);
    context->signals->clear();
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
