#include "client/session/checkpoint_exchange.h"

#include <algorithm>

#include "protocol/wire/frame.h"

namespace gpupool::client {
namespace {

using transport::Clock;

Result<void> receive(transport::Connection& connection, void* to, size_t bytes,
                     transport::Deadline deadline) {
  return transport::receive_exact(connection, {static_cast<std::byte*>(to), bytes}, deadline);
}

}  // namespace

Result<wire::CheckpointAnswer> exchange_checkpoint(transport::Connection& connection,
                                                   const wire::CheckpointQuestion& question,
                                                   std::chrono::milliseconds dead_peer_timeout,
                                                   std::vector<wire::ProcessSession>* sessions) {
  wire::Preamble preamble{.length = sizeof question};
  const iovec parts[] = {{&preamble, sizeof preamble},
                         {const_cast<wire::CheckpointQuestion*>(&question), sizeof question}};
  if (auto sent = transport::send_all(connection, parts, Clock::now() + dead_peer_timeout); !sent)
    return sent.error();
  do {  // skips keep-alive preambles
    if (auto got = receive(connection, &preamble, sizeof preamble, Clock::now() + dead_peer_timeout); !got)
      return got.error();
  } while (preamble.magic == wire::kMagic && preamble.length == 0);
  wire::CheckpointAnswer answer;
  if (preamble.magic != wire::kMagic || preamble.length < sizeof answer) {
    return Error{ErrorCode::malformed, "protocol error: malformed answer"};
  }
  const auto deadline = Clock::now() + dead_peer_timeout;
  if (auto got = receive(connection, &answer, sizeof answer, deadline); !got) return got.error();
  if (answer.sessions > wire::kMostProcessSessions ||
      preamble.length != sizeof answer + answer.sessions * sizeof(wire::ProcessSession)) {
    return Error{ErrorCode::malformed, "protocol error: malformed answer"};
  }
  sessions->resize(answer.sessions);
  if (answer.sessions != 0) {
    if (auto got =
            receive(connection, sessions->data(), answer.sessions * sizeof(wire::ProcessSession), deadline);
        !got)
      return got.error();
  }
  if (std::any_of(sessions->begin(), sessions->end(),
                  [](const auto& session) { return session.state > wire::ProcessState::failed; })) {
    return Error{ErrorCode::malformed, "protocol error: the answer has an unknown session state"};
  }
  return answer;
}

}  // namespace gpupool::client
