#include "tests/server/worker/pooled_session.h"

#include <sys/socket.h>
#include <unistd.h>

#include "server/quota/turn_word.h"
#include "tests/support/catch.h"

namespace gpupool::worker::test {

using wire::Command;

namespace {

constexpr std::chrono::seconds kPatience{10};

}  // namespace

PooledSession::PooledSession(testing::FakeDirectMemory* direct, bool staged) {
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  listener_ = std::thread([this] { listen(); });
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
  ::shutdown(ends[0], SHUT_RDWR);
  listener_.join();
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

void PooledSession::listen() {
  while (auto message = server::receive_control(ends[0])) {
    if (message->kind == server::ControlKind::reclaim) {
      const auto question = message->body<server::packet::Reclaim>().question;
      (void)server::send_control<server::ControlKind::reclaimed>(ends[0], {.question = question});
      continue;
    }
    const std::lock_guard lock(mutex_);
    heard_.push_back(std::move(*message));
    arrived_.notify_all();
  }
}

bool PooledSession::silent(int milliseconds) {
  std::unique_lock lock(mutex_);
  return !arrived_.wait_for(lock, std::chrono::milliseconds(milliseconds),
                            [this] { return !heard_.empty(); });
}

server::ControlMessage PooledSession::hear() {
  std::unique_lock lock(mutex_);
  REQUIRE(arrived_.wait_for(lock, kPatience, [this] { return !heard_.empty(); }));
  server::ControlMessage message = std::move(heard_.front());
  heard_.pop_front();
  return message;
}

}  // namespace gpupool::worker::test
