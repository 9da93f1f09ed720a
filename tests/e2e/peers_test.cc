// Copies between servers, where the test plays one of the servers: to which addresses poold connects, what it
// sends before the peer has authenticated, and what a peer can do with the key of one copy.
#include <chrono>
#include <fstream>
#include <future>
#include <iterator>
#include <stdexcept>

#include "protocol/calls/handles.h"
#include "protocol/driver/cuda_header.h"
#include "protocol/wire/commands.h"
#include "protocol/wire/copies.h"
#include "tests/e2e/pool.h"
#include "tests/support/catch.h"
#include "tests/support/other_service.h"
#include "tests/support/raw_peer.h"

using namespace gpupool;
using namespace gpupool::testing;
using wire::Command;

namespace {

constexpr uint64_t kContext = cuda::make_handle(cuda::Kind::context, 1, 1);
constexpr uint64_t kSize = 2 * wire::kBulkChunkBytes;
constexpr uint64_t kHalf = wire::kBulkChunkBytes;

// A session with a primary context and kSize bytes of device memory; the test is its client.
struct Session {
  explicit Session(PooldProcess& poold) : endpoint(poold.endpoint()), client(endpoint) {
    reply = client.open();
    send(Command::retain_primary_context, wire::PrimaryContext{kContext, 0, 0}, 0, 0);
    send(Command::map_memory, wire::MapMemory{memory(), kSize, 0, 0});
  }
  uint64_t memory() const { return reply.addresses.base; }
  template <class Body>
  uint64_t send(Command command, const Body& body, uint16_t flags = 0, uint64_t context = kContext) {
    return client.send_command(command, RawClient::bytes_of(body), context, flags);
  }
  uint64_t announce(uint64_t offset = 0, uint64_t bytes = kSize) {
    return send(Command::bulk_to_device, wire::BulkCopy{0, memory() + offset, bytes, bytes, 1, 0, 0});
  }
  wire::CopyKey key(uint64_t copy) const { return peers::copy_key(reply.bulk_token, copy); }
  int32_t copy_to(const wire::PeerTarget& target) {
    const wire::CopyToPeer copy{{0, memory(), kSize, kSize, 1, 0, 0}, target};
    return client.receive_reply_to(send(Command::copy_to_peer, copy, wire::kWantsReply)).header.result;
  }
  std::string read(uint64_t offset, uint64_t bytes) {
    send(Command::copy_from_device, wire::CopyFromDevice{0, memory() + offset, bytes, bytes, 1},
         wire::kWantsReply);
    std::string back;
    while (back.size() < bytes) {
      const Message message = client.receive_message();
      if (message.header.kind == wire::MessageKind::device_data)
        back += message.body.substr(sizeof(wire::DeviceData));
    }
    return back;
  }

