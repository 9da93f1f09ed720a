// A session for checkpoint tests: the test acts as poold and orders state changes. Runs on the test's thread;
// a wrong or missing answer fails the test.
#pragma once
#include <initializer_list>

#include "tests/server/worker/pooled_session.h"
#include "tests/support/catch.h"

namespace gpupool::worker::test {

struct CheckpointedSession : PooledSession {
  void order(wire::CheckpointAction action, uint64_t most = UINT64_MAX) {
    server::ControlHeader header{.kind = server::ControlKind::change_state};
    header.memory_most = most;
    header.state_question = ++question;
    header.state_action = action;
    say(header);
  }
  void stop_locking() {
    server::ControlHeader header{.kind = server::ControlKind::stop_locking};
    header.state_question = question;
    say(header);
  }
  int answer() {
    while (true) {
      const server::ControlHeader said = hear();
      if (said.kind == server::ControlKind::turn) continue;
      if (said.kind == server::ControlKind::memory_needed) {  // memory is not available
        server::ControlHeader header{.kind = server::ControlKind::room_patience};
        header.memory_question = said.memory_question;
        say(header);
        continue;
      }
      REQUIRE(said.kind == server::ControlKind::state_changed);
      REQUIRE(said.state_question == question);
      return said.state_result;
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
