// Tests how a tls port tells connections without TLS (other servers, and clients with a tcp:// address) from
// connections with it, if only some of their first bytes have arrived.
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/control/hello_codec.h"
#include "protocol/peers/proof.h"
#include "protocol/transport/tls/stream.h"
#include "protocol/wire/peers.h"
#include "tests/fuzz/fake_door.h"
#include "tests/support/catch.h"
#include "tests/support/certificates.h"
#include "tests/support/raw_client.h"

using namespace gpupool;
using namespace gpupool::testing;
using transport::tls::Stream;

namespace {

constexpr uint64_t kCopy = 5;
// How many bytes arrive before the others: none, fewer than the magic number has, all of it, and more.
constexpr size_t kFirst[] = {0, 1, 3, 4, 20};

template <class Body>
std::string text_of(const Body& body) {
  return {reinterpret_cast<const char*>(&body), sizeof body};
}

// Returns what can be read.
std::string read_some(int socket) {
  std::string all;
  char bytes[4096];
  for (ssize_t got = 0; (got = ::recv(socket, bytes, sizeof bytes, MSG_DONTWAIT)) > 0;)
    all.append(bytes, static_cast<size_t>(got));
  return all;
}

void write_all(int socket, std::string_view bytes) {
  if (bytes.empty()) return;
  REQUIRE(::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
          static_cast<ssize_t>(bytes.size()));
}

// A tls port and its peers. The test's thread is poold's, so poold has seen what was sent when settle()
// returns; only the steps of TLS handshakes are on another thread.
class TlsPort {
 public:
  TlsPort() {
    const auto files = authority_.sign("server", "DNS:localhost");
    auto context = transport::tls::Context::server(
        {.ca = {}, .certificate = files.certificate, .key = files.key, .secret = {}});
    REQUIRE(context);
    door_.door().use_tls(std::move(*context));
    door_.on_admit = [this](server::Client client, const server::Credentials&) {
      ++admitted_;
      REQUIRE(client.tls);
      client.tls->end();
      ::close(client.descriptor);
    };
  }
  ~TlsPort() {
    door_.door().close();
    for (const int end : ends_) ::close(end);
  }
  TlsPort(const TlsPort&) = delete;
  TlsPort& operator=(const TlsPort&) = delete;

  // Opens a connection and returns the peer's end. All are of one peer, which may open ten at once.
  int connect() { return ends_.emplace_back(door_.connect("peer:1")); }
  void settle() { door_.loop().settle(); }
  void send(int end, std::string_view bytes) {
    write_all(end, bytes);
    settle();
  }
  // Has poold see the first bytes before the others are sent.
  void send_in_two(int end, std::string_view bytes, size_t first) {
    send(end, bytes.substr(0, first));
    send(end, bytes.substr(first));
  }
  // Runs poold's thread until the condition holds. Returns false after kPatience.
  template <class Condition>
  bool run_until(const Condition& holds) {
    const auto stop = std::chrono::steady_clock::now() + kPatience;
    while (!holds()) {
      if (std::chrono::steady_clock::now() > stop) return false;
      door_.loop().context.restart();
      door_.loop().context.run_one_for(std::chrono::milliseconds(10));
    }
    return true;
  }
  // True when poold has closed all connections that it has not admitted.
  bool await_dropped() {
    return run_until([&] { return !door_.door().has_pending(); });
  }
  uint64_t refused() { return door_.door().refused_connections(); }
  size_t admitted() const { return admitted_; }
  const Authority& authority() const { return authority_; }

 private:
  const Authority authority_{"authority"};
  fuzz::FakeDoor door_{"tls"};
  std::vector<int> ends_;
  size_t admitted_ = 0;
};

// A client with TLS, whose records the test passes on to the port.
class TlsClient {
 public:
  explicit TlsClient(const Authority& authority) {
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair_) == 0);
    auto context = transport::tls::Context::client(
        {.ca = authority.certificate(), .certificate = {}, .key = {}, .secret = {}});
    REQUIRE(context);
    auto made = Stream::client(std::move(*context), pair_[0], "localhost");
    REQUIRE(made);
    stream_ = std::move(*made);
  }
  ~TlsClient() {
    stream_.reset();
    for (const int end : pair_) ::close(end);
  }
  TlsClient(const TlsClient&) = delete;
  TlsClient& operator=(const TlsClient&) = delete;

  // Takes the next step of the handshake; returns true when it is complete.
  bool open() {
    const auto opened = stream_->open();
    if (!opened) FAIL(opened.error().message);
    return *opened;
  }
  void send(std::string_view bytes) {
    const auto sent = stream_->send_some(std::as_bytes(std::span(bytes)));
    REQUIRE(sent);
    REQUIRE(*sent == bytes.size());
  }
  std::string take_sent() const { return read_some(pair_[1]); }
  // Passes on what both have sent.
  void exchange(int end) const {
    write_all(end, take_sent());
    write_all(pair_[1], read_some(end));
  }

 private:
  int pair_[2] = {-1, -1};
  std::unique_ptr<Stream> stream_;
};

