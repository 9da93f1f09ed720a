#include "server/handover/handover.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <span>

#include "server/handover/peer_answer.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::server;

namespace {

struct Sockets {
  Sockets() { REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0); }
  ~Sockets() {
    for (const int end : ends) {
      if (end >= 0) ::close(end);
    }
  }
  int ends[2];
};

}  // namespace

TEST_CASE("a session message carries its struct, hello and descriptor") {
  Sockets sockets;
  int pipe_ends[2];
  REQUIRE(::pipe(pipe_ends) == 0);
  packet::Session session{.number = 42, .dead_peer_timeout_ms = 1500};
  session.id.fill('s');
  const std::string hello(kMaxControlPayload, 'h');
  REQUIRE(send_control<ControlKind::session>(sockets.ends[0], session, hello, pipe_ends[1]));
  const auto message = receive_control(sockets.ends[1]);
  REQUIRE(message);
  REQUIRE(message->kind == ControlKind::session);
  const auto received = message->body<packet::Session>();
  CHECK(std::memcmp(&received, &session, sizeof session) == 0);
  CHECK(message->payload == hello);
  REQUIRE(message->descriptor >= 0);
  CHECK((::fcntl(message->descriptor, F_GETFD) & FD_CLOEXEC) != 0);
  REQUIRE(::write(message->descriptor, "x", 1) == 1);
  char byte = 0;
  CHECK(::read(pipe_ends[0], &byte, 1) == 1);
  ::close(message->descriptor);
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
}

TEST_CASE("a connection to another server is encrypted with a key, plain, or within the host") {
  const std::string key(32, 'k');
  const PeerProtection encrypted = parse_peer_protection(to_payload({.channel_key = key}));
  CHECK(encrypted.channel_key == key);
  CHECK_FALSE(encrypted.within_host);
  const PeerProtection plain = parse_peer_protection(to_payload({}));
  CHECK(plain.channel_key.empty());
  CHECK_FALSE(plain.within_host);
  CHECK(to_payload({.within_host = true}) == "within the host");  // older workers compare it
  const PeerProtection inside = parse_peer_protection(to_payload({.within_host = true}));
  CHECK(inside.channel_key.empty());
  CHECK(inside.within_host);
}

TEST_CASE("messages keep their boundaries and may be empty") {
  Sockets sockets;
  REQUIRE(send_control<ControlKind::ready>(sockets.ends[0]));
  REQUIRE(send_control<ControlKind::failed>(sockets.ends[0], {}, "why"));
  const auto first = receive_control(sockets.ends[1]);
  REQUIRE(first);
  CHECK(first->kind == ControlKind::ready);
  CHECK(first->payload.empty());
  CHECK(first->descriptor == -1);
  const auto second = receive_control(sockets.ends[1]);
  REQUIRE(second);
  CHECK(second->payload == "why");
}

TEST_CASE("a message that is too long is not sent") {
  Sockets sockets;
  const auto sent =
      send_control<ControlKind::dump>(sockets.ends[0], {}, std::string(kMaxControlPayload + 1, 'x'));
  REQUIRE_FALSE(sent);
  CHECK(sent.error().code == ErrorCode::limit);
}

TEST_CASE("a message of each kind is malformed unless it has the size of its kind") {
  struct Kind {
    ControlKind kind;
    size_t body;
  };
  constexpr Kind kKinds[] = {
#define CONTROL(id, kind, body) {ControlKind::kind, kControlBodyBytes<packet::body>},
#include "server/handover/control.def"
#undef CONTROL
  };
  Sockets sockets;
  const uint32_t payload = GENERATE(0u, 3u);
  for (const auto& [kind, body] : kKinds) {
    INFO(static_cast<uint32_t>(kind));
    const ControlHeader header{kind, payload};
    std::string bytes(sizeof header + body + payload + 1, 'b');
    std::memcpy(bytes.data(), &header, sizeof header);
    for (size_t size = 1; size <= bytes.size(); ++size) {
      for (const bool poold : {false, true}) {
        REQUIRE(::send(sockets.ends[0], bytes.data(), size, 0) == static_cast<ssize_t>(size));
        const auto message =
            poold ? receive_worker_control(sockets.ends[1]) : receive_control(sockets.ends[1]);
        REQUIRE(message.ok() == (size + 1 == bytes.size()));
        if (message) {
          CHECK(message->kind == kind);
          CHECK(message->payload == std::string(payload, 'b'));
        } else {
          CHECK(message.error().code == ErrorCode::malformed);
        }
      }
    }
  }
}

