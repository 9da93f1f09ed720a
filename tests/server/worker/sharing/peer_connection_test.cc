// Tests how a worker uses the connection to another server that poold has opened: encrypted with the key that
// poold sends, or not at all. The test acts as poold and as the other server.
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "protocol/control/hello_codec.h"
#include "protocol/wire/frame.h"
#include "server/handover/handover.h"
#include "server/handover/peer_answer.h"
#include "server/sockets/tcp_pair.h"
#include "server/worker/sharing/peer.h"
#include "server/worker/sharing/peer_requests.h"
#include "server/worker/sharing/peers.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::worker;
using server::ControlKind;
using Opened = Result<std::unique_ptr<transport::Connection>>;

namespace {

constexpr std::chrono::seconds kLongest{20};

// The reply of the other server's worker to an accepted connection.
std::string welcome() {
  const std::string reply = hello::encode(hello::HelloReply{});
  const wire::Preamble preamble{.length = static_cast<uint32_t>(reply.size())};
  return std::string(reinterpret_cast<const char*>(&preamble), sizeof preamble) + reply;
}

// A worker that opens a connection to a port of another server, and both ends that the test plays.
class Opening {
 public:
  explicit Opening(bool to_tls_port) {
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control_ends_) == 0);
    const timeval patience{kLongest.count(), 0};
    ::setsockopt(control_ends_[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    const auto pair = server::make_tcp_pair();
    REQUIRE(pair);
    workers_end_ = (*pair)[0];
    other_server_ = (*pair)[1];
    control_ = std::make_unique<Control>(control_ends_[1], nullptr);
    requests_ = std::make_unique<PeerRequests>(control_.get());
    wire::PeerTarget target{};
    target.tls = to_tls_port ? 1 : 0;
    transport::Options options;
    options.connect_timeout = kLongest;
    opened_ = std::async(std::launch::async,
                         [this, target, options] { return connect_to_peer(*requests_, target, options); });
  }
  ~Opening() {
    requests_->stop();
    if (opened_.valid()) opened_.wait();
    requests_.reset();
    control_.reset();
    for (const int end : {control_ends_[0], control_ends_[1], workers_end_, other_server_}) {
      if (end >= 0) ::close(end);
    }
  }
  Opening(const Opening&) = delete;
  Opening& operator=(const Opening&) = delete;

  // Sends poold's answer with this key.
  void answer(const std::string& key) {
    const auto asked = server::receive_control(control_ends_[0]);
    REQUIRE(asked);
    REQUIRE(asked->kind == ControlKind::peer_wanted);
    const uint64_t request = asked->body<server::packet::PeerWanted>().request;
    REQUIRE(server::send_control<ControlKind::peer_found>(control_ends_[0], {.request = request}, key,
                                                          workers_end_));
    ::close(std::exchange(workers_end_, -1));
  }
  // Sends the welcome of a server that does not encrypt.
  void welcome_without_tls() const {
    const std::string bytes = welcome();
    REQUIRE(::send(other_server_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(bytes.size()));
  }
  // Sends the welcome of a server that encrypts with this key.
  void welcome_over_tls(const std::string& key) {
    transport::Options options;
    options.tls.secret = key;
    auto accepted = transport::adopt("tls", std::exchange(other_server_, -1), options);
    REQUIRE(accepted);
    accepted_ = std::move(*accepted);
    std::string bytes = welcome();
    const iovec part{bytes.data(), bytes.size()};
    REQUIRE(transport::send_all(*accepted_, {&part, 1}, transport::Clock::now() + kLongest));
  }
  Opened opened() { return opened_.get(); }
  // Returns what the worker has sent when its end is closed; nullopt: it stays open.
  std::optional<std::string> received_until_closed() const {
    std::string received;
    for (;;) {
      pollfd readable{.fd = other_server_, .events = POLLIN, .revents = 0};
      if (::poll(&readable, 1, static_cast<int>(std::chrono::milliseconds(kLongest).count())) != 1)
        return std::nullopt;
      char bytes[4096];
      const ssize_t count = ::recv(other_server_, bytes, sizeof bytes, MSG_DONTWAIT);
      if (count > 0)
        received.append(bytes, static_cast<size_t>(count));
      else if (count == 0 || errno == ECONNRESET)  // reset: the worker did not read the welcome
        return received;
      else
        return std::nullopt;
    }
  }

 private:
  int control_ends_[2] = {-1, -1};
  int workers_end_ = -1, other_server_ = -1;
  std::unique_ptr<Control> control_;
  std::unique_ptr<PeerRequests> requests_;
  std::unique_ptr<transport::Connection> accepted_;
  std::future<Opened> opened_;
};

}  // namespace

TEST_CASE("a worker encrypts a connection to a tls port with the key that poold sends") {
  const std::string key(32, 'k');
  Opening opening(true);
  opening.answer(key);
  opening.welcome_over_tls(key);
  const Opened opened = opening.opened();
  REQUIRE(opened);
  CHECK((*opened)->carrier().starts_with("tls "));
}

TEST_CASE("a worker sends nothing to a tls port without a key of the right size") {
  const size_t bytes = GENERATE(0, 31, 33);
  CAPTURE(bytes);
  Opening opening(true);
  opening.welcome_without_tls();  // that server accepts data in the clear
  opening.answer(std::string(bytes, 'k'));
  const Opened opened = opening.opened();
  REQUIRE_FALSE(opened);
  CHECK(opened.error().code == ErrorCode::invalid);
  CHECK(opened.error().message == "cannot take over a TLS connection without its secret of 32 bytes");
  CHECK(opening.received_until_closed() == "");
}

TEST_CASE("a worker needs no key for a connection to a tcp port or within the host") {
  const bool within_host = GENERATE(false, true);
  CAPTURE(within_host);
  Opening opening(within_host);
  opening.welcome_without_tls();
  opening.answer(within_host ? std::string(server::kWithinHost) : "");
  const Opened opened = opening.opened();
  REQUIRE(opened);
  CHECK((*opened)->carrier().starts_with("tcp"));
}

// Otherwise the last copy that refers to it would destroy it, perhaps on its own sending thread.
TEST_CASE("a broken connection to another server is destroyed by the next request, not by its last copy") {
  SessionStart start;  // without a connection to poold, so that no server can be reached
  Peers peers(start);
  const wire::PeerTarget target{};
  std::shared_ptr<Peer> of_copy = peers.connection_to(target);
  REQUIRE(of_copy);
  REQUIRE_FALSE(of_copy->open(target));
  const std::shared_ptr<Peer> next = peers.connection_to(target);
  REQUIRE(next);
  CHECK(next != of_copy);
  const std::weak_ptr<Peer> broken = of_copy;
  CHECK(peers.connection_to(target) == next);
  of_copy.reset();
  CHECK_FALSE(broken.expired());
  CHECK(peers.connection_to(target) == next);
  CHECK(broken.expired());
  peers.stop();
}
