// Tests that poold answers workers whose connections to other servers it gives up.
// tests/fuzz/fuzz_peer_answers.cc tests what it reads on them, tests/e2e/peers_test.cc the whole.
#include "server/poold/workers/peer_connections.h"

#include <algorithm>
#include <asio/ip/tcp.hpp>
#include <vector>

#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::server;
using asio::ip::tcp;

TEST_CASE("answers each attempt that is given up") {
  asio::io_context context;
  tcp::acceptor silent(context, {asio::ip::address_v4::loopback(), 0});
  wire::PeerTarget target{};
  target.port = silent.local_endpoint().port();
  const auto six =
      asio::ip::make_address_v6(asio::ip::v4_mapped, asio::ip::address_v4::loopback()).to_bytes();
  std::copy(six.begin(), six.end(), target.address.begin());

  PeerConnections connections(context, *Networks::parse("127.0.0.0/8"));
  std::vector<int> answers;
  for (const uint64_t session : {1, 1, 2}) {
    REQUIRE(connections.open(session, target, [&](const PeerConnections::Opened& opened) {
      answers.push_back(opened.descriptor);
      connections.drop(2);  // as if its worker could not be told
    }));
  }
  CHECK(connections.has_attempts());
  connections.give_up();
  CHECK(answers == std::vector<int>{-1, -1, -1});
  CHECK_FALSE(connections.has_attempts());
  context.run();  // returns: nothing is pending
  CHECK(answers.size() == 3);
}