  transport::Endpoint endpoint;
  RawClient client;
  hello::HelloReply reply;
};

// A peer's connection for the copy, accepted by the session's worker.
struct PeerLink : RawPeer {
  PeerLink(const Session& session, uint64_t copy) : RawPeer(session.endpoint) {
    const auto said = open(session.reply.session_id, copy, session.key(copy));
    INFO(said.reason);
    REQUIRE(said.status == hello::Status::ok);
  }
  void send_key(uint64_t copy, const wire::CopyKey& key) {
    send(bytes_of(wire::BulkHeader{.length = sizeof key, .flags = wire::kBulkCopyKey, .copy = copy}));
    send(bytes_of(key));
  }
  void send_piece(uint64_t copy, uint64_t offset, char fill) {
    send(bytes_of(wire::BulkHeader{.length = kHalf, .copy = copy, .offset = offset}));
    send(std::string(kHalf, fill));
  }
  bool is_ended() { return await_end().has_value(); }
};

// A target at 127.0.0.1:port whose fields contain text commands for other services.
wire::PeerTarget tempting_target(uint16_t port) {
  wire::PeerTarget target{};
  target.address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
  std::copy_n("\r\nset owned 0 0\r", target.session_id.size(), target.session_id.begin());
  std::copy_n("\r\nFLUSHALL\r\nslaveof evil 1\r\n...", target.key.size(), target.key.begin());
  std::copy_n("\r\nQUIT\r\n", sizeof target.copy, reinterpret_cast<char*>(&target.copy));
  target.port = port;
  return target;
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

template <class Bytes>
std::string_view text_of(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

const std::vector<std::string> kLoopback{"--peers", "127.0.0.0/8"};

// Has a session copy to a service of this manner. Returns what poold has sent there.
std::string said_to(Pool& pool, OtherService::Manner manner) {
  Session session(pool.poold());
  OtherService service(manner);
  const wire::CopyToPeer copy{{0, session.memory(), kSize, kSize, 1, 0, 0}, tempting_target(service.port())};
  const uint64_t asked = session.send(Command::copy_to_peer, copy, wire::kWantsReply);
  std::string said = service.serve();
  if (session.client.receive_reply_to(asked).header.result != CUDA_ERROR_NOT_SUPPORTED)
    throw std::runtime_error("the copy was not refused");
  return said;
}

}  // namespace

TEST_CASE("a server connects for its clients nowhere that its operator has not named") {
  for (const char* const networks : {"", "none", "any", "0.0.0.0/0,::/0", "10.0.0.0/8"}) {
    INFO("--peers " << networks);
    Pool pool({}, *networks ? std::vector<std::string>{"--peers", networks} : std::vector<std::string>{});
    Session session(pool.poold());
    OtherService service(OtherService::Manner::silent);
    wire::PeerTarget target = tempting_target(service.port());
    CHECK(session.copy_to(target) == CUDA_ERROR_NOT_SUPPORTED);
    target.address = {};
    target.address[15] = 1;  // ::1
    CHECK(session.copy_to(target) == CUDA_ERROR_NOT_SUPPORTED);
    target.address = {};  // ::, which the kernel treats as loopback
    CHECK(session.copy_to(target) == CUDA_ERROR_NOT_SUPPORTED);
    CHECK(service.untouched());
    session.client.ping();
  }
}

TEST_CASE("a service that is no poold is told random bytes and nothing of a tenant's choice") {
  Pool pool({}, kLoopback);
  const wire::PeerTarget target = tempting_target(1);
  const auto expect_harmless = [&](const std::string& said) {
    REQUIRE(said.size() == sizeof(wire::Preamble) + sizeof(wire::PeerHello));
    for (size_t part = 0; part + 4 <= target.key.size(); ++part)
      CHECK_FALSE(has(said, text_of(target.key).substr(part, 4)));
    for (size_t part = 0; part + 4 <= target.session_id.size(); ++part)
      CHECK_FALSE(has(said, text_of(target.session_id).substr(part, 4)));
    CHECK_FALSE(has(said, "QUIT"));
  };
  std::vector<std::future<std::string>> answers;  // at the same time, since poold answers late
  for (const auto manner :
       {OtherService::Manner::silent, OtherService::Manner::echoes, OtherService::Manner::talks}) {
    for (int twice = 0; twice < 2; ++twice)
      answers.push_back(std::async(std::launch::async, [&pool, manner] { return said_to(pool, manner); }));
  }
  for (size_t at = 0; at < answers.size(); at += 2) {
    const std::string one = answers[at].get(), other = answers[at + 1].get();
    expect_harmless(one);
    expect_harmless(other);
    CHECK(one.substr(0, sizeof(wire::Preamble)) == other.substr(0, sizeof(wire::Preamble)));
    for (size_t part = sizeof(wire::Preamble); part + 4 <= one.size() - 2 * sizeof(uint32_t); ++part)
      CHECK(one.substr(part, 4) != other.substr(part, 4));
  }
}

TEST_CASE("a client does not learn from a copy to another server what listens where") {
  Pool pool({}, kLoopback);
  constexpr std::chrono::milliseconds kLeast{
      2'900};  // server::PeerConnections::kPatience, less the clock's rounding
  struct Refused {
    int32_t result = 0;
    std::chrono::steady_clock::duration after{};
  };
  const auto ask = [&](uint16_t port) {
    return std::async(std::launch::async, [&pool, port] {
      Session session(pool.poold());
      const auto begun = std::chrono::steady_clock::now();
      const int32_t result = session.copy_to(tempting_target(port));
      const Refused refused{result, std::chrono::steady_clock::now() - begun};
      session.client.ping();
      return refused;
    });
  };
  uint16_t closed = 0;
  {
    const OtherService gone(OtherService::Manner::silent);
    closed = gone.port();
  }
  const OtherService silent(OtherService::Manner::silent);
  std::future<Refused> asked[]{ask(closed), ask(pool.poold().port()),  // a poold without this session
                               ask(silent.port())};
  for (auto& one : asked) {
    const Refused refused = one.get();
    CHECK(refused.result == CUDA_ERROR_NOT_SUPPORTED);
    CHECK(refused.after >= kLeast);
  }
}

TEST_CASE("another server sends the copy whose key it has and no other one") {
  Pool pool;
  Session session(pool.poold());
  const uint64_t first = session.announce(0, kHalf), second = session.announce(kHalf, kHalf),
                 third = session.announce(kHalf, kHalf);
  PeerLink link(session, first);
  SECTION("its own, and later ones with their keys") {
    link.send_piece(first, 0, 'a');
    link.send_key(second, session.key(second));
    link.send_piece(second, 0, 'b');
    link.send_key(third, session.key(third));
    link.send_piece(third, 0, 'c');
    CHECK((session.read(0, kSize) == std::string(kHalf, 'a') + std::string(kHalf, 'c')));
  }
  const auto still_works = [&] {
    CHECK(link.is_ended());
    RawClient own(session.endpoint);
    hello::Hello hello;
    hello.protocol_version = wire::kProtocolVersion;
    hello.session_id = session.reply.session_id;
    hello.bulk_token = session.reply.bulk_token;
    REQUIRE(own.open(hello).status == hello::Status::ok);
    for (const auto& [copy, fill] : {std::pair{first, '1'}, {second, '2'}, {third, '3'}}) {
      own.send(RawClient::bytes_of(wire::BulkHeader{.length = kHalf, .copy = copy, .offset = 0}));
      own.send(std::string(kHalf, fill));
    }
    CHECK((session.read(0, kSize) == std::string(kHalf, '1') + std::string(kHalf, '3')));
  };
  // The server may have closed the connection already.
  const auto try_piece = [&] {
    try {
      link.send_piece(second, 0, 'x');
    } catch (const std::runtime_error&) {
    }
  };
  SECTION("a piece of another copy") {
    try_piece();
    still_works();
  }
  SECTION("another copy with the key of its own") {
    link.send_key(second, session.key(first));
    try_piece();
    still_works();
  }
  SECTION("the key in a handshake for a tls port") {
    RawPeer redirected(session.endpoint);
    CHECK(redirected.open(session.reply.session_id, second, session.key(second), peers::Channel::encrypted)
              .status == hello::Status::denied);
    link.send_key(second, session.key(first));  // as above
    still_works();
  }
  SECTION("the key once more, also on another connection") {
    link.send_key(first, session.key(first));
    CHECK(link.is_ended());
    PeerLink replayed(session, first);
    CHECK(replayed.is_ended());
    still_works();
  }
}

TEST_CASE("no session is joined with the key of a copy or with what another connection has said") {
  Pool pool;
  Session session(pool.poold());
  const uint64_t copy = session.announce();
  const std::string& id = session.reply.session_id;
  const auto denied = [&](const hello::HelloReply& said) {
    INFO(said.reason);
    CHECK(said.status == hello::Status::denied);
  };
  SECTION("another copy's key, and another session's") {
    denied(RawPeer(session.endpoint).open(id, copy + 1, session.key(copy)));
    Session other(pool.poold());
    denied(RawPeer(session.endpoint).open(other.reply.session_id, copy, session.key(copy)));
    denied(RawPeer(session.endpoint).open(id, copy, wire::CopyKey{}));
  }
  SECTION("an id that no session has") {
    RawPeer stranger(session.endpoint);
    stranger.send_hello(std::string(16, 'x'), copy);
    denied(stranger.receive_reply());
  }
  SECTION("a replayed opening") {
    wire::PeerNonce nonce{};
    std::array<uint8_t, 16> name{};
    std::copy_n(id.begin(), name.size(), name.begin());
    const wire::PeerHello hello = peers::make_hello(nonce, name, copy);
    RawPeer first(session.endpoint), second(session.endpoint);
    first.send_hello(hello);
    const auto proof = first.prove(session.key(copy), first.receive_answer());
    second.send_hello(hello);
    (void)second.receive_answer();
    second.send(RawClient::bytes_of(proof));
    denied(second.receive_reply());
    first.send(RawClient::bytes_of(proof));  // the proof is valid on the connection that it was made for
    CHECK(first.receive_reply().status == hello::Status::ok);
  }
  SECTION("the server's own proof, sent back") {
    RawPeer mirror(session.endpoint);
    mirror.send_hello(id, copy);
    mirror.send(RawClient::bytes_of(wire::PeerProof{mirror.receive_answer().proof}));
    denied(mirror.receive_reply());
  }
  SECTION("a client's connection with the key in place of the token") {
    hello::Hello hello;
    hello.protocol_version = wire::kProtocolVersion;
    hello.session_id = id;
    hello.bulk_token = std::string(text_of(session.key(copy)));
    RawClient client(session.endpoint);
    client.send_hello(hello);
    denied(client.receive_reply());
  }
  SECTION("the opening of earlier releases, with the token") {
    hello::Hello hello;
    hello.protocol_version = wire::kProtocolVersion;
    hello.session_id = id;
    hello.bulk_token = session.reply.bulk_token;
    hello.from_peer = true;
    RawClient earlier(session.endpoint);
    earlier.send_hello(hello);
    CHECK(earlier.receive_reply().status == hello::Status::wrong_version);
  }
  session.client.ping();
}

TEST_CASE("servers that ask for copies that there are not are recorded and bounded as clients that may not") {
  const TemporaryFolder folder;
  const std::string audit = folder.path() / "audit.json";
  Pool pool({}, {"--audit-file", audit});
  Session session(pool.poold());
  const bool knows_session = GENERATE(false, true);
  constexpr int kAttempts = 40;
  int answered = 0;
  for (int i = 0; i < kAttempts; ++i) {
    RawPeer peer(session.endpoint);
    peer.send_hello(knows_session ? session.reply.session_id : std::string(16, 'x'), 1);
    if (knows_session) peer.send(RawPeer::bytes_of(peer.prove({}, peer.receive_answer())));
    hello::HelloReply reply;
    try {
      reply = peer.receive_reply();
    } catch (const std::runtime_error&) {  // closed without a reply
      continue;
    }
    CHECK(reply.status == hello::Status::denied);
    ++answered;
  }
  CHECK(answered >= 10);
  CHECK(answered < kAttempts);
  const auto recorded = [&] {
    std::ifstream file(audit);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  CHECK(eventually([&] { return !lines_with(recorded(), "sessions_denied_too").empty(); }));
  CHECK(lines_with(recorded(), "\"session_denied\"").size() == static_cast<size_t>(answered));
  session.client.ping();
}

TEST_CASE("a session is adopted only by the holder of the key of its adoption and only once") {
  Pool pool;
  const transport::Endpoint endpoint = pool.poold().endpoint();
  RawClient client(endpoint);
  hello::Hello hello = test_hello();
  hello.can_resume = hello.can_migrate = true;
  const hello::HelloReply reply = client.open(hello);
  const uint64_t adoption = client.send_command(Command::adopt_session, {}, 0, wire::kWantsReply);
  const auto key = [&](uint64_t copy) { return peers::copy_key(reply.bulk_token, copy); };
  const auto opens = [&](uint64_t copy, const wire::CopyKey& shown) {
    try {
      return RawPeer(endpoint).open(reply.session_id, copy, shown).status == hello::Status::ok;
    } catch (const std::runtime_error&) {  // closed without an answer
      return false;
    }
  };
  CHECK_FALSE(opens(adoption, {}));
  CHECK_FALSE(opens(adoption, key(adoption + 1)));
  CHECK_FALSE(opens(adoption + 1, key(adoption)));
  RawPeer source(endpoint);
  REQUIRE(source.open(reply.session_id, adoption, key(adoption)).status == hello::Status::ok);
  CHECK_FALSE(opens(adoption, key(adoption)));  // it has its source
  source.close();
  // Without what it was promised the session ends, and nobody can begin again.
  CHECK(client.await_end().value_or("").find("not adopted") != std::string::npos);
  CHECK(eventually([&] { return !opens(adoption, key(adoption)); }));
}

TEST_CASE("a session whose client leaves during its adoption ends at once") {
  const bool connected = GENERATE(false, true);
  Pool pool;
  const transport::Endpoint endpoint = pool.poold().endpoint();
  RawClient client(endpoint);
  hello::Hello hello = test_hello();
  hello.can_resume = hello.can_migrate = true;
  const hello::HelloReply reply = client.open(hello);
  const uint64_t adoption = client.send_command(Command::adopt_session, {}, 0, wire::kWantsReply);
  RawPeer source(endpoint);
  const auto key = peers::copy_key(reply.bulk_token, adoption);
  if (connected) REQUIRE(source.open(reply.session_id, adoption, key).status == hello::Status::ok);
  client.close();
  CHECK(pool.poold().await_log("session_cannot_migrate"));  // not: it was killed because it did not notice
  CHECK(pool.poold().await_log("session_ended"));
}
