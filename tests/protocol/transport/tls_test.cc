// Tests TLS below the transport: which peers a secret or certificate admits.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "protocol/transport/tls/stream.h"
#include "tests/support/catch.h"
#include "tests/support/certificates.h"

using namespace gpupool;
using namespace gpupool::transport;
using tls::Context;
using tls::Secret;
using tls::Stream;

namespace {

struct Sockets {
  Sockets() { REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0); }
  ~Sockets() {
    ::close(ends[0]);
    ::close(ends[1]);
  }
  int ends[2];
};

Secret secret_of(char fill) {
  Secret secret;
  secret.fill(fill);
  return secret;
}

std::unique_ptr<Stream> made(Result<std::unique_ptr<Stream>> stream) {
  if (!stream) FAIL(stream.error().message);
  return std::move(*stream);
}

// Runs both handshakes until both are open or one has failed; returns its error.
Result<void> open_both(Stream& client, Stream& server) {
  for (int step = 0; step < 20; ++step) {
    const auto here = client.open();
    if (!here) return here.error();
    const auto there = server.open();
    if (!there) return there.error();
    if (*here && *there) return {};
  }
  return Error{ErrorCode::unavailable, "they never came to an end"};
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

}  // namespace

TEST_CASE("both ends with the same secret connect and derive the same new secret") {
  const Sockets sockets;
  const auto client = made(Stream::with_psk(Side::client, sockets.ends[0], secret_of('a')));
  const auto server = made(Stream::with_psk(Side::server, sockets.ends[1], secret_of('a')));
  REQUIRE(open_both(*client, *server));
  CHECK(client->cipher() == "TLS_AES_128_GCM_SHA256");
  CHECK(*client->secret() == *server->secret());
  REQUIRE(*client->send_some(bytes_of("hello")) == 5);
  std::string text(5, '\0');
  CHECK(*server->receive_some(std::as_writable_bytes(std::span(text))) == 5);
  CHECK(text == "hello");
  client->end();
  const auto ended = server->receive_some(std::as_writable_bytes(std::span(text)));
  REQUIRE_FALSE(ended);
  CHECK(ended.error().code == ErrorCode::closed);
  CHECK(server->is_ended());
}

TEST_CASE("a different secret is rejected") {
  const Sockets sockets;
  const auto client = made(Stream::with_psk(Side::client, sockets.ends[0], secret_of('a')));
  const auto server = made(Stream::with_psk(Side::server, sockets.ends[1], secret_of('b')));
  const auto opened = open_both(*client, *server);
  REQUIRE_FALSE(opened);
  CHECK(opened.error().code == ErrorCode::refused);
  CHECK(opened.error().message.find("TLS handshake with the worker failed") != std::string::npos);
  CHECK_FALSE(client->is_open());
  CHECK_FALSE(client->secret());
}

TEST_CASE("rejects a certificate in place of the worker's secret and a client without the secret") {
  const testing::Authority authority("test");
  const auto files = authority.sign("server", "IP:127.0.0.1");
  const Sockets sockets;
  const auto client = made(Stream::with_psk(Side::client, sockets.ends[0], secret_of('a')));
  const auto impostor = made(Stream::server(
      *Context::server({.ca = {}, .certificate = files.certificate, .key = files.key, .secret = {}}),
      sockets.ends[1]));
  CHECK_FALSE(open_both(*client, *impostor));
  CHECK_FALSE(client->is_open());

  const Sockets others;
  const auto stranger = made(Stream::client(
      *Context::client({.ca = authority.certificate(), .certificate = {}, .key = {}, .secret = {}}),
      others.ends[0], "127.0.0.1"));
  const auto server = made(Stream::with_psk(Side::server, others.ends[1], secret_of('a')));
  CHECK_FALSE(open_both(*stranger, *server));
  CHECK_FALSE(server->is_open());
}

TEST_CASE("keys are updated while data is transferred") {
  const Sockets sockets;
  const auto client = made(Stream::with_psk(Side::client, sockets.ends[0], secret_of('a')));
  const auto server = made(Stream::with_psk(Side::server, sockets.ends[1], secret_of('a')));
  REQUIRE(open_both(*client, *server));
  client->change_key_after(3);
  for (int round = 0; round < 20; ++round) {
    const std::string text = "message " + std::to_string(round);
    REQUIRE(*client->send_some(bytes_of(text)) == text.size());
    std::string got(text.size(), '\0');
    const auto received = server->receive_some(std::as_writable_bytes(std::span(got)));
    if (!received) FAIL(received.error().message);
    CHECK(got == text);
    REQUIRE(*server->send_some(bytes_of("ok")) == 2);
    REQUIRE(*client->receive_some(std::as_writable_bytes(std::span(got)).first(2)) == 2);
  }
}

TEST_CASE("a byte changed in transit ends the connection") {
  const Sockets near, far;
  const auto client = made(Stream::with_psk(Side::client, near.ends[0], secret_of('a')));
  const auto server = made(Stream::with_psk(Side::server, far.ends[1], secret_of('a')));
  bool change = false;
  const auto carry = [&](int from, int to) {
    char data[65536];
    const ssize_t count = ::recv(from, data, sizeof data, MSG_DONTWAIT);
    if (count <= 0) return;
    if (change) data[count - 1] ^= 1;
    REQUIRE(::send(to, data, static_cast<size_t>(count), MSG_NOSIGNAL) == count);
  };
  for (int step = 0; step < 20 && !(client->is_open() && server->is_open()); ++step) {
    REQUIRE(client->open());
    carry(near.ends[1], far.ends[0]);
    REQUIRE(server->open());
    carry(far.ends[0], near.ends[1]);
  }
  REQUIRE(server->is_open());
  change = true;
  REQUIRE(client->send_some(bytes_of("pay 1")));
  carry(near.ends[1], far.ends[0]);
  std::byte buffer[16];
  const auto received = server->receive_some(buffer);
  REQUIRE_FALSE(received);
  CHECK(received.error().code == ErrorCode::malformed);
}
