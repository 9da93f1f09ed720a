// Fuzzes the other server of a copy between servers: answers, proofs, refusals and other bytes, in pieces and
// late, to poold's PeerConnections over TCP on loopback. The input is a sequence of calls.
//
// A connection is returned only if the other side has proved the copy's key. All failures are reported after
// the same time, whatever the reason. No descriptor may leak.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "protocol/control/hello.pb.h"
#include "protocol/peers/proof.h"
#include "protocol/wire/frame.h"
#include "server/poold/workers/peer_connections.h"
#include "tests/fuzz/fake_workers.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/quiet_protobuf.h"
#include "tests/fuzz/require.h"
#include "tests/fuzz/virtual_time.h"

using namespace gpupool;
using fuzz::require;
using namespace gpupool::server;

namespace {

constexpr int kTimes[] = {0, 1, 2'999, 3'000};  // milliseconds
constexpr std::array<uint8_t, 16> kSession{7, 7, 7};

class Listening {
 public:
  Listening() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    require(::bind(socket_, reinterpret_cast<sockaddr*>(&address), size) == 0 && ::listen(socket_, 256) == 0);
    require(::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port_ = ntohs(address.sin_port);
  }
  uint16_t port() const { return port_; }
  int accept() { return ::accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); }

 private:
  const int socket_;
  uint16_t port_ = 0;
};

Listening& listening() {
  static auto* const only = new Listening;
  return *only;
}

struct Attempt {
  std::chrono::steady_clock::time_point since;
  bool allowed = true;  // poold may connect to this address
  bool answered = false, dropped = false, proved = false, encrypts = false;
  int writes = 0;  // number of writes by the other side
  uint64_t session = 0;
  int descriptor = -1;  // returned by poold
  std::string behind;   // sent by the other side behind its proof
};

struct Other {
  int end = -1;  // -1: closed
  wire::PeerHello hello{};
  std::vector<wire::PeerNonce> nonces;  // nonces of the answers sent; poold may have read any of them
  size_t attempt = SIZE_MAX;            // index of the attempt whose hello has been received
};

class Attack {
 public:
  explicit Attack(fuzz::Input input) : input_(input) {}

  void run() {
    attempts_.reserve(kMost);
    open();
    for (int calls = 0; !input_.empty() && calls < 100; ++calls) {
      call();
      settle();
    }
    for (Other& other : others_) hang_up(other);
    loop_.pass(PeerConnections::kPatience);
    settle();
    for (Other& other : others_) hang_up(other);
    for (const Attempt& attempt : attempts_) {
      require(attempt.answered || attempt.dropped);
      if (attempt.descriptor >= 0) ::close(attempt.descriptor);
    }
  }

 private:
  static constexpr size_t kMost = 80;

