// Fuzzes connections to a TLS port of poold's Acceptor: real handshakes, hellos split into arbitrary records,
// with bytes behind them in the same or the next record, bytes that are not TLS before, within and after the
// handshake, among them hellos and proofs of other servers, closed at any time. The input is a sequence of
// calls.
//
// A hello is admitted only if it ends its record, because the bytes behind it would be lost when the
// connection is handed over. Handshake steps run on this thread, in place of
// server/poold/acceptor/tls_handshake_queue.cc.
#include <algorithm>
#include <asio/post.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "protocol/wire/frame.h"
#include "server/poold/acceptor/tls_handshake_queue.h"
#include "tests/fuzz/fake_door.h"
#include "tests/fuzz/fake_workers.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/quiet_protobuf.h"
#include "tests/support/certificates.h"

namespace gpupool::server {

TlsHandshakeQueue::TlsHandshakeQueue(asio::io_context& context) : context_(context), thread_(1) {}

void TlsHandshakeQueue::post(Step step) {
  waiting_.push_back(std::move(step));
  asio::post(context_, [this] { start_next(); });
}

bool TlsHandshakeQueue::cancel(const void* owner) {
  return std::erase_if(waiting_, [owner](const Step& step) { return step.owner == owner; }) != 0;
}

void TlsHandshakeQueue::start_next() {
  if (waiting_.empty()) return;
  const auto chosen = next();
  Step step = std::move(*chosen);
  waiting_.erase(chosen);
  step.work();
  step.done();
}

std::list<TlsHandshakeQueue::Step>::iterator TlsHandshakeQueue::next() {
  return waiting_.begin();
}

}  // namespace gpupool::server

using namespace gpupool;
using namespace gpupool::server;
using transport::tls::Stream;

namespace {

constexpr int kDays = 3650;

struct World {
  testing::Authority authority{"authority", kDays};
  std::shared_ptr<const transport::tls::Context> client;
  fuzz::FakeDoor door{"tls"};

  World() {
    const auto server = authority.sign("server", "DNS:localhost", kDays);
    const auto program = authority.sign("program", "", kDays);
    auto context = transport::tls::Context::server(
        {.ca = authority.certificate(), .certificate = server.certificate, .key = server.key, .secret = {}});
    auto other = transport::tls::Context::client({.ca = authority.certificate(),
                                                  .certificate = program.certificate,
                                                  .key = program.key,
                                                  .secret = {}});
    if (!context || !other) std::abort();
    door.door().use_tls(std::move(*context));
    client = std::move(*other);
  }
};

World& world() {
  static auto* const made = new World;
  return *made;
}

struct Caller {
  int end = -1;                    // -1: closed
  std::unique_ptr<Stream> stream;  // null: does not use TLS
  std::string sent;                // bytes sent in records, before any raw bytes
  std::vector<size_t> record_ends;
  bool raw = false;                          // has sent bytes outside TLS
  std::optional<wire::PeerMac> channel_key;  // as a server that has proved that it holds the copy's key
};

template <class Struct>
std::string bytes_of(const Struct& one) {
  return {reinterpret_cast<const char*>(&one), sizeof one};
}

class Attack {
 public:
  explicit Attack(fuzz::Input input) : input_(input), door_(world().door) {
    door_.on_admit = [this](Client client, const Credentials& shown) { admitted(std::move(client), shown); };
    door_.on_deny = [this](Client client, const Refusal& refusal) {
      door_.door().refuse(std::move(client), refusal);
    };
  }
  ~Attack() {
    for (Caller& caller : callers_) hang_up(caller);
    door_.finish();
  }

  void run() {
    connect(true);
    for (int calls = 0; !input_.empty() && calls < 64; ++calls) {
      call();
      door_.loop().settle();
    }
  }

 private:
  void call() {
    const uint32_t what = input_.below(10);
    if (what == 0) return connect(input_.below(4) != 3);
    if (what == 1) return door_.loop().pass(std::chrono::milliseconds(input_.below(2) == 0 ? 2'000 : 10'000));
    Caller& its = caller();
    switch (what) {
      case 2: return static_cast<void>(open(its));
      case 3: return say_hello(its);
      case 4: return send_record(its, input_.text());
      case 5: return send_raw(its, input_.text());
      case 6:
        if (its.stream) its.stream->end();
        return;
      case 7: return hang_up(its);
      case 8: return connect_as_server(its);
      default: return send_raw(its, bytes_of(wire::Preamble{}));
    }
  }