bool is_closed(int end) {
  char byte = 0;
  const ssize_t got = ::recv(end, &byte, 1, MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno == ECONNRESET);  // reset: poold has not read all bytes
}

}  // namespace

TEST_CASE("a tls port answers another server however few of its bytes arrive first") {
  TlsPort port;
  for (const size_t first : kFirst) {
    CAPTURE(first);
    const int end = port.connect();
    wire::PeerNonce nonce;
    nonce.fill(7);
    const auto hello = peers::make_hello(nonce, fuzz::FakeDoor::kSession, kCopy);
    const wire::Preamble preamble{.protocol_version = wire::kPeerProtocolVersion, .length = sizeof hello};
    port.send_in_two(end, text_of(preamble) + text_of(hello), first);
    const std::string got = read_some(end);
    wire::PeerAnswer answer;
    REQUIRE(got.size() == sizeof preamble + sizeof answer);
    std::memcpy(&answer, got.data() + sizeof preamble, sizeof answer);
    CHECK(answer.proof == peers::prove(fuzz::FakeDoor::key(kCopy), peers::Side::accepting,
                                       peers::Channel::encrypted, nonce, answer.nonce));
  }
  CHECK(port.refused() == 0);
}

TEST_CASE("a tls port tells a client without TLS the reason however few of its bytes arrive first") {
  TlsPort port;
  for (const size_t first : kFirst) {
    CAPTURE(first);
    const int end = port.connect();
    port.send_in_two(end, hello_bytes(test_hello()), first);
    const std::string got = read_some(end);
    REQUIRE(got.size() > sizeof(wire::Preamble));
    const auto reply = hello::decode_hello_reply(std::string_view(got).substr(sizeof(wire::Preamble)));
    REQUIRE(reply);
    CHECK(reply->status == hello::Status::denied);
    CHECK(reply->reason.find("this port requires TLS") != std::string::npos);
  }
  CHECK(port.admitted() == 0);
}

TEST_CASE("a tls port completes a handshake however few of its bytes arrive first") {
  TlsPort port;
  for (const size_t first : kFirst) {
    CAPTURE(first);
    const size_t before = port.admitted();
    const int end = port.connect();
    TlsClient client(port.authority());
    REQUIRE_FALSE(client.open());
    port.send_in_two(end, client.take_sent(), first);
    REQUIRE(port.run_until([&] {
      client.exchange(end);
      return client.open();
    }));
    client.send(hello_bytes(test_hello()));
    REQUIRE(port.run_until([&] {
      client.exchange(end);
      return port.admitted() > before;
    }));
  }
  CHECK(port.refused() == 0);
}

TEST_CASE("a tls port drops peers that hang up within their first bytes") {
  TlsPort port;
  uint64_t refused = 0;
  for (const char* const beginning :
       {"", "P", "POO", "POOL", "\x16", "\x16\x03\x01", "\x16\x03\x01\x02", "x", "xyz"}) {
    CAPTURE(beginning);
    const int end = port.connect();
    port.send(end, beginning);
    REQUIRE(::shutdown(end, SHUT_WR) == 0);
    CHECK(port.await_dropped());
    CHECK(is_closed(end));
    CHECK(port.refused() == ++refused);
  }
}

TEST_CASE("a tls port drops peers whose first bytes only begin like another server's") {
  TlsPort port;
  uint64_t refused = 0;
  for (const char* const beginning : {"P", "POO"}) {
    CAPTURE(beginning);
    const int end = port.connect();
    port.send(end, beginning);
    port.send(end, "ST / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    CHECK(port.await_dropped());
    CHECK(is_closed(end));
    CHECK(port.refused() == ++refused);
  }
}
