// Fuzzes a server's answers to a program that asks about a process's sessions: keep-alives, and truncated,
// oversized or impossible answers. The input is the bytes that the server sends, for several questions.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "client/session/checkpoint_exchange.h"
#include "tests/fuzz/played_connection.h"

using namespace gpupool;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::PlayedConnection connection({reinterpret_cast<const std::byte*>(data), size}, true);
  while (true) {
    const size_t before = connection.rest().size();
    std::vector<wire::ProcessSession> sessions;
    const auto answer =
        client::exchange_checkpoint(connection, {.pid = 1}, std::chrono::milliseconds(1000), &sessions);
    if (!answer) {
      if (answer.error().message.empty()) std::abort();
      return 0;
    }
    if (sessions.size() != answer->sessions || sessions.size() > wire::kMostProcessSessions) std::abort();
    for (const auto& session : sessions) {
      if (session.state > wire::ProcessState::failed) std::abort();
    }
    if (before - connection.rest().size() <
        sizeof(wire::CheckpointAnswer) + sessions.size() * sizeof(wire::ProcessSession))
      std::abort();
  }
}
