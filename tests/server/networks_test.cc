#include "server/networks.h"

#include "tests/support/catch.h"

using gpupool::server::Networks;

TEST_CASE("networks hold the addresses in them and no others") {
  const auto networks = Networks::parse("10.1.0.0/16,192.0.2.7,fd00::/8");
  REQUIRE(networks.ok());
  for (const char* host : {"10.1.0.0", "10.1.255.255", "192.0.2.7", "fd12::1", "::ffff:10.1.2.3"}) CHECK(networks->contains(host));
  for (const char* host : {"10.2.0.0", "10.0.255.255", "192.0.2.8", "fe80::1", "::1", "127.0.0.1", "localhost", "", "10.1.0.0/16"}) {
    CAPTURE(host);
    CHECK_FALSE(networks->contains(host));
  }
  CHECK_FALSE(networks->none());
}

TEST_CASE("any network, and none") {
  CHECK(Networks::parse("any")->contains("192.0.2.1"));
  CHECK(Networks::parse("any")->contains("some.host"));
  CHECK_FALSE(Networks::parse("none")->contains("127.0.0.1"));
  CHECK(Networks::parse("none")->none());
}

TEST_CASE("what is no network is told") {
  for (const char* list : {"", ",", "10.0.0.0/33", "10.0.0.0/16,", "host", "10.0.0/8", "any,none"}) {
    CAPTURE(list);
    CHECK_FALSE(Networks::parse(list).ok());
  }
}
