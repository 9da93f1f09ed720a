#include "server/worker/session.h"

#include <vector>

#include "protocol/wire/frame.h"

namespace gpupool::worker {

int run_session(SessionStart start) {
  transport::Connection& connection = *start.connection;
  std::vector<std::byte> body;
  while (true) {
    wire::CommandHeader command;
    const auto received = transport::receive_exact(
        connection, std::as_writable_bytes(std::span(&command, 1)), std::nullopt);
    if (!received) return received.error().code == ErrorCode::closed ? 0 : 1;
    if (command.length > wire::kMaxBodyBytes) return 1;
    body.resize(command.length);
    if (!transport::receive_exact(connection, body, std::nullopt)) return 1;
    if (command.id == static_cast<uint16_t>(wire::Command::goodbye)) return 0;
    if (command.id != static_cast<uint16_t>(wire::Command::ping)) return 1;
    wire::MessageHeader pong{.kind = wire::MessageKind::pong, .sequence = command.sequence};
    const iovec answer{&pong, sizeof pong};
    if (!transport::send_all(connection, {&answer, 1}, std::nullopt)) return 1;
  }
}

}  // namespace gpupool::worker
