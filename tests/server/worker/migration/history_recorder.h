// What the tests of the history have in common: handles, and a history that is given commands as the executor
// gives them. Not thread-safe; fails the test.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "protocol/calls/handles.h"
#include "protocol/calls/parameter.h"
#include "protocol/wire/commands.h"
#include "protocol/wire/copies.h"
#include "protocol/wire/graphs.h"
#include "protocol/wire/images.h"
#include "protocol/wire/writer.h"
#include "server/worker/handlers/call_rows.h"
#include "server/worker/migration/history.h"
#include "server/worker/migration/history_row_rules.h"
#include "server/worker/migration/history_rules.h"
#include "tests/support/catch.h"

namespace gpupool::worker {

using cuda::Kind;
using Id = wire::Command;

inline constexpr std::pair<uint16_t, const char*> kCommands[] = {
#define COMMAND(id, name) {id, #name},
#include "protocol/wire/commands.def"
#undef COMMAND
};

constexpr uint64_t handle(Kind kind, uint32_t index) {
  return cuda::make_handle(kind, 1, index);
}
constexpr uint64_t kContext = handle(Kind::context, 1), kModule = handle(Kind::module, 2),
                   kFunction = handle(Kind::function, 3), kStream = handle(Kind::stream, 4),
                   kEvent = handle(Kind::event, 5), kGraph = handle(Kind::graph, 6),
                   kExec = handle(Kind::graph_exec, 7), kBody = handle(Kind::graph, 8),
                   kMemory = handle(Kind::memory, 9);

inline uint16_t row(std::string_view name) {
  for (const CallRow& one : call_rows()) {
    if (one.name == name) return one.id;
  }
  FAIL("no row " << name);
  return 0;
}

// A history that is given commands as the executor gives them.
struct Recorder {
  Recorder() {
    history.turn_on();
    command(Id::retain_primary_context, wire::PrimaryContext{kContext, 0, 0}, 0);
  }
  template <class... T>
  void note(uint16_t id, uint64_t context, const T&... values) {
    wire::Buffer body;
    wire::Writer writer(body);
    (writer.put(values), ...);
    REQUIRE(changes_history(id));
    const wire::CommandHeader header{.id = id, .context = context, .sequence = ++sequence};
    history.note(header, body, reply, effect_of(header, body, reply, false));
  }
  template <class Body, class... More>
  void command(Id id, const Body& body, uint64_t context = kContext, const More&... more) {
    note(static_cast<uint16_t>(id), context, body, more...);
  }
  template <class... T>
  void call(std::string_view name, const T&... values) {
    note(row(name), kContext, values...);
  }
  void load() { command(Id::load_module, wire::LoadImage{kModule, 0}); }
  void get_function() {
    command(Id::get_function, wire::GetFunction{kFunction, kModule}, kContext, uint32_t{1}, 'f');
  }
  // A graph of one kernel node and one event node.
  void make_graph(uint64_t graph, uint64_t function, uint64_t event) {
    wire::Launch launch{};
    launch.function = function;
    const wire::GraphNode kernel{wire::GraphNodeKind::kernel, 0, sizeof launch, 0, kContext};
    const wire::GraphNode record{wire::GraphNodeKind::event_record, 1, sizeof(wire::GraphEvent), 0, kContext};
    command(Id::graph_nodes, wire::GraphNodes{graph, 2, 0}, kContext, kernel, launch, record, uint32_t{0},
            wire::GraphEvent{event});
  }
  // The commands in the history, as their numbers.
  std::vector<uint64_t> kept() const {
    std::vector<uint64_t> numbers;
    history.for_each([&](const History::Entry& entry) { numbers.push_back(entry.header.sequence); });
    return numbers;
  }
  using Numbers = std::vector<uint64_t>;

  History history;
  wire::Buffer reply;  // to the next commands
  uint64_t sequence = 0;
};
using Numbers = Recorder::Numbers;

}  // namespace gpupool::worker
