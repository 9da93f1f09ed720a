#include "server/worker/session/executor.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "protocol/wire/graphs.h"
#include "server/worker/handlers/call_rows.h"
#include "server/worker/handlers/commands.h"
#include "server/worker/handlers/host_function.h"
#include "server/worker/migration/history_row_rules.h"
#include "server/worker/migration/history_rules.h"
#include "server/worker/session/session.h"

namespace gpupool::worker {
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

constexpr size_t kKeptReplyBytes = 1u << 20;
constexpr std::chrono::microseconds kLongestSleep{50'000};
// A client in synchronous mode gets a kept command's error if the gate opens within this time.
constexpr std::chrono::milliseconds kLongestToAccept{20};
constexpr uint64_t kMostInBacklog = 64u << 20;  // bytes of the backlog while the executor may stop receiving
// Interval of checks for the end of the connection.
constexpr std::chrono::milliseconds kCheckClientEvery{100};

}  // namespace

const char* command_name(uint16_t id) {
  if (id >= wire::kFirstCommand)
    return id - wire::kFirstCommand < static_cast<int>(std::size(kCommandNames))
               ? kCommandNames[id - wire::kFirstCommand]
               : "?";
  const auto row = find_row(id);
  return row ? call_rows()[*row].name : "none";
}

// Looks up the functions of the device library: those that the worker calls itself, and for each row its
// wrapper or its function. Returns false if one that the worker needs is missing.
bool Executor::load() {
  if (const char* const missing = session_.api.load(session_.start.symbol)) {
    session_.outbox.end(std::string("the device library has no ") + missing);
    return false;
  }
  allow_green_contexts_in_this_thread();
  session_.partition.load(session_.start.symbol);
  session_.resources.load(session_.start.symbol);
  session_.guarded.load(session_.start.symbol);
  session_.compute.load(session_.start.symbol);
  session_.timeline.start(session_.start.symbol);
  for (const CallRow& row : call_rows()) {
    void* const function = session_.start.symbol(row.name);
    void* const wrapper = session_.guarded.wrapper(row.name);
    functions_.push_back({function && wrapper ? wrapper : function, wrapper ? nullptr : row.name});
  }
  if (session_.api.cuThreadExchangeStreamCaptureMode) {
    // The client checks what its threads may do during a stream capture. The worker's own calls must not
    // invalidate a capture.
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    session_.api.cuThreadExchangeStreamCaptureMode(&mode);
  }
  return true;
}

bool Executor::run() {
  t_session = &session_;
  session_.current_command.begin_session();
  invalidate_current_context();
  if (!load()) return false;
  session_.moves.begin();
  session_.checkpoint.begin();
  session_.migration_requests.begin();
  while (true) {
    const auto header = session_.inbox.next();
    if (!header) {
      if (header.error().code == ErrorCode::malformed) session_.outbox.end(header.error().message);
      return header.error().code == ErrorCode::closed;
    }
    if (header->sequence != last_sequence_ + 1) {
      session_.outbox.end("command " + std::to_string(header->sequence) + " received after " +
                          std::to_string(last_sequence_));
      return false;
    }
    last_sequence_ = header->sequence;
    session_.current_command.count_received(last_sequence_);
    quota::count(session_.counters.calls);
    if (!receive(*header)) return false;
    if (header->id == static_cast<uint16_t>(wire::Command::goodbye)) return true;
    if (session_.migration_requests.has_left()) return true;
    if (!settle() || !make_room()) return false;
  }
}

bool Executor::settle() {
  session_.scrubber.settle();
  return !session_.gates.has_opened() || run_backlog();
}

bool Executor::receive(const wire::CommandHeader& header) {
  if (!settle()) return false;
  // A client that has left must not be told anything on the old connection.
  if (header.id != static_cast<uint16_t>(wire::Command::end_migration)) session_.outbox.speak();
  session_.current_command.begin(header.sequence, header.id, header.context);
  Command command{header};
  const bool ordered = session_.gates.any() || !session_.backlog.empty();
  // The data of a copy is received directly into its destination, unless the copy may have to be kept.
  const bool in_pieces = header.id == static_cast<uint16_t>(wire::Command::copy_to_device) && !ordered;
  if (!in_pieces) {
    const auto body = session_.inbox.body(header.length);
    if (!body) {
      if (body.error().code == ErrorCode::closed)
        session_.outbox.end("the connection closed in the middle of a command");
      return false;
    }
    command.body = wire::Reader(*body);
  }
  if (!session_.checkpoint.before_command(header.id) || !session_.moves.before_command(header.id))
    return false;
  if (!session_.code.postponed_unloads.empty()) unload_postponed();
  bool alive = true;
  if (!ordered)
    alive = finish(command, execute(command));
  else if (!keep(command, &alive))
    alive = replay(command);
  if (!alive) return false;
  if (session_.outbox.acknowledgement_due()) session_.outbox.send(wire::MessageKind::pong, 0, 0);
  session_.compute.end_pieces_if_asked();
  session_.back_pressure.update();
  session_.current_command.end();
  session_.moves.after_command();
  return true;
}

bool Executor::keep(Command& command, bool* alive) {
  *alive = true;
  const CommandOrder order = order_of(session_.contexts, session_.table, session_.graphs, command);
  const char* const waits_for = session_.backlog.must_wait(order);
  if (!waits_for) return false;
  // A migration waits for data that is on its way, and not for the client.
  const bool migrates = command.header.id == static_cast<uint16_t>(wire::Command::migrate_session);
  if (order.rule == CommandOrder::Rule::query || (migrates && session_.gates.any_by_number())) {
    *alive = finish(command, CUDA_ERROR_NOT_READY);
    return true;
  }
  if (command.header.id == static_cast<uint16_t>(wire::Command::bulk_to_device))
    commands::announce_bulk_to_device(session_.copies, command, order);
  if (command.header.id == static_cast<uint16_t>(wire::Command::free_memory))
    session_.memory.expect_late(command.header.sequence);
  wire::Reader body = command.body;
  const auto bytes = body.get_bytes(body.remaining());
  std::optional<Backlog::Clock::time_point> answer_by;
  if (command.wants_reply() && returns_early(command.header.id))
    answer_by = Backlog::Clock::now() + kLongestToAccept;
  session_.backlog.keep({command.header, {bytes.begin(), bytes.end()}, order, answer_by, waits_for});
  // A gate that opened since must_wait() did not interrupt the executor, because nothing was waiting for it.
  *alive = settle();
  return true;
}

// Executes a command whose body has been received completely.
bool Executor::replay(Command& command) {
  if (command.header.id != static_cast<uint16_t>(wire::Command::copy_to_device))
    return finish(command, execute(command));
  session_.inbox.replay(command.body);
  const Outcome outcome = execute(command);
  session_.inbox.end_replay();
  return finish(command, outcome);
}

bool Executor::run_backlog() {
  // The next part of a graph may wait for its turn on the GPU; marking a command as running keeps signs of
  // life going.
  std::optional<CurrentCommand::Inner> inner;
  if (session_.current_command.sequence() == 0)
    inner.emplace(session_.current_command, std::max<uint64_t>(last_sequence_, 1), uint16_t{0}, uint64_t{0});
  const bool alive = !session_.gates.settle() ||
                     session_.backlog.run([this](Backlog::KeptCommand& kept) { return execute_kept(kept); });
  session_.back_pressure.update();
  return alive;
}

bool Executor::execute_kept(Backlog::KeptCommand& kept) {
  const CurrentCommand::Inner inner(session_.current_command, kept.header.sequence, kept.header.id,
                                    kept.header.context);
  Command command{kept.header};
  command.body = wire::Reader(kept.body);
  const bool alive = replay(command);
  session_.compute.end_pieces_if_asked();
  return alive;
}

bool Executor::make_room() {
  const auto too_much = [this] {
    return session_.backlog.bytes() > session_.start.usage.most_queued(kMostInBacklog);
  };
  if (!too_much()) return true;
  const Waiting waiting("the client to complete host functions or copies, because the backlog is full");
  session_.current_command.begin(std::max<uint64_t>(last_sequence_, 1), 0, 0);
  // Stop waiting if a stream waits for a command that has not been received yet.
  while (!session_.outbox.over() && too_much() && !session_.gates.any_by_number()) {
    session_.gates.wait(kCheckClientEvery);
    if (!settle()) return false;
  }
  session_.current_command.end();
  if (session_.gates.any_by_number() && session_.backlog.bytes() > session_.back_pressure.limit()) {
    session_.outbox.end("too many commands queued behind a host function or another server: " +
                        std::to_string(session_.backlog.bytes() >> 20) + " MiB");
  }
  return !session_.outbox.over();
}

void Executor::unload_postponed() {
  if (session_.graphs.launching() || !session_.backlog.empty()) return;
  ContextState* const before = session_.contexts.current();
  session_.code.postponed_unloads.run_all([this](CUcontext context) { make_current(session_.api, context); },
                                          [this](uint64_t handle) { session_.forget_code(handle); });
  if (before) make_current(session_.api, before->object);
}

// State of a postponed reply; shared with the function that answer_later() returns, which outlives the
// command.
struct Executor::Postponed {
  uint64_t sequence = 0;
  bool wants_reply = false;
  CUresult deferred = CUDA_SUCCESS;  // error of an earlier command
  wire::Buffer body;
};

std::function<void(CUresult)> Executor::answer_later() {
  postponed_ = std::make_shared<Postponed>();
  return [this, postponed = postponed_](CUresult result) {
    if (!postponed->wants_reply) return session_.replies.defer(result);
    if (result != CUDA_SUCCESS)
      return session_.replies.defer(postponed->deferred),
             session_.replies.answer(postponed->sequence, result);
    session_.replies.answer(postponed->sequence, postponed->deferred,
                            std::as_bytes(std::span(postponed->body)));
  };
}

std::optional<CUresult> Executor::execute_adopted(const wire::CommandHeader& header,
                                                  std::span<const std::byte> body) {
  const CurrentCommand::Inner inner(session_.current_command, std::max<uint64_t>(last_sequence_, 1),
                                    header.id, header.context);
  Command command{header, wire::Reader(body)};
  const bool in_pieces = header.id == static_cast<uint16_t>(wire::Command::copy_to_device);
  if (in_pieces) session_.inbox.replay(command.body);
  const Outcome outcome = execute(command);
  if (in_pieces) session_.inbox.end_replay();
  if (!settle()) return CUDA_ERROR_UNKNOWN;
  // No copy of a session waits for its client, and the commands after this one are not ordered behind gates.
  if (session_.gates.any()) return CUDA_ERROR_NOT_SUPPORTED;
  switch (outcome.next) {
    case Outcome::Next::reply: return outcome.result;
    case Outcome::Next::parked:
      session_.scrubber.finish_all();  // the next command may use the memory
      return CUDA_SUCCESS;             // its error is deferred
    default: return std::nullopt;
  }
}

// Keeps what the command means for a migration.
void Executor::note(const Command& command, wire::Reader body) {
  const wire::CommandHeader& header = command.header;
  if (session_.departure.begun()) {
    wire::Reader copy = body;
    session_.departure.executed(header, copy.get_bytes(copy.remaining()));
  }
  if (const auto event = recorded_event(header.id, body)) return session_.history.note_record(*event);
  if (!changes_history(header.id)) return;
  const auto bytes = body.get_bytes(body.remaining());
  wire::Reader reader(bytes);
  const bool context_remains = session_.contexts.find(reader.get<uint64_t>()) != nullptr;
  const std::span<const std::byte> reply = session_.replies.body;
  session_.history.note(header, bytes, reply, effect_of(header, bytes, reply, context_remains));
}

Outcome Executor::execute(Command& command) {
  const auto outer = std::exchange(postponed_, nullptr);
  const wire::Reader body = command.body;
  Outcome outcome = execute_now(command);
  if (session_.history.on() && outcome.next == Outcome::Next::reply && outcome.result == CUDA_SUCCESS)
    note(command, body);
  if (const auto postponed = std::exchange(postponed_, outer);
      postponed && outcome.next == Outcome::Next::reply) {
    postponed->sequence = command.header.sequence;
    postponed->wants_reply = command.wants_reply();
    postponed->deferred = postponed->wants_reply ? session_.replies.take_deferred() : CUDA_SUCCESS;
    postponed->body = session_.replies.body;
    return Outcome::parked();
  }
  return outcome;
}

Outcome Executor::execute_now(Command& command) {
  session_.replies.body.clear();
  if (session_.replies.body.capacity() > kKeptReplyBytes) session_.replies.body.shrink_to_fit();
  const uint16_t id = command.header.id;
  if (id < wire::kFirstCommand) return execute_row(command);
  if (id >= wire::kFirstCommand + std::size(kHandlers)) return Outcome::malformed("unknown command");
  return kHandlers[id - wire::kFirstCommand](session_, command);
}

Outcome Executor::execute_row(Command& command) {
  const auto index = find_row(command.header.id);
  // A client that was built with newer headers may know more rows.
  if (!index) return CUDA_ERROR_NOT_SUPPORTED;
  const CallRow& row = call_rows()[*index];
  if (!session_.contexts.enter_named(command.header.context) && row.needs_context)
    return CUDA_ERROR_INVALID_CONTEXT;
  wire::Writer writer(session_.replies.body);
  const RowFunction& function = functions_[*index];
  const InDriver in(function.driver_name);
  const auto result = row.execute(function.address, command.body, writer, session_.table, session_.memory);
  if (!result) return Outcome::malformed(row.name);
  if (session_.table.broken()) return Outcome::malformed("an invalid new handle");
  return *result;
}

bool Executor::finish(const Command& command, const Outcome& outcome) {
  session_.current_command.count_executed();
  switch (outcome.next) {
    case Outcome::Next::lost: return false;
    case Outcome::Next::malformed:
      session_.outbox.end("malformed command " + std::to_string(command.header.sequence) + " (id " +
                          std::to_string(command.header.id) + "): " + outcome.why);
      return false;
    case Outcome::Next::parked: return !session_.outbox.over();
    case Outcome::Next::reply: break;
  }
  if (outcome.result != CUDA_SUCCESS && commands::has_host_functions(command.header.id)) {
    commands::report_not_called(session_.outbox, command.header.sequence, outcome.result);
  }
  if (!command.wants_reply()) {
    session_.replies.defer(outcome.result);
    return !session_.outbox.over();
  }
  const CUresult result = outcome.result == CUDA_SUCCESS ? session_.replies.take_deferred() : outcome.result;
  session_.memory.collect();
  return session_.outbox.send(wire::MessageKind::reply, result, command.header.sequence,
                              session_.replies.body);
}

std::optional<std::chrono::microseconds> Executor::before_sleep() {
  auto longest = session_.compute.before_sleep();
  const auto accepted = [this](const wire::CommandHeader& header) {
    const bool is_update = header.id == static_cast<uint16_t>(wire::Command::update_graph);
    const wire::GraphResult updated{CU_GRAPH_EXEC_UPDATE_SUCCESS, wire::kNoGraphNode};
    session_.outbox.send(wire::MessageKind::reply, session_.replies.take_deferred(), header.sequence,
                         is_update ? std::as_bytes(std::span(&updated, 1)) : std::span<const std::byte>());
  };
  if (const auto next = session_.backlog.answer_overdue(accepted)) {
    const auto look = std::chrono::ceil<std::chrono::microseconds>(*next);
    longest = longest ? std::min(*longest, look) : look;
  }
  if (session_.current_command.sequence() == 0) {  // not in the middle of a command
    // Marking a command as running keeps signs of life going while memory is moved or the session is locked.
    session_.current_command.begin(std::max<uint64_t>(last_sequence_, 1), 0, 0);
    const Waiting waiting("memory being moved between GPU and host");
    if (!settle()) session_.outbox.close();
    for (const auto look : {session_.moves.before_sleep(), session_.checkpoint.before_sleep()}) {
      if (look) longest = longest ? std::min(*longest, *look) : *look;
    }
    session_.current_command.end();
  }
  if (!session_.memory.pending()) {
    next_sleep_ = kShortestSleep;
    return longest;
  }
  session_.memory.collect();
  next_sleep_ = std::min(next_sleep_ * 2, kLongestSleep);
  return longest ? std::min(*longest, next_sleep_) : next_sleep_;
}

}  // namespace gpupool::worker
