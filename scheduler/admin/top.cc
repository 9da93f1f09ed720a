#include "scheduler/admin/top.h"

#include "scheduler/admin/describe.h"
#include "scheduler/admin/format.h"
#include "scheduler/admin/table.h"
#include "scheduler/admin/to_json.h"

namespace gpupool::admin {
namespace {

uint64_t per_second(uint64_t count, uint64_t nanoseconds) {
  return nanoseconds == 0
             ? 0
             : static_cast<uint64_t>(static_cast<double>(count) * 1e9 / static_cast<double>(nanoseconds));
}

struct Used {
  uint64_t memory = 0, gpu = 0, throttled = 0;
};
Used used_by(const Session& session) {
  Used used;
  for (const SessionGpu& gpu : session.gpus()) {
    used.memory += gpu.memory_used_bytes();
    used.gpu += gpu.gpu_nanoseconds();
    used.throttled += gpu.throttled_nanoseconds();
  }
  return used;
}

uint64_t grown(uint64_t now, uint64_t before) {
  return now > before ? now - before : 0;
}

template <class Messages, class Same>
auto find(const Messages& messages, Same same) -> decltype(&messages[0]) {
  for (const auto& message : messages) {
    if (same(message)) return &message;
  }
  return nullptr;
}

std::string gpus_table(const Snapshot& now, const Snapshot* before, uint64_t elapsed, size_t width) {
  Table table({{"GPU", true},
               {"NAME", false, 8},
               {"BUSY", true},
               {"MEMORY USED", true},
               {"OF", true},
               {"SESSIONS", true}});
  for (const Gpu& gpu : now.gpus()) {
    const Gpu* const old =
        before ? find(before->gpus(), [&](const Gpu& other) { return other.index() == gpu.index(); })
               : nullptr;
    table.add({std::to_string(gpu.index()), gpu.name(),
               old ? percent(grown(gpu.gpu_nanoseconds(), old->gpu_nanoseconds()), elapsed) : "-",
               bytes_text(gpu.memory_used_bytes()), bytes_text(gpu.memory_total_bytes()),
               std::to_string(gpu.sessions())});
  }
  return table.text(width);
}

std::string sessions_table(const Snapshot& now, const Snapshot* before, uint64_t elapsed, size_t width) {
  if (now.sessions().empty()) return "no sessions\n";
  Table table({{"SESSION", true},
               {"TENANT", false, 8},
               {"PROGRAM", false, 8},
               {"HOST", false, 6, 30},
               {"MEMORY", true},
               {"GPU", true},
               {"THROTTLED", true, 0, 90},
               {"CALLS/s", true, 0, 60},
               {"IN/s", true, 0, 50},
               {"OUT/s", true, 0, 50},
               {"ERRORS", true, 0, 40},
               {"TIME", true, 0, 70}});
  for (const Session& session : now.sessions()) {
    const Session* const old =
        before ? find(before->sessions(),
                      [&](const Session& other) { return other.number() == session.number(); })
               : nullptr;
    const Used used = used_by(session);
    const Used was = old ? used_by(*old) : Used{};
    const auto rate = [&](uint64_t count, uint64_t count_before) {
      return per_second(grown(count, count_before), elapsed);
    };
    table.add({std::to_string(session.number()) + (session.ending() ? "!" : ""), session.tenant(),
               session.program(), session.host(), bytes_text(used.memory),
               old ? percent(grown(used.gpu, was.gpu), elapsed) : "-",
               old ? percent(grown(used.throttled, was.throttled), elapsed) : "-",
               old ? std::to_string(rate(session.calls(), old->calls())) : "-",
               old ? bytes_text(rate(session.bytes_from_client(), old->bytes_from_client())) : "-",
               old ? bytes_text(rate(session.bytes_to_client(), old->bytes_to_client())) : "-",
               std::to_string(session.errors()),
               duration_text(std::chrono::milliseconds(grown(static_cast<uint64_t>(now.taken_ms()),
                                                             static_cast<uint64_t>(session.started_ms()))))});
  }
  return table.text(width);
}

}  // namespace

std::string render_snapshot(const Snapshot& now, const Snapshot* before, size_t width) {
  const Poold& poold = now.poold();
  const uint64_t elapsed =
      before ? grown(static_cast<uint64_t>(now.taken_ms()), static_cast<uint64_t>(before->taken_ms())) *
                   1'000'000
             : 0;
  std::string first = "poold " + poold.version() + ", up " +
                      duration_text(std::chrono::milliseconds(now.taken_ms() - poold.started_ms())) + ", " +
                      (poold.ready() ? "ready" : "not ready: " + poold.not_ready_because()) + ", " +
                      std::to_string(poold.sessions()) + " of " + std::to_string(poold.max_sessions()) +
                      " sessions";
  if (width != 0) first = shortened(first, width);
  return first + "\n\n" + gpus_table(now, before, elapsed, width) + "\n" +
         sessions_table(now, before, elapsed, width);
}

void run_top(PooldClient& poold, const TopSignals& signals, const TopOptions& options) {
  run_live<Snapshot>({.program = "poold",
                      .open =
                          [&](grpc::ClientContext& context) {
                            WatchRequest request;
                            request.set_interval_ms(static_cast<uint32_t>(options.interval.count()));
                            return poold.stub().Watch(&context, request);
                          },
                      .check = [&](const grpc::Status& status) { poold.check(status); },
                      .render = render_snapshot,
                      .json_line = [](const Snapshot& snapshot) { return line_of(json_of(snapshot)); }},
                     signals, options);
}

}  // namespace gpupool::admin
