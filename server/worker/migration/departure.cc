#include "server/worker/migration/departure.h"

#include <time.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "common/log/log.h"
#include "protocol/calls/row_ids.h"
#include "protocol/wire/commands.h"
#include "protocol/wire/writer.h"
#include "server/worker/handlers/call_rows.h"
#include "server/worker/migration/array_contents.h"
#include "server/worker/migration/hidden_memory.h"
#include "server/worker/migration/history_rules.h"
#include "server/worker/session/session.h"

namespace gpupool::worker {
namespace {

using Id = wire::Command;
using transport::Clock;

constexpr timespec kPollInterval{0, 500'000};  // the device does not signal that a stream is done
// For the last part, while the program waits. A file gets all of the session in that time.
constexpr std::chrono::seconds kLastPartTime{120}, kFileTime{3600};

bool makes_context(uint16_t id) {
  return id == static_cast<uint16_t>(Id::avoid_addresses) ||
         id == static_cast<uint16_t>(Id::retain_primary_context) ||
         id == static_cast<uint16_t>(Id::create_context);
}

bool is_set_access(uint16_t id) {
  static const uint16_t kSetAccess = [] {
    const auto& rows = call_rows();
    const auto found = std::ranges::find_if(
        rows, [](const CallRow& row) { return row.name == std::string_view("cuMemSetAccess"); });
    return found == rows.end() ? uint16_t{0} : found->id;
  }();
  return id == kSetAccess && id != 0;
}

}  // namespace

Departure::Departure(Session& session) : session_(session), rounds_(session.api) {}

bool Departure::must_wait() {
  return session_.contexts.clearing() || (last_ && !last_->over);
}

void Departure::begin(const Connect& connect, bool to_file, Settled settled) {
  stop();
  attempt_ = std::make_shared<Attempt>(session_.counters.migrated_bytes, to_file);
  beginning_ = true;
  add_addresses();
  // Contexts first: mapping memory needs them, and other commands may need mapped memory. Textures on memory
  // last: the history has the mapping that is there now, perhaps behind the texture. The rounds begin when
  // all of it has been added.
  add_history(Stage::contexts);
  add_new_mappings();
  add_history(Stage::others);
  add_history(Stage::on_memory);
  beginning_ = false;
  session_.history.observe([this](const History::Entry& entry) { add_entry(entry); });
  if (!status_) return settled(status_);
  last_ = attempt_;
  try {
    thread_ = std::thread([this, connect, attempt = attempt_, settled] {
      run_rounds(*attempt, connect);
      if (!attempt->result) attempt->target.close();
      settled(attempt->result);
      attempt->over = true;
    });
  } catch (const std::system_error&) {
    last_ = nullptr;
    check(Error{ErrorCode::unavailable, "no thread can be started"});
    settled(status_);
  }
}

void Departure::run_rounds(Attempt& attempt, const Connect& connect) {
  if (session_.api.cuThreadExchangeStreamCaptureMode) {  // as in Executor::load()
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    session_.api.cuThreadExchangeStreamCaptureMode(&mode);
  }
  auto connection = connect();
  if (!connection && attempt.to_file) {
    attempt.result = connection.error();
    return;
  }
  if (!connection) {
    attempt.result =
        Error{connection.error().code, "the other server cannot be reached from this one (" +
                                           connection.error().message + "); see --peers of poold on both"};
    return;
  }
  attempt.target.take(std::move(*connection));
  if (!attempt.to_file) attempt.result = rounds_.run(attempt.target, attempt.stop);
}

void Departure::end() {
  session_.history.observe(nullptr);
  if (!attempt_) return;
  attempt_->stop = true;
  attempt_->target.close();
  attempt_.reset();
  rounds_.clear();
  variables_.clear();
  mapped_.clear();
  status_ = {};
}

void Departure::stop() {
  end();
  if (thread_.joinable()) thread_.join();
  last_.reset();
}

Result<void> Departure::finish(uint64_t sequence) {
  const auto start = Clock::now();
  attempt_->stop = true;
  if (thread_.joinable()) thread_.join();
  if (!status_) return status_;  // perhaps there was no thread, so there is no connection
  if (!attempt_->result) return attempt_->result;
  attempt_->target.set_deadline(start + (attempt_->to_file ? kFileTime : kLastPartTime));
  uint64_t bytes = 0;
  if (auto sent = send_rest(&bytes); !sent) return sent;
  if (auto sent = attempt_->target.finish(wire::EndMigration{0, sequence, 1, 0}); !sent) return sent;
  log::info("session_sent", {{"session", session_.start.session_number},
                             {"bytes", attempt_->target.sent()},
                             {"last_bytes", bytes},
                             {"last_milliseconds",
                              std::chrono::round<std::chrono::milliseconds>(Clock::now() - start).count()}});
  return {};
}

Result<void> Departure::send_rest(uint64_t* bytes) {
  if (session_.contexts.await_clears() != CUDA_SUCCESS)
    return Error{ErrorCode::unavailable, "new memory cannot be zeroed"};
  add_new_mappings();
  if (!status_) return status_;
  if (auto sent = attempt_->target.send_added(); !sent) return sent;
  if (auto sent = rounds_.finish(attempt_->target, attempt_->to_file, bytes); !sent) return sent;
  if (auto sent = send_arrays(session_, attempt_->target, bytes); !sent) return sent;
  // Memory that was mapped in an earlier round is not zero at the target.
  if (auto sent = send_hidden_memory(session_, attempt_->target, attempt_->to_file, bytes); !sent)
    return sent;
  if (auto sent = send_variables(); !sent) return sent;
  return send_records();
}

void Departure::executed(const wire::CommandHeader& header, std::span<const std::byte> body) {
  wire::Reader reader(body);
  if (header.id == static_cast<uint16_t>(Id::map_memory)) {
    // If the memory is still being zeroed, it is not there yet; finish() adds it.
    if (const auto mapped = session_.memory.find_mapping(reader.get<wire::MapMemory>().address))
      add_mapping(*mapped);
  } else if (header.id == static_cast<uint16_t>(Id::free_memory)) {
    const auto memory = reader.get<wire::FreeMemory>();
    free(memory.address, memory.size, header.context);
  }
}

// Only commands of the running program are limited, not those that made the session's present objects.
void Departure::add(OutgoingCommand command) {
  attempt_->target.add(std::move(command), !beginning_);
}

void Departure::add(wire::Command id, uint64_t context, std::span<const std::byte> body) {
  add({{.id = static_cast<uint16_t>(id), .context = context}, {body.begin(), body.end()}});
}

// The program knows addresses of the range, so it must be the same.
void Departure::add_addresses() {
  const wire::AddressRange range{session_.memory.base(), session_.memory.size()};
  const wire::MoveAddresses wanted{range.base, range.size};
  const auto body = std::as_bytes(std::span(&wanted, 1)), expected = std::as_bytes(std::span(&range, 1));
  add({{.id = static_cast<uint16_t>(Id::move_addresses)},
       {body.begin(), body.end()},
       {expected.begin(), expected.end()},
       true});
}

Departure::Stage Departure::stage_of(const History::Entry& entry) {
  if (makes_context(entry.header.id)) return Stage::contexts;
  return entry.effect.names_memory ? Stage::on_memory : Stage::others;
}

void Departure::add_history(Stage stage) {
  session_.history.for_each([&](const History::Entry& entry) {
    if (stage_of(entry) != stage) return;
    // Other objects may need a module that the program has unloaded; its variables cannot be found any more.
    if (entry.image && is_loaded(entry)) add_places_of_variables(entry);
    add_command(entry);
  });
}

// True if what the load command has made exists.
bool Departure::is_loaded(const History::Entry& load) const {
  return !load.effect.makes.empty() && session_.history.exists(load.effect.makes.front());
}

void Departure::add_command(const History::Entry& entry) {
  add({entry.header, entry.body, entry.reply, entry.effect.checks_reply, entry.image});
}

// A command that has just been executed, and is not in the history yet.
void Departure::add_entry(const History::Entry& entry) {
  if (entry.image && !entry.effect.makes.empty()) add_places_of_variables(entry);
  add_command(entry);
  if (!is_set_access(entry.header.id)) return;
  wire::Reader reader(entry.body);
  const auto address = reader.get<uint64_t>(), size = reader.get<uint64_t>();
  session_.virtual_memory.for_each_mapping([&](uint64_t at, uint64_t bytes, int device) {
    if (at - address < size && !rounds_.contains(at, bytes)) add_to_rounds(at, bytes, device);
  });
}

// The program may know where the variables of this image are. Their places follow from that of one of them,
// in each context.
void Departure::add_places_of_variables(const History::Entry& load) {
  const uint64_t owner = load.effect.makes.front();
  std::erase_if(variables_, [owner](const auto& known) { return known.first.first == owner; });
  const ContextState* last = nullptr;
  check(for_each_variable(session_, load, variables_, [&](const Variable& variable) {
    if (std::exchange(last, variable.context) == variable.context) return;
    wire::Buffer body;
    wire::Writer writer(body);
    writer.put(wire::PlaceVariable{variable.address});
    writer.put_text(variable.name);
    add(Id::place_variable, variable.context->handle, body);
  }));
}

void Departure::add_mapping(const DeviceMemory::Mapped& mapped) {
  uint32_t peers = 0;  // the client's numbers of devices
  for (int device = 0; device < 32; ++device) {
    if ((mapped.peers >> device & 1) == 0) continue;
    const auto number = session_.start.visible.number_of(device);
    if (number && *number < 32) peers |= 1u << *number;
  }
  const wire::MapMemory map{mapped.address, mapped.size,
                            session_.start.visible.number_of(mapped.device).value_or(-1), peers};
  add(Id::map_memory, mapped.context ? mapped.context->handle : 0, std::as_bytes(std::span(&map, 1)));
  mapped_[mapped.address] = mapped.size;
  add_to_rounds(mapped.address, mapped.size, mapped.device);
}

// Memory that the target does not have yet, and memory that was away from the device for some time.
void Departure::add_new_mappings() {
  session_.memory.for_each_mapping([this](const DeviceMemory::Mapped& mapped) {
    if (!mapped_.contains(mapped.address)) return add_mapping(mapped);
    if (!rounds_.contains(mapped.address, mapped.size))
      add_to_rounds(mapped.address, mapped.size, mapped.device);
  });
  session_.virtual_memory.for_each_mapping([this](uint64_t address, uint64_t size, int device) {
    if (!rounds_.contains(address, size)) add_to_rounds(address, size, device);
  });
}

void Departure::add_to_rounds(uint64_t address, uint64_t size, int device) {
  // Memory that is not zero yet may not be read: it may hold another tenant's data. send_rest() adds it.
  if (session_.contexts.clearing()) return;
  const ContextState* const context = session_.contexts.find_on(device);
  if (!context) return check(Error{ErrorCode::invalid, "a GPU with memory has no context"});
  rounds_.add(
      {address, size, context->handle, context->object, session_.memory.is_cpu_accessible(address, size)});
}

void Departure::free(uint64_t address, uint64_t size, uint64_t context) {
  rounds_.forget(address, size);
  for (auto mapped = mapped_.lower_bound(address); mapped != mapped_.end() && mapped->first - address < size;
       mapped = mapped_.erase(mapped)) {
    const wire::FreeMemory memory{mapped->first, mapped->second, wire::kAllStreams};
    add(Id::free_memory, context, std::as_bytes(std::span(&memory, 1)));
  }
}

// Sends the variables in all present contexts: a library's code may have been loaded in more of them
// meanwhile.
Result<void> Departure::send_variables() {
  Result<void> status;
  session_.history.for_each([&](const History::Entry& load) {
    if (!load.image || !is_loaded(load)) return;
    auto visited = for_each_variable(session_, load, variables_, [&](const Variable& variable) {
      if (status) status = send_variable(load.effect.makes.front(), variable);
    });
    if (status && !visited) status = std::move(visited);
  });
  return status;
}

Result<void> Departure::send_variable(uint64_t owner, const Variable& variable) {
  const ContextState& context = *variable.context;
  std::vector<std::byte> bytes;
  for (uint64_t at = 0; at < variable.size; at += bytes.size()) {
    bytes.resize(std::min<uint64_t>(wire::kBulkChunkBytes, variable.size - at));
    const CUresult result =
        session_.scrubber.copy_out(bytes.data(), variable.address + at, bytes.size(), context.device);
    if (result != CUDA_SUCCESS)
      return Error{ErrorCode::unavailable, "reading variable " + variable.name + ": " + error_text(result)};
    wire::Buffer head;
    wire::Writer writer(head);
    writer.put(wire::FillVariable{owner, at, bytes.size()});
    writer.put_text(variable.name);
    if (auto sent = attempt_->target.send(Id::fill_variable, context.handle, head, bytes); !sent) return sent;
  }
  return {};
}

Result<void> Departure::send_records() {
  for (const uint64_t event : session_.history.recorded()) {
    wire::Buffer body;
    wire::Writer writer(body);
    writer.put(event);
    writer.put(uint64_t{0});  // the legacy stream of the event's context
    add({{.id = cuda::row_id::cuEventRecord, .context = session_.history.context_of(event)},
         {body.begin(), body.end()}});
  }
  return attempt_->target.send_added();
}

bool await_idle(Session& session, Clock::duration longest) {
  const auto has_waits = [&] {
    return !std::ranges::all_of(session.contexts.all(), [&](const auto& one) {
      return session.waits.drain(one.second->object, Clock::now());
    });
  };
  const Waiting waiting("running work to end, to migrate the session");
  for (const auto stop = Clock::now() + longest; session.moves.has_work() || has_waits();) {
    if (session.outbox.over() || Clock::now() > stop || !session.executor.settle()) return false;
    ::nanosleep(&kPollInterval, nullptr);
  }
  return !session.outbox.over();
}

namespace {

// The program has the address of a variable, and a device library other than softgpu gives it another one in
// another process.
bool has_fixed_variables(Session& session) {
  if (session.api.wish_variable) return false;
  bool found = false;
  session.history.for_each([&](const History::Entry& entry) {
    found |= entry.header.id == static_cast<uint16_t>(wire::Command::get_global);
  });
  return found;
}

}  // namespace

const char* migration_obstacle(Session& session) {
  if (!session.history.on())
    return "no history, because its client cannot migrate or poold does not allow it";
  if (const char* const obstacle = session.history.obstacle()) return obstacle;
  if (has_fixed_variables(session))
    return "the address of a variable, which the driver would place elsewhere";
  if (session.virtual_memory.has_multicasts()) return "a multicast object";
  if (session.virtual_memory.shares()) return "memory that is shared with other programs";
  return session.start.connection->direct_memory() ? "a connection over rdma" : nullptr;
}

const char* passing_obstacle(Session& session) {
  // The target gets images with the commands that load them.
  if (!session.code.uploads.empty()) return "an image that is being loaded";
  // Its end must be that of the same image. The program has a fetched one for good.
  return session.code.linkers.has_unfetched() ? "a linked image that is being fetched" : nullptr;
}

}  // namespace gpupool::worker
