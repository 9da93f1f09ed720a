// A session for checkpoint tests: the test acts as poold and orders state changes. Runs on the test's thread;
// a wrong or missing answer fails the test.
#pragma once
#include <initializer_list>

#include "tests/server/worker/pooled_session.h"
#include "tests/support/catch.h"

namespace gpupool::worker::test {

struct CheckpointedSession : PooledSession {
  void order(wire::CheckpointAction action, uint64_t most = UINT64_MAX) {
    say<server::ControlKind::change_state>({.question = ++question, .host_bytes = most, .action = action});
  }
  void stop_locking() { say<server::ControlKind::stop_locking>({.question = question}); }
  int answer() {
    while (true) {
      const server::ControlMessage said = hear();
      if (said.kind == server::ControlKind::turn) continue;
      if (said.kind == server::ControlKind::memory_needed) {  // memory is not available
        const auto wanted = said.body<server::packet::MemoryNeeded>();
        say<server::ControlKind::room_patience>({.question = wanted.question});
        continue;
      }
      REQUIRE(said.kind == server::ControlKind::state_changed);
      const auto changed = said.body<server::packet::StateChanged>();
      REQUIRE(changed.question == question);
      return changed.result;
    }
  }
  int change(wire::CheckpointAction action, uint64_t most = UINT64_MAX) {
    order(action, most);
    return answer();
  }
  void change_all(std::initializer_list<wire::CheckpointAction> actions) {
    for (const wire::CheckpointAction action : actions) REQUIRE(change(action) == CUDA_SUCCESS);
  }

  uint64_t question = 0;
};

}  // namespace gpupool::worker::test
