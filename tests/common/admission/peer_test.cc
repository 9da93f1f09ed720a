#include "common/admission/peer.h"

#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/catch.h"

using gpupool::peer_of;
using gpupool::user_of;

TEST_CASE("a peer is an IPv4 address, or the /64 of an IPv6 address, without the port") {
  CHECK(peer_of("10.0.0.1:4321") == "10.0.0.1");
  CHECK(peer_of("10.0.0.1") == "10.0.0.1");
  CHECK(peer_of("[2001:db8:1:2:3:4:5:6]:4321") == "2001:db8:1:2::/64");
  CHECK(peer_of("2001:db8:1:2:ffff::") == "2001:db8:1:2::/64");
  CHECK(peer_of("[::1]:1") == "::/64");
  CHECK(peer_of("[fe80::1%eth0]:1") == "fe80::/64");
  CHECK(peer_of("[::ffff:10.0.0.1]:4321") == "10.0.0.1");
  CHECK(peer_of("?") == "?");
  CHECK(peer_of("") == "");
}

TEST_CASE("the peer of a Unix socket is the user at its other end") {
  int sockets[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
  CHECK(user_of(sockets[0]) == ::getuid());
  CHECK(peer_of("shm://@x", sockets[0]) == "user " + std::to_string(::getuid()));
  ::close(sockets[0]);
  ::close(sockets[1]);
  const int other = ::socket(AF_INET, SOCK_STREAM, 0);
  CHECK_FALSE(user_of(other));
  CHECK(peer_of("10.0.0.1:1", other) == "10.0.0.1");
  ::close(other);
}
