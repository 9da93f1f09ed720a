#include "server/poold/admin/dump.h"

#include "common/text/printable.h"
#include "server/poold/admin/worker_dump.h"
#include "server/quota/turn_word.h"

namespace gpupool::server {
namespace {

const char* name_of(quota::TurnWord word) {
  return word.free() ? "free" : word.open() ? "open" : word.yield() ? "yield" : "closed";
}

const char* name_of(wire::ProcessState state) {
  return state == wire::ProcessState::locked         ? "locked"
         : state == wire::ProcessState::checkpointed ? "checkpointed"
                                                     : "running";
}

void add_turns(const quota::SessionPage& page, admin::SessionDump& dump) {
  for (uint32_t gpu = 0; gpu < quota::kMostGpus; ++gpu) {
    const bool waits = page.wants_turn[gpu].load() != 0;
    if (!waits && page.gpus[gpu].launches.load() == 0 && page.gpus[gpu].memory_peak.load() == 0) continue;
    const quota::TurnWord word{page.turns[gpu].load()};
    admin::GpuTurn& turn = *dump.add_turns();
    turn.set_gpu(gpu);
    turn.set_turn(name_of(word));
    turn.set_wanted(word.wanted());
    turn.set_waits(waits);
  }
}

}  // namespace

admin::SessionDump complete_dump(const SessionView& session, const Result<std::string>& said) {
  admin::SessionDump dump;
  dump.set_session(session.number);
  dump.set_worker_pid(session.worker);
  dump.set_tenant(printable(session.client.tenant));
  dump.set_program(printable(session.client.program));
  dump.set_host(printable(session.client.host));
  dump.set_pid(session.client.pid);
  dump.set_state(name_of(session.state));
  dump.set_locked_by(printable(session.locked_by));
  dump.set_state_change(session.state_change);
  add_turns(session.page, dump);
  auto worker = said ? read_worker_dump(*said) : said.error();
  if (worker)
    dump.mutable_worker()->Swap(&*worker);
  else
    dump.set_no_answer_because(worker.error().message);
  return dump;
}

}  // namespace gpupool::server
