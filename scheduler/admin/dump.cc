#include "scheduler/admin/dump.h"

#include <optional>

#include "scheduler/admin/describe.h"
#include "scheduler/admin/format.h"
#include "scheduler/admin/table.h"

namespace gpupool::admin {
namespace {

std::string handle_text(uint64_t handle) {
  return format("0x%llx", static_cast<unsigned long long>(handle));
}
std::string age_text(uint64_t milliseconds) {
  return format("%.1f s", static_cast<double>(milliseconds) * 1e-3);
}

template <class Message>
std::optional<uint64_t> stream_of(const Message& message) {
  return message.has_stream() ? std::optional(message.stream()) : std::nullopt;
}
std::string stream_text(std::optional<uint64_t> stream) {
  return !stream ? "-" : *stream == 0 ? "legacy" : handle_text(*stream);
}

std::string executor_text(const ExecutorDump& executor) {
  if (executor.command().empty()) return "idle";
  std::string text =
      executor.command() == "none" ? "between two commands" : "executing " + executor.command();
  text += " for " + age_text(executor.age_ms());
  if (executor.context() != 0) text += ", context " + handle_text(executor.context());
  if (executor.has_stream()) text += ", stream " + stream_text(executor.stream());
  if (!executor.driver_function().empty()) text += ", inside the driver: " + executor.driver_function();
  if (!executor.waits_for().empty()) text += ", waits for " + executor.waits_for();
  return text;
}

std::string turns_text(const SessionDump& dump) {
  std::string text;
  for (const GpuTurn& turn : dump.turns()) {
    text += "turn on GPU " + std::to_string(turn.gpu()) + ": " + turn.turn() +
            (turn.waits()              ? ", the session waits for it"
             : turn.turn() == "closed" ? ", no waiting work"
                                       : "") +
            (turn.wanted() ? ", other sessions wait" : "") + "\n";
  }
  return text;
}

std::string listed(uint64_t all, int shown) {
  return std::to_string(all) +
         (all > static_cast<uint64_t>(shown) ? ", the first " + std::to_string(shown) : "");
}

std::string section(const std::string& title, const Table& table, size_t width) {
  return table.empty() ? "" : "\n" + title + ":\n" + table.text(width);
}

std::string worker_lists(const WorkerDump& worker, size_t width) {
  Table gates({{"STREAM"}, {"CONTEXT", false, 0, 50}, {"WAITS FOR", false, 12}, {"SINCE", true}});
  for (const ClosedGate& gate : worker.gates()) {
    gates.add({stream_text(gate.stream()), handle_text(gate.context()),
               gate.reason() + (gate.opened() ? " (opened)" : ""), age_text(gate.age_ms())});
  }
  Table kept({{"COMMAND"}, {"STREAM"}, {"CONTEXT", false, 0, 50}, {"WAITS FOR", false, 12}});
  for (const KeptCommand& one : worker.kept())
    kept.add({one.command(), stream_text(stream_of(one)), handle_text(one.context()), one.waits_for()});
  Table copies({{"COPY"}, {"DONE", true}, {"OF", true}, {"SINCE", true}});
  for (const CopyUnderWay& copy : worker.copies()) {
    copies.add({copy.to_device() ? "to the device" : "from the device", bytes_text(copy.done_bytes()),
                bytes_text(copy.total_bytes()), age_text(copy.age_ms())});
  }
  Table waits(
      {{"FOR", false, 12}, {"STREAM"}, {"INSIDE", false, 12}, {"WAITS FOR", false, 12}, {"SINCE", true}});
  for (const ParkedWait& wait : worker.waits()) {
    waits.add({wait.purpose(), stream_text(stream_of(wait)), wait.driver_function(), wait.waits_for(),
               age_text(wait.age_ms())});
  }
  Table links({{"CONNECTION"}, {"WITH"}, {"RECEIVES", false, 12}, {"SENDS", false, 12}});
  for (const BulkConnection& link : worker.bulk_connections()) {
    links.add(
        {link.state(), link.from_peer() ? "another server" : "the client", link.receiver(), link.sender()});
  }
  return section("streams with closed gates: " + listed(worker.closed_gates(), worker.gates_size()), gates,
                 width) +
         section("backlog: " + listed(worker.backlog(), worker.kept_size()), kept, width) +
         section("copies under way: " + listed(worker.copies_under_way(), worker.copies_size()), copies,
                 width) +
         section("wait threads: " + listed(worker.waits_running(), worker.waits_size()), waits, width) +
         section("bulk connections", links, width);
}

std::string worker_text(const WorkerDump& worker, size_t width) {
  std::string text = "executor: " + executor_text(worker.executor()) + "\n";
  text += "commands: " + std::to_string(worker.received()) + " received, " +
          std::to_string(worker.executed()) + " executed, " + std::to_string(worker.backlog()) +
          " in the backlog (" + bytes_text(worker.backlog_bytes()) + ")\n";
  for (const GpuWork& work : worker.work()) {
    text += "work submitted to GPU " + std::to_string(work.gpu()) + ": " + std::to_string(work.pieces()) +
            " commands in " + std::to_string(work.streams()) + " streams\n";
  }
  text += "staging memory: " + bytes_text(worker.staging_used_bytes()) + " in use of " +
          bytes_text(worker.staging_bytes()) + "\n";
  text += "unsent: " + std::to_string(worker.bulk_pieces_queued()) + " chunks of large copies, " +
          std::to_string(worker.pieces_to_client()) + " chunks of small copies\n";
  if (worker.waits_queued() != 0)
    text += "waits without a thread: " + std::to_string(worker.waits_queued()) + "\n";
  text +=
      "deferred error: " + (worker.deferred_error() == 0 ? "none" : std::to_string(worker.deferred_error())) +
      "\n";
  std::string locks;
  for (const std::string& lock : worker.busy_locks()) locks += (locks.empty() ? "" : ", ") + lock;
  if (!locks.empty()) text += "locks in use: " + locks + "\n";
  return text + worker_lists(worker, width);
}

// Handles are written as text: 64-bit numbers lose bits in JSON readers that use double.
Json stream_json(std::optional<uint64_t> stream) {
  return stream ? Json(handle_text(*stream)) : Json(nullptr);
}

Json json_of(const GpuTurn& turn) {
  return {{"gpu", turn.gpu()}, {"turn", turn.turn()}, {"wanted", turn.wanted()}, {"waits", turn.waits()}};
}
Json json_of(const KeptCommand& kept) {
  return {{"command", kept.command()},
          {"context", handle_text(kept.context())},
          {"stream", stream_json(stream_of(kept))},
          {"waits_for", kept.waits_for()}};
}
Json json_of(const ClosedGate& gate) {
  return {{"context", handle_text(gate.context())},
          {"stream", handle_text(gate.stream())},
          {"reason", gate.reason()},
          {"age_ms", gate.age_ms()},
          {"opened", gate.opened()}};
}
Json json_of(const CopyUnderWay& copy) {
  return {{"to_device", copy.to_device()},
          {"done_bytes", copy.done_bytes()},
          {"total_bytes", copy.total_bytes()},
          {"age_ms", copy.age_ms()}};
}
Json json_of(const ParkedWait& wait) {
  return {{"purpose", wait.purpose()},
          {"stream", stream_json(stream_of(wait))},
          {"driver_function", wait.driver_function()},
          {"waits_for", wait.waits_for()},
          {"age_ms", wait.age_ms()}};
}
Json json_of(const BulkConnection& link) {
  return {{"state", link.state()},
          {"from_peer", link.from_peer()},
          {"receiver", link.receiver()},
          {"sender", link.sender()}};
}
Json json_of(const GpuWork& work) {
  return {{"gpu", work.gpu()}, {"streams", work.streams()}, {"pieces", work.pieces()}};
}

template <class Messages>
Json list_of(const Messages& messages) {
  Json list = Json::array();
  for (const auto& message : messages) list.push_back(json_of(message));
  return list;
}

Json json_of(const ExecutorDump& executor) {
  return {{"command", executor.command()},
          {"context", handle_text(executor.context())},
          {"stream", stream_json(stream_of(executor))},
          {"driver_function", executor.driver_function()},
          {"waits_for", executor.waits_for()},
          {"age_ms", executor.age_ms()}};
}

Json json_of(const WorkerDump& worker) {
  Json locks = Json::array();
  for (const std::string& lock : worker.busy_locks()) locks.push_back(lock);
  return {{"executor", json_of(worker.executor())},
          {"received", worker.received()},
          {"executed", worker.executed()},
          {"backlog", worker.backlog()},
          {"backlog_bytes", worker.backlog_bytes()},
          {"kept", list_of(worker.kept())},
          {"closed_gates", worker.closed_gates()},
          {"gates", list_of(worker.gates())},
          {"copies_under_way", worker.copies_under_way()},
          {"copies", list_of(worker.copies())},
          {"pieces_to_client", worker.pieces_to_client()},
          {"waits_running", worker.waits_running()},
          {"waits_queued", worker.waits_queued()},
          {"waits", list_of(worker.waits())},
          {"bulk_connections", list_of(worker.bulk_connections())},
          {"bulk_pieces_queued", worker.bulk_pieces_queued()},
          {"staging_bytes", worker.staging_bytes()},
          {"staging_used_bytes", worker.staging_used_bytes()},
          {"work", list_of(worker.work())},
          {"busy_locks", std::move(locks)},
          {"deferred_error", worker.deferred_error()}};
}

}  // namespace

std::string dump_text(const SessionDump& dump, size_t width) {
  std::string text = "session " + std::to_string(dump.session()) + " of tenant " + dump.tenant() + ": " +
                     dump.program() + ", process " + std::to_string(dump.pid()) + " on " + dump.host() +
                     "; worker process " + std::to_string(dump.worker_pid()) + "; " + dump.state() + "\n";
  if (!dump.locked_by().empty()) text += "locked (or lock requested) by " + dump.locked_by() + "\n";
  if (!dump.state_change().empty()) text += "requested: " + dump.state_change() + ", not completed yet\n";
  text += turns_text(dump);
  return text + (dump.has_worker() ? worker_text(dump.worker(), width)
                                   : "no answer: " + dump.no_answer_because() + "\n");
}

Json json_of(const SessionDump& dump) {
  return {{"session", dump.session()},
          {"worker_pid", dump.worker_pid()},
          {"tenant", dump.tenant()},
          {"program", dump.program()},
          {"host", dump.host()},
          {"pid", dump.pid()},
          {"state", dump.state()},
          {"locked_by", dump.locked_by()},
          {"state_change", dump.state_change()},
          {"turns", list_of(dump.turns())},
          {"no_answer_because", dump.no_answer_because()},
          {"worker", dump.has_worker() ? json_of(dump.worker()) : Json(nullptr)}};
}

}  // namespace gpupool::admin