TEST_CASE("a message of an unknown kind is malformed, whatever its size") {
  Sockets sockets;
  for (const uint32_t kind : {0u, 41u, 12345u, ~0u}) {
    for (size_t body = 0; body <= kMaxControlBody + 1; ++body) {
      const std::string bytes(body, 'b');
      REQUIRE(send_packet(sockets.ends[0], ControlKind(kind), std::as_bytes(std::span(bytes)), "", -1));
      const auto message = receive_worker_control(sockets.ends[1]);
      REQUIRE_FALSE(message);
      CHECK(message.error().code == ErrorCode::malformed);
    }
  }
}

TEST_CASE("a message with a longer payload than allowed is malformed") {
  Sockets sockets;
  const ControlHeader header{ControlKind::failed, kMaxControlPayload + 1};
  std::string bytes(sizeof header + header.payload_bytes, 'x');
  std::memcpy(bytes.data(), &header, sizeof header);
  REQUIRE(::send(sockets.ends[0], bytes.data(), bytes.size(), 0) > 0);
  const auto message = receive_worker_control(sockets.ends[1]);
  REQUIRE_FALSE(message);
  CHECK(message.error().code == ErrorCode::malformed);
}

TEST_CASE("the end of the other process is told apart") {
  Sockets sockets;
  ::close(sockets.ends[0]);
  sockets.ends[0] = -1;
  const auto message = receive_control(sockets.ends[1]);
  REQUIRE_FALSE(message);
  CHECK(message.error().code == ErrorCode::closed);
  const auto sent = send_control<ControlKind::turn>(sockets.ends[1]);
  REQUIRE_FALSE(sent);
  CHECK(sent.error().code == ErrorCode::closed);
}

TEST_CASE("more than one descriptor is malformed, and none of them stays open") {
  Sockets sockets;
  int pipe_ends[2];
  REQUIRE(::pipe(pipe_ends) == 0);
  ControlHeader header{ControlKind::turn, 0};
  iovec part{&header, sizeof header};
  alignas(cmsghdr) char space[CMSG_SPACE(2 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = space;
  message.msg_controllen = sizeof space;
  cmsghdr* const control = CMSG_FIRSTHDR(&message);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(2 * sizeof(int));
  const int both[2] = {pipe_ends[1], pipe_ends[1]};
  std::memcpy(CMSG_DATA(control), both, sizeof both);
  REQUIRE(::sendmsg(sockets.ends[0], &message, 0) > 0);
  ::close(pipe_ends[1]);
  const auto received = receive_control(sockets.ends[1]);
  REQUIRE_FALSE(received);
  CHECK(received.error().code == ErrorCode::malformed);
  char byte = 0;
  ::fcntl(pipe_ends[0], F_SETFL, O_NONBLOCK);
  // End of file: the receiver closed both copies of the writing end.
  CHECK(::read(pipe_ends[0], &byte, 1) == 0);
  ::close(pipe_ends[0]);
}

TEST_CASE("poold refuses a message with a descriptor and leaves it queued") {
  Sockets sockets;
  int pipe_ends[2];
  REQUIRE(::pipe(pipe_ends) == 0);
  CHECK(receive_worker_control(sockets.ends[1]).error().code == ErrorCode::limit);
  REQUIRE(send_control<ControlKind::turn>(sockets.ends[0]));
  REQUIRE(send_control<ControlKind::dump>(sockets.ends[0], {}, "text", pipe_ends[1]));
  ::close(pipe_ends[1]);
  const auto first = receive_worker_control(sockets.ends[1]);
  REQUIRE(first);
  CHECK(first->kind == ControlKind::turn);
  for (int again = 0; again < 2; ++again) {
    const auto second = receive_worker_control(sockets.ends[1]);
    REQUIRE_FALSE(second);
    CHECK(second.error().code == ErrorCode::malformed);
  }
  ::fcntl(pipe_ends[0], F_SETFL, O_NONBLOCK);
  char byte = 0;
  // The writing end is still open in the queued message.
  CHECK((::read(pipe_ends[0], &byte, 1) < 0 && errno == EAGAIN));
  const auto all = receive_control(sockets.ends[1]);
  REQUIRE(all);
  CHECK(all->payload == "text");
  ::close(all->descriptor);
  CHECK(::read(pipe_ends[0], &byte, 1) == 0);
  ::close(pipe_ends[0]);
}

TEST_CASE("a process that does not read its control socket does not block the other one") {
  Sockets sockets;
  Result<void> sent{};
  for (int i = 0; i < 10'000 && sent; ++i)
    sent = send_control<ControlKind::dump>(sockets.ends[0], {}, std::string(1000, 'x'));
  REQUIRE_FALSE(sent);
  CHECK(sent.error().code == ErrorCode::limit);
}
