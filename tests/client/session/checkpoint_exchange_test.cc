// Tests how a program decodes a server's answer about a process's sessions.
#include "client/session/checkpoint_exchange.h"

#include <string>

#include "protocol/wire/frame.h"
#include "tests/fuzz/played_connection.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

template <class T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

Result<wire::CheckpointAnswer> answer_to(const std::string& sent,
                                         std::vector<wire::ProcessSession>* sessions) {
  fuzz::PlayedConnection connection(std::as_bytes(std::span(sent)), true);
  return exchange_checkpoint(connection, {.pid = 1}, std::chrono::milliseconds(1000), sessions);
}

std::string frame(const std::string& body) {
  return bytes_of(wire::Preamble{.length = static_cast<uint32_t>(body.size())}) + body;
}

std::string one_session(wire::ProcessState state) {
  return frame(bytes_of(wire::CheckpointAnswer{0, 1}) + bytes_of(wire::ProcessSession{7, state, 0}));
}

}  // namespace

TEST_CASE("reads an answer about a process after keep-alives") {
  std::vector<wire::ProcessSession> sessions;
  const auto answer = answer_to(frame("") + frame("") + one_session(wire::ProcessState::failed), &sessions);
  REQUIRE(answer);
  REQUIRE(sessions.size() == 1);
  CHECK(sessions[0].session == 7);
}

TEST_CASE("refuses malformed answers about a process") {
  std::vector<wire::ProcessSession> sessions;
  CHECK(answer_to(one_session(wire::ProcessState{4}), &sessions).error().code == ErrorCode::malformed);
  CHECK(answer_to(frame(bytes_of(wire::CheckpointAnswer{0, 1025})), &sessions).error().code ==
        ErrorCode::malformed);
  CHECK(answer_to(frame(bytes_of(wire::CheckpointAnswer{0, 1})), &sessions).error().code ==
        ErrorCode::malformed);
  CHECK(answer_to(frame("abc"), &sessions).error().code == ErrorCode::malformed);
}