  Caller& caller() { return callers_[input_.below(static_cast<uint32_t>(callers_.size()))]; }
  void connect(bool tls) {
    if (callers_.size() >= 4) return;
    Caller made;
    made.end = door_.connect("caller:" + std::to_string(callers_.size()));
    if (tls) {
      auto stream = Stream::client(world().client, made.end, "localhost");
      if (!stream) std::abort();
      made.stream = std::move(*stream);
    }
    callers_.push_back(std::move(made));
  }
  void hang_up(Caller& caller) {
    caller.stream.reset();
    if (caller.end >= 0) ::close(std::exchange(caller.end, -1));
  }
  // Runs the whole handshake, which fails if other bytes were sent before.
  bool open(Caller& caller) {
    for (int step = 0; caller.stream && !caller.stream->is_open() && step < 8; ++step) {
      if (!caller.stream->open()) return false;
      door_.loop().settle();
    }
    return caller.stream && caller.stream->is_open();
  }
  void send_record(Caller& caller, const std::string& bytes) {
    if (bytes.empty() || !open(caller)) return;
    const auto sent = caller.stream->send_some(std::as_bytes(std::span(bytes)));
    if (!sent || *sent != bytes.size()) return;
    caller.sent += bytes;
    caller.record_ends.push_back(caller.sent.size());
  }
  void send_raw(Caller& caller, const std::string& bytes) {
    if (caller.end < 0) return;
    caller.raw = true;
    static_cast<void>(::send(caller.end, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
  }
  // Does what another server does, perhaps with a wrong key.
  void connect_as_server(Caller& caller) {
    if (caller.end < 0) return;
    const uint8_t copy = input_.get<uint8_t>();
    wire::PeerNonce nonce;
    nonce.fill(input_.get<uint8_t>());
    const auto hello = peers::make_hello(nonce, fuzz::FakeDoor::kSession, copy);
    send_raw(caller, bytes_of(wire::Preamble{.protocol_version = wire::kPeerProtocolVersion,
                                             .length = sizeof hello}) +
                         bytes_of(hello));
    door_.loop().settle();
    struct {
      wire::Preamble preamble;
      wire::PeerAnswer answer;
    } got;
    if (::recv(caller.end, &got, sizeof got, MSG_DONTWAIT) != sizeof got ||
        got.preamble.protocol_version != wire::kPeerProtocolVersion)
      return;
    const uint32_t how = input_.below(4);
    const auto key = fuzz::FakeDoor::key(how == 0 ? copy + 1 : copy);
    const auto channel = how == 1 ? peers::Channel::plain : peers::Channel::encrypted;
    if (how > 1) caller.channel_key = peers::channel_key(key, nonce, got.answer.nonce);
    send_raw(caller, bytes_of(wire::PeerProof{
                         peers::prove(key, peers::Side::connecting, channel, nonce, got.answer.nonce)}));
  }
  void say_hello(Caller& caller) {
    control::Hello hello;
    hello.set_tenant(input_.text());
    const std::string body = hello.SerializeAsString();
    const wire::Preamble preamble{.length = static_cast<uint32_t>(body.size())};
    const std::string bytes =
        std::string(reinterpret_cast<const char*>(&preamble), sizeof preamble) + body + input_.text();
    const size_t cut = std::min<size_t>(input_.get<uint8_t>(), bytes.size());
    send_record(caller, bytes.substr(0, cut));
    if (input_.below(2) == 1) door_.loop().settle();
    send_record(caller, bytes.substr(cut));
  }

  void admitted(Client client, const Credentials& shown) {
    const Caller& caller = callers_[std::stoul(client.address.substr(client.address.find(':') + 1))];
    if (client.peer) {
      if (client.tls || client.transport != "tls" || caller.channel_key != client.peer->channel_key)
        std::abort();
      return static_cast<void>(::close(client.descriptor));
    }
    control::Hello hello;
    if (!client.tls || !hello.ParseFromString(client.hello) || hello.tenant() != shown.tenant) std::abort();
    if (shown.certificate_names != std::vector<std::string>{"program"}) std::abort();
    wire::Preamble preamble;
    if (caller.sent.size() < sizeof preamble) std::abort();
    std::memcpy(&preamble, caller.sent.data(), sizeof preamble);
    if (std::count(caller.record_ends.begin(), caller.record_ends.end(), sizeof preamble + preamble.length) ==
        0)
      std::abort();
    // Both sides must have the secret with which the worker continues.
    const auto ours = client.tls->secret();
    if (!ours || (caller.stream && *caller.stream->secret() != *ours)) std::abort();
    client.tls->end();
    ::close(client.descriptor);
  }

  fuzz::Input input_;
  fuzz::FakeDoor& door_;
  std::vector<Caller> callers_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::quiet_protobuf();
  static_cast<void>(world());
  const int before = fuzz::next_descriptor();
  {
    Attack attack(fuzz::Input(data, size));
    attack.run();
  }
  if (fuzz::next_descriptor() != before) std::abort();
  return 0;
}
