// Tests which server may send memory directly to which: each row of the rule, each fact that the target
// needs, and how a server's hello describes it.
#include "client/session/peer_route.h"

#include <algorithm>
#include <ostream>

#include "tests/support/catch.h"

namespace gpupool::client {

static std::ostream& operator<<(std::ostream& out, PeerRoute route) {
  return out << static_cast<int>(route);
}

namespace {

constexpr bool kSameServer = true, kOtherServer = false;

PeerEnd end(const std::string& scheme, bool encrypts) {
  PeerEnd made{scheme, encrypts};
  made.address.emplace();
  made.address->fill(7);
  made.port = 9700;
  made.session_id = std::string(16, 'i');
  made.token = "token";
  made.protocol = wire::kPeerProtocolVersion;
  return made;
}

struct RuleCase {
  const char* source;
  bool source_encrypts;
  const char* target;
  bool target_encrypts;
  bool same_server;
  PeerRoute route;
};

}  // namespace

TEST_CASE("peer route: depends on both connections, on both servers' encryption and on the host") {
  using enum PeerRoute;
  const RuleCase cases[] = {
      {"tcp", false, "tcp", false, kOtherServer, plain},
      {"tcp", true, "tcp", true, kOtherServer, plain},
      {"tls", true, "tcp", true, kOtherServer, plain},
      {"shm", false, "tcp", false, kOtherServer, plain},
      {"tcp", false, "tcp", false, kSameServer, plain},

      {"tls", true, "tls", true, kOtherServer, encrypted},
      {"tls", false, "tls", true, kOtherServer, source_cannot_encrypt},
      {"tls", false, "tls", false, kOtherServer, source_cannot_encrypt},
      {"tls", true, "tls", false, kOtherServer, target_cannot_encrypt},

      {"tls", true, "tls", true, kSameServer, encrypted},
      {"tls", false, "tls", true, kSameServer, plain},
      {"tls", true, "tls", false, kSameServer, plain},
      {"tls", false, "tls", false, kSameServer, plain},

      {"tcp", true, "tls", true, kOtherServer, exposes_key},
      {"tcp", false, "tls", false, kOtherServer, exposes_key},
      {"shm", true, "tls", true, kOtherServer, exposes_key},
      {"tcp", true, "tls", true, kSameServer, exposes_key},

      {"tls", true, "shm", true, kOtherServer, unreachable},
      {"shm", true, "shm", true, kSameServer, unreachable},
  };
  for (const RuleCase& one : cases) {
    INFO(one.source << (one.source_encrypts ? " encrypts, " : ", ") << one.target
                    << (one.target_encrypts ? " encrypts" : "") << (one.same_server ? ", same server" : ""));
    const PeerRoute route = choose_peer_route(end(one.source, one.source_encrypts),
                                              end(one.target, one.target_encrypts), one.same_server);
    CHECK(route == one.route);
    CHECK(is_usable(route) == (one.route == plain || one.route == encrypted));
  }
}

TEST_CASE("peer route: leads only to a session to which other servers can connect") {
  struct Change {
    const char* what;
    void (*make)(PeerEnd&);
  };
  const Change changes[] = {
      {"no numeric address", [](PeerEnd& target) { target.address.reset(); }},
      {"no token", [](PeerEnd& target) { target.token.clear(); }},
      {"no session id", [](PeerEnd& target) { target.session_id.clear(); }},
      {"a longer session id", [](PeerEnd& target) { target.session_id.push_back('i'); }},
      {"no protocol", [](PeerEnd& target) { target.protocol = 0; }},
      {"an older protocol", [](PeerEnd& target) { target.protocol -= 1; }},
      {"a newer protocol", [](PeerEnd& target) { target.protocol += 1; }},
  };
  for (const char* const scheme : {"tcp", "tls"}) {
    const PeerEnd source = end(scheme, true);
    CHECK(is_usable(choose_peer_route(source, source, kOtherServer)));
    for (const Change& change : changes) {
      INFO(scheme << ", " << change.what);
      PeerEnd target = source;
      change.make(target);
      CHECK(choose_peer_route(source, target, kOtherServer) == PeerRoute::unreachable);
      CHECK(choose_peer_route(source, target, kSameServer) == PeerRoute::unreachable);
    }
  }
}

TEST_CASE("peer route: says that a server cannot encrypt before it says that it cannot be reached") {
  PeerEnd target = end("tls", false);
  target.token.clear();
  CHECK(choose_peer_route(end("tls", true), target, kOtherServer) == PeerRoute::target_cannot_encrypt);
}

TEST_CASE("peer route: the source needs neither an address nor a token") {
  CHECK(choose_peer_route({.scheme = "tcp"}, end("tcp", false), kOtherServer) == PeerRoute::plain);
  CHECK(choose_peer_route({.scheme = "tls", .encrypts = true}, end("tls", true), kOtherServer) ==
        PeerRoute::encrypted);
}

TEST_CASE("peer route: a session's end is described by its hello and the address that was reached") {
  hello::HelloReply reply;
  reply.session_id = std::string(16, 'i');
  reply.bulk_token = "token";
  reply.peer_protocol = wire::kPeerProtocolVersion;
  const auto described = [&](const std::string& scheme, const std::string& peer) {
    return make_peer_end(reply, {scheme, "gpu.example", 9700}, peer);
  };
  for (const bool encrypts : {false, true}) {
    reply.encrypts_peers = encrypts;
    const PeerEnd made = described("tls", "192.0.2.7:40000");
    CHECK(made.scheme == "tls");
    CHECK(made.encrypts == encrypts);
    REQUIRE(made.address);
    CHECK(std::equal(made.address->begin() + 12, made.address->end(),
                     std::initializer_list<uint8_t>{192, 0, 2, 7}.begin()));
    CHECK(made.port == 9700);  // of the address that the user has named
    CHECK(made.session_id == reply.session_id);
    CHECK(made.token == "token");
    CHECK(made.protocol == wire::kPeerProtocolVersion);
  }
  CHECK(described("tcp", "192.0.2.7:9700").scheme == "tcp");
  CHECK(described("rdma", "192.0.2.7:9700").scheme == "tcp");  // servers connect to the tcp port
  CHECK(described("shm", "@gpupool").scheme == "shm");
  CHECK_FALSE(described("tcp", "@gpupool").address);
}

TEST_CASE("peer route: describes the target without the copy and its key") {
  const PeerEnd target = end("tls", true);
  for (const PeerRoute route : {PeerRoute::plain, PeerRoute::encrypted}) {
    const wire::PeerTarget made = make_peer_target(target, route);
    CHECK(made.address == *target.address);
    CHECK(std::equal(target.session_id.begin(), target.session_id.end(), made.session_id.begin()));
    CHECK(made.port == 9700);
    CHECK(made.tls == (route == PeerRoute::encrypted ? 1 : 0));
    CHECK(made.rdma == 0);
    CHECK(made.copy == 0);
    CHECK(made.key == wire::CopyKey{});
    CHECK(wire::is_well_formed(made));
  }
}

}  // namespace gpupool::client
