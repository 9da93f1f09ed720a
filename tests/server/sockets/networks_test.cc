#include "server/sockets/networks.h"

#include "tests/support/catch.h"

using gpupool::server::Networks;

namespace {

bool contains(const std::string& networks, const char* address) {
  return Networks::parse(networks)->contains(asio::ip::make_address(address));
}

}  // namespace

TEST_CASE("networks hold the addresses in them and no others") {
  const std::string networks = "10.1.0.0/16,192.0.2.7,fd00::/8";
  for (const char* address : {"10.1.0.0", "10.1.255.255", "192.0.2.7", "fd12::1", "::ffff:10.1.2.3"})
    CHECK(contains(networks, address));
  for (const char* address :
       {"10.2.0.0", "10.0.255.255", "192.0.2.8", "fe80::1", "::1", "127.0.0.1", "::ffff:127.0.0.1"}) {
    CAPTURE(address);
    CHECK_FALSE(contains(networks, address));
  }
  CHECK_FALSE(Networks::parse(networks)->none());
}

TEST_CASE("'any' contains all networks and 'none' contains no network") {
  CHECK(contains("any", "192.0.2.1"));
  CHECK(contains("any", "fd00::1"));
  CHECK_FALSE(contains("none", "192.0.2.1"));
  CHECK(Networks::parse("none")->none());
}

TEST_CASE("loopback and link-local addresses are only in networks that name them") {
  for (const char* address : {"127.0.0.1", "127.1.2.3", "169.254.169.254", "::1", "fe80::1",
                              "::ffff:127.0.0.1", "::ffff:169.254.169.254", "0.0.0.0", "::", "224.0.0.1"}) {
    CAPTURE(address);
    for (const char* networks : {"any", "0.0.0.0/0,::/0", "126.0.0.0/7,169.0.0.0/8,fe00::/8"})
      CHECK_FALSE(contains(networks, address));
  }
  CHECK(contains("127.0.0.0/8", "127.1.2.3"));
  CHECK(contains("127.0.0.1", "::ffff:127.0.0.1"));
  CHECK(contains("::1", "::1"));
  CHECK(contains("169.254.0.0/16,fe80::/10", "169.254.1.1"));
  CHECK(contains("fe80::/10", "fe80::1"));
  CHECK_FALSE(contains("127.0.0.1", "127.0.0.2"));
}

TEST_CASE("text that is not a network is refused") {
  for (const char* list : {"", ",", "10.0.0.0/33", "10.0.0.0/16,", "host", "10.0.0/8", "any,none"}) {
    CAPTURE(list);
    CHECK_FALSE(Networks::parse(list).ok());
  }
}
