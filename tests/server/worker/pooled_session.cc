#include "tests/server/worker/pooled_session.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/quota/turn_word.h"
#include "tests/support/catch.h"

namespace gpupool::worker::test {

using wire::Command;

PooledSession::PooledSession(testing::FakeDirectMemory* direct, bool staged) {
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  const timeval patience{10, 0};
  ::setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  control = std::make_unique<Control>(ends[1], nullptr);
  place = std::move(*accounts.take("t"));
  page = *quota::SharedPage<quota::SessionPage>::create("session");
  (*page)->turns[0] = quota::TurnWord::of({.state = quota::Arbiter::Turn::State::open}, 1).word;
  client.emplace(false, control.get(), 0, false, direct, staged,
                 Usage{page, *accounts.of("t"), place->slot()}, [](FakeDriver& fake) {
                   fake.zeroes_memory = false;  // memory that was not restored has other content
                 });
  client->retain();
  client->create_stream(0);
  client->create_stream(1);
  for (uint64_t i = 0; i < 4; ++i) {
    client->map(i * kPage, kPage);
    REQUIRE(client->result(client->copy_in(0, i * kPage, content(i), true)) == CUDA_SUCCESS);
  }
  REQUIRE(client->ask(Command::synchronize_context, {}) == CUDA_SUCCESS);
}

PooledSession::~PooledSession() {
  client.reset();
  control.reset();
  for (const int end : ends) ::close(end);
}

bool PooledSession::intact() {
  for (uint64_t i = 0; i < 4; ++i) {
    if (client->data(client->copy_out(stream_handle(0), i * kPage, kPage)) != content(i)) return false;
  }
  return true;
}

void PooledSession::leave_free(uint64_t bytes) {
  client->fake.locked([&] {
    others = FakeDriver::kMemory - client->fake.memory_used - bytes, client->fake.memory_used += others;
  });
}

void PooledSession::others_go() {
  client->fake.locked([&] { client->fake.memory_used -= std::exchange(others, 0); });
}

void PooledSession::sent(const Result<void>& result) {
  REQUIRE(result.ok());
}

bool PooledSession::silent(int milliseconds) {
  pollfd polled{ends[0], POLLIN, 0};
  return ::poll(&polled, 1, milliseconds) == 0;
}

server::ControlMessage PooledSession::hear() {
  auto message = server::receive_control(ends[0]);
  REQUIRE(message);
  return *message;
}

}  // namespace gpupool::worker::test