  // The other side sees a new connection at once, because both are on this host.
  void settle() {
    loop_.settle();
    for (int end; (end = listening().accept()) >= 0;) {
      const linger at_once{1, 0};  // leaves no address in TIME_WAIT
      ::setsockopt(end, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
      others_.push_back({.end = end});
      loop_.settle();
    }
  }

  void call() {
    switch (input_.below(8)) {
      case 0: return open();
      case 1: return prove();
      case 2: return refuse();
      case 3: return write();
      case 4:
        if (Other* const its = other()) hang_up(*its);
        return;
      case 5: return loop_.pass(std::chrono::milliseconds(kTimes[input_.below(std::size(kTimes))]));
      case 6: {
        const uint64_t session = input_.below(2);
        for (Attempt& attempt : attempts_) {
          if (attempt.session == session && !attempt.answered) attempt.dropped = true;
        }
        return connections_.drop(session);
      }
      default:
        if (Other* const its = other()) check_proof(*its);
        return;
    }
  }

  Other* other() {
    return others_.empty() ? nullptr : &others_[input_.below(static_cast<uint32_t>(others_.size()))];
  }
  void hang_up(Other& other) {
    if (other.end >= 0) ::close(std::exchange(other.end, -1));
  }
  static wire::CopyKey key(size_t attempt) { return peers::copy_key("a token", attempt); }

  void open() {
    if (attempts_.size() >= kMost) return;
    const size_t number = attempts_.size();
    const uint32_t where = input_.below(8);
    attempts_.push_back(
        {.since = std::chrono::steady_clock::now(), .allowed = where < 6, .session = input_.below(2)});
    wire::PeerTarget target{};
    target.address[10] = target.address[11] = 0xff;
    target.address[12] = where == 6 ? 10 : 127;
    target.address[15] = 1;
    target.port = where == 7 ? 0 : where == 5 ? 1 : listening().port();  // no listener on port 1
    target.session_id = kSession;
    target.copy = number;
    target.key = key(number);
    const uint32_t over = input_.below(3);
    target.rdma = over == 1;
    target.tls = over == 2;
    attempts_[number].encrypts = over == 2;
    const bool taken =
        connections_.open(attempts_[number].session, target,
                          [this, number](const PeerConnections::Opened& opened) { answer(number, opened); });
    if (!taken) attempts_[number].dropped = true;
  }

  void answer(size_t number, const PeerConnections::Opened& opened) {
    const int descriptor = opened.descriptor;
    Attempt& attempt = attempts_[number];
    require(opened.protection.channel_key.size() == (descriptor >= 0 && attempt.encrypts ? 32 : 0));
    require(!opened.protection.within_host);
    require(!std::exchange(attempt.answered, true) && !attempt.dropped);
    if (descriptor < 0) {
      const bool at_once = std::chrono::steady_clock::now() - attempt.since < PeerConnections::kPatience;
      require(at_once == !attempt.allowed);
      return;
    }
    require(attempt.proved);
    attempt.descriptor = descriptor;
    if (attempt.writes != 1) return;  // else the bytes behind the proof are unknown
    std::string rest;
    char bytes[512];
    for (ssize_t got; (got = ::recv(descriptor, bytes, sizeof bytes, MSG_DONTWAIT)) > 0;)
      rest.append(bytes, static_cast<size_t>(got));
    require(attempt.behind.starts_with(rest));
  }

  // Reads the hello if it has arrived.
  bool knows_hello(Other& its) {
    if (its.end < 0) return false;
    if (its.attempt != SIZE_MAX) return true;
    wire::Preamble preamble;
    wire::PeerHello hello;
    char bytes[sizeof preamble + sizeof hello];
    if (::recv(its.end, bytes, sizeof bytes, MSG_DONTWAIT) != sizeof bytes) return false;
    std::memcpy(&preamble, bytes, sizeof preamble);
    std::memcpy(&hello, bytes + sizeof preamble, sizeof hello);
    uint64_t copy = 0;
    require(preamble.magic == wire::kMagic && peers::names(hello, kSession, &copy) &&
            copy < attempts_.size());
    its.hello = hello;
    its.attempt = copy;
    return true;
  }

  void send(Other& its, const std::string& bytes) {
    if (its.end < 0) return;
    const size_t cut = std::min<size_t>(input_.get<uint8_t>(), bytes.size());
    static_cast<void>(::send(its.end, bytes.data(), cut, MSG_NOSIGNAL | MSG_DONTWAIT));
    if (input_.below(2) == 1) loop_.settle();
    if (its.end >= 0)
      static_cast<void>(::send(its.end, bytes.data() + cut, bytes.size() - cut, MSG_NOSIGNAL | MSG_DONTWAIT));
  }

  void prove() {
    Other* const its = other();
    if (!its || !knows_hello(*its)) return;
    const uint32_t how = input_.below(7);
    const bool encrypts = attempts_[its->attempt].encrypts != (how == 5);
    const auto channel = encrypts ? peers::Channel::encrypted : peers::Channel::plain;
    wire::PeerAnswer answer{};
    answer.nonce.fill(static_cast<uint8_t>(input_.below(3)));
    its->nonces.push_back(answer.nonce);
    answer.proof = peers::prove(key(how == 1 ? 999 : its->attempt),
                                how == 2 ? peers::Side::connecting : peers::Side::accepting, channel,
                                its->hello.nonce, answer.nonce);
    wire::Preamble preamble{.protocol_version = wire::kPeerProtocolVersion, .length = sizeof answer};
    if (how == 3) preamble.length = input_.get<uint32_t>();
    if (how == 4) preamble.protocol_version = input_.get<uint16_t>();
    const std::string behind = input_.text();
    Attempt& attempt = attempts_[its->attempt];
    if (how != 1 && how != 2 && how != 5) attempt.proved = true;
    ++attempt.writes;
    attempt.behind = behind;
    std::string bytes(reinterpret_cast<const char*>(&preamble), sizeof preamble);
    bytes.append(reinterpret_cast<const char*>(&answer), sizeof answer);
    send(*its, bytes + behind);
  }

  void refuse() {
    Other* const its = other();
    if (!its) return;
    control::HelloReply reply;
    reply.set_status(static_cast<control::HelloReply::Status>(input_.below(6)));
    reply.set_reason(input_.text());
    const std::string body = reply.SerializeAsString();
    wire::Preamble preamble{.length = static_cast<uint32_t>(body.size())};
    if (input_.below(4) == 1) preamble.length = input_.get<uint32_t>();
    note_write(*its);
    send(*its, std::string(reinterpret_cast<const char*>(&preamble), sizeof preamble) + body);
  }

  void write() {
    Other* const its = other();
    if (!its) return;
    note_write(*its);
    send(*its, input_.text());
  }
  void note_write(Other& its) {
    if (knows_hello(its)) ++attempts_[its.attempt].writes;
  }

  // Checks the last message of poold, a proof, if poold accepted the other side.
  void check_proof(Other& its) {
    if (!knows_hello(its)) return;
    wire::PeerProof proof;
    if (::recv(its.end, &proof, sizeof proof, MSG_DONTWAIT) != sizeof proof) return;
    require(attempts_[its.attempt].proved);
    const auto channel = attempts_[its.attempt].encrypts ? peers::Channel::encrypted : peers::Channel::plain;
    require(std::any_of(its.nonces.begin(), its.nonces.end(), [&](const wire::PeerNonce& nonce) {
      return peers::same(proof.proof, peers::prove(key(its.attempt), peers::Side::connecting, channel,
                                                   its.hello.nonce, nonce));
    }));
  }

  fuzz::Input input_;
  fuzz::Loop loop_;
  std::vector<Attempt> attempts_;
  std::vector<Other> others_;
  PeerConnections connections_{loop_.context, *Networks::parse("127.0.0.0/8")};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::quiet_protobuf();
  static_cast<void>(listening());
  const int before = fuzz::next_descriptor();
  {
    Attack attack(fuzz::Input(data, size));
    attack.run();
  }
  if (fuzz::next_descriptor() != before) std::abort();
  return 0;
}
