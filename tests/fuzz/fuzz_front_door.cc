// Fuzzes unauthenticated connections at poold's Acceptor over Unix sockets: hellos of clients and other
// servers in arbitrary pieces, with bytes behind them, with descriptors, closed at any point. The input is a
// sequence of calls.
//
// An admitted connection must have sent a whole hello, or proved the copy's key, and is passed on with every
// byte behind it; no descriptor may leak.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "protocol/wire/frame.h"
#include "server/handover/handover.h"
#include "tests/fuzz/fake_door.h"
#include "tests/fuzz/fake_workers.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/quiet_protobuf.h"

using namespace gpupool;
using namespace gpupool::server;

namespace {

constexpr int kTimes[] = {1, 1'999, 2'000, 10'000};  // milliseconds

fuzz::FakeDoor& door_of(uint32_t scheme) {
  static fuzz::FakeDoor* const doors[] = {new fuzz::FakeDoor("tcp"), new fuzz::FakeDoor("shm"),
                                          new fuzz::FakeDoor("rdma")};
  return *doors[scheme % std::size(doors)];
}

struct Caller {
  int end = -1;      // -1: closed
  std::string sent;  // all bytes sent before any descriptor
  bool with_descriptor = false;
  wire::PeerHello hello{};
  uint64_t copy = 0;
  bool proved = false;
};

class Attack {
 public:
  explicit Attack(fuzz::Input input)
      : input_(input), door_(door_of(input_.below(3))), file_(::open("/dev/null", O_RDONLY | O_CLOEXEC)) {
    door_.on_admit = [this](Client client, const Credentials& shown) { admitted(std::move(client), shown); };
    door_.on_deny = [this](Client client, const Refusal& refusal) { denied(std::move(client), refusal); };
  }
  ~Attack() {
    for (Caller& caller : callers_) hang_up(caller);
    door_.finish();
    ::close(file_);
  }

  void run() {
    connect();
    for (int calls = 0; !input_.empty() && calls < 200; ++calls) {
      call();
      door_.loop().settle();
    }
  }

 private:
  void call() {
    const uint32_t what = input_.below(12);
    if (what == 0) return connect();
    if (what == 1) return door_.listener().fail_next();
    if (what == 2)
      return door_.loop().pass(std::chrono::milliseconds(kTimes[input_.below(std::size(kTimes))]));
    Caller& its = caller();
    switch (what) {
      case 3: return send(its, input_.text());
      case 4: return say_hello(its);
      case 5: return say_peer_hello(its);
      case 6: return prove(its);
      case 7: return send_descriptor(its);
      case 8: return static_cast<void>(::shutdown(its.end, SHUT_WR));
      case 9: return hang_up(its);
      case 10: return read(its);
      default: return send(its, std::string(1 + input_.below(64) * 1024, 'x'));
    }
  }

  Caller& caller() { return callers_[input_.below(static_cast<uint32_t>(callers_.size()))]; }
  void connect() {
    if (callers_.size() >= 16) return;
    Caller made;
    made.end = door_.connect("caller:" + std::to_string(callers_.size()));
    callers_.push_back(std::move(made));
  }
  void hang_up(Caller& caller) {
    if (caller.end >= 0) ::close(std::exchange(caller.end, -1));
  }
  void send(Caller& caller, const std::string& bytes) {
    const ssize_t sent =
        caller.end < 0 ? -1 : ::send(caller.end, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) caller.sent.append(bytes, 0, static_cast<size_t>(sent));
  }
  // Sends the bytes in one or two pieces.
  void send_in_pieces(Caller& caller, const std::string& bytes) {
    const size_t cut = std::min<size_t>(input_.get<uint8_t>(), bytes.size());
    send(caller, bytes.substr(0, cut));
    if (input_.below(2) == 1) door_.loop().settle();
    send(caller, bytes.substr(cut));
  }
  static std::string framed(const wire::Preamble& preamble, const std::string& body) {
    return std::string(reinterpret_cast<const char*>(&preamble), sizeof preamble) + body;
  }

  void say_hello(Caller& caller) {
    control::Hello hello;
    hello.set_tenant(input_.text());
    hello.set_token(input_.text());
    hello.set_host(input_.text());
    const uint32_t flags = input_.get<uint8_t>();
    hello.set_monitor((flags & 1) != 0);
    hello.set_checkpoint((flags & 2) != 0);
    hello.set_from_peer((flags & 4) != 0);
    hello.set_rdma((flags & 8) != 0);
    if ((flags & 64) != 0) {
      hello.set_session_id(input_.text());
      hello.set_bulk_token(input_.text());
      hello.set_bulk_link(input_.below(wire::kMaxBulkConnections + 2));
    }
    if ((flags & 128) != 0) {
      hello.set_resume_proof(input_.text());
      hello.set_resume_attempt(input_.get<uint64_t>());
      hello.set_resume_received(input_.get<uint64_t>());
    }
    const std::string body = hello.SerializeAsString();
    wire::Preamble preamble{.length = static_cast<uint32_t>(body.size())};
    if ((flags & 16) != 0) preamble.protocol_version = static_cast<uint16_t>(preamble.protocol_version + 1);
    if ((flags & 32) != 0) preamble.length = input_.get<uint32_t>();
    send_in_pieces(caller, framed(preamble, body) + input_.text());
  }

  void say_peer_hello(Caller& caller) {
    wire::PeerNonce nonce;
    nonce.fill(static_cast<uint8_t>(input_.below(3)));
    auto session = fuzz::FakeDoor::kSession;
    if (input_.below(4) == 1) session[0] = 9;
    const uint64_t copy = input_.below(3);
    wire::PeerHello hello = peers::make_hello(nonce, session, copy);
    hello.rdma = input_.below(2);
    if (caller.sent.empty() && !caller.with_descriptor) {  // else the door reads other bytes as the hello
      caller.hello = hello;
      caller.copy = copy;
    }
    const wire::Preamble preamble{
        .protocol_version = wire::kPeerProtocolVersion,
        .length = static_cast<uint32_t>(sizeof hello) + (input_.below(8) == 7 ? 1 : 0)};
    send_in_pieces(caller,
                   framed(preamble, std::string(reinterpret_cast<const char*>(&hello), sizeof hello)));
  }

  // Answers the received nonce, with the right or a wrong key.
  void prove(Caller& caller) {
    struct {
      wire::Preamble preamble;
      wire::PeerAnswer answer;
    } got{};
    static_assert(sizeof got == sizeof got.preamble + sizeof got.answer);
    const ssize_t size = caller.end < 0 ? -1 : ::recv(caller.end, &got, sizeof got, MSG_DONTWAIT);
    const bool right = input_.below(4) != 3;
    if (size == sizeof got && got.preamble.protocol_version == wire::kPeerProtocolVersion) {
      const auto expected = peers::prove(fuzz::FakeDoor::key(caller.copy), peers::Side::accepting,
                                         peers::Channel::plain, caller.hello.nonce, got.answer.nonce);
      if (!peers::same(expected, got.answer.proof)) std::abort();
      caller.proved = right;
    }
    const wire::PeerProof proof{peers::prove(fuzz::FakeDoor::key(right ? caller.copy : 77),
                                             peers::Side::connecting, peers::Channel::plain,
                                             caller.hello.nonce, got.answer.nonce)};
    send_in_pieces(caller, std::string(reinterpret_cast<const char*>(&proof), sizeof proof) + input_.text());
  }

  void send_descriptor(Caller& caller) {
    const std::string bytes = "d" + input_.text();
    if (caller.end < 0) return;
    caller.with_descriptor = true;
    fuzz::send_with_descriptor(caller.end, bytes, file_);
  }

  void read(Caller& caller) {
    char bytes[4096];
    if (caller.end >= 0) static_cast<void>(::recv(caller.end, bytes, sizeof bytes, MSG_DONTWAIT));
  }

  Caller& caller_of(const Client& client) {
    return callers_[std::stoul(client.address.substr(client.address.find(':') + 1))];
  }

  void admitted(Client client, const Credentials& shown) {
    const Caller& caller = caller_of(client);
    if (client.descriptor < 0) std::abort();
    wire::Preamble preamble;
    if (caller.sent.size() < sizeof preamble) std::abort();
    std::memcpy(&preamble, caller.sent.data(), sizeof preamble);
    size_t taken = sizeof preamble + preamble.length;
    if (client.peer) {
      if (!caller.proved || client.peer->copy != caller.copy) std::abort();
      taken += sizeof(wire::PeerProof);
    } else {
      control::Hello hello;
      if (preamble.length > kMaxClientHelloBytes || !hello.ParseFromString(client.hello) ||
          !hello.token().empty())
        std::abort();
      if (hello.tenant() != shown.tenant || client.host.size() > 256) std::abort();
      check_resume(client, hello);
    }
    check_rest(caller, client.descriptor, taken);
    ::close(client.descriptor);
  }

  static void check_resume(const Client& client, const control::Hello& hello) {
    if (client.resume.has_value() != !hello.resume_proof().empty()) std::abort();
    if (client.session_id != hello.session_id() || client.bulk_token != hello.bulk_token()) std::abort();
    if (client.resume &&
        (client.resume->proof != hello.resume_proof() || client.resume->link != hello.bulk_link() ||
         client.resume->attempt != hello.resume_attempt() ||
         client.resume->received != hello.resume_received()))
      std::abort();
  }

  // The bytes behind the hello must be readable by the connection's next owner.
  static void check_rest(const Caller& caller, int descriptor, size_t taken) {
    if (caller.with_descriptor) return;
    std::string rest;
    char bytes[4096];
    for (ssize_t got; (got = ::recv(descriptor, bytes, sizeof bytes, MSG_DONTWAIT)) > 0;)
      rest.append(bytes, static_cast<size_t>(got));
    if (caller.sent.size() < taken || caller.sent.substr(taken) != rest) std::abort();
  }

  void denied(Client client, const Refusal& refusal) {
    if (client.descriptor < 0 || refusal.reason.empty()) std::abort();
    if (input_.below(2) == 0)
      door_.door().refuse(std::move(client), refusal);
    else
      door_.door().drop(std::move(client));
  }

  fuzz::Input input_;
  fuzz::FakeDoor& door_;
  const int file_;
  std::vector<Caller> callers_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::quiet_protobuf();
  for (const uint32_t scheme : {0, 1, 2}) static_cast<void>(door_of(scheme));
  const int before = fuzz::next_descriptor();
  {
    Attack attack(fuzz::Input(data, size));
    attack.run();
  }
  if (fuzz::next_descriptor() != before) std::abort();
  return 0;
}
