// Tests connections to poold beside the sessions, and the small parts that connecting needs: the address
// range that both sides agree on, the numeric address of a server, and the cache of replies.
#include "client/session/poold_connection.h"

#include "client/memory/address_offer.h"
#include "client/process/identity.h"
#include "client/session/peer_address.h"
#include "client/session/reply_cache.h"
#include "tests/client/fake_session.h"
#include "tests/support/catch.h"
#include "tests/support/contains.h"
#include "tests/support/device_addresses.h"
#include "tests/support/processes.h"

using namespace gpupool;
using namespace gpupool::client;
using namespace gpupool::client::test;
using namespace gpupool::testing;
using Catch::Matchers::ContainsSubstring;

namespace {

Result<std::unique_ptr<transport::Connection>> connect(const LeasedServer& server,
                                                       std::chrono::milliseconds patience,
                                                       hello::HelloReply* reply) {
  Settings settings = test_settings();
  settings.tenant = "alice";
  settings.token = "own token";
  hello::Hello hello = introduction();
  hello.monitor = true;
  return connect_to_poold(settings, server, hello, patience, reply);
}

std::array<uint8_t, 16> mapped(uint8_t a, uint8_t b, uint8_t c, uint8_t d) {
  return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d};
}

}  // namespace

TEST_CASE("poold connection: says who asks, with the lease's token if there is one") {
  FakeWorker worker;
  worker.offer.server_version = "1.2.3";
  hello::HelloReply reply;
  REQUIRE(connect({worker.endpoint(), ""}, kPatience, &reply));
  CHECK(reply.server_version == "1.2.3");
  transport::Endpoint over_rdma = worker.endpoint();
  over_rdma.scheme = "rdma";  // this connection stays on TCP
  REQUIRE(connect({over_rdma, "lease token"}, kPatience, &reply));
  const auto hellos = worker.hellos();
  REQUIRE(hellos.size() == 2);
  CHECK(hellos[0].tenant == "alice");
  CHECK(hellos[0].token == "own token");
  CHECK(hellos[0].monitor);
  CHECK(hellos[1].token == "lease token");
}

TEST_CASE("poold connection: fails with the reason of a rejection") {
  FakeWorker worker;
  worker.offer.status = hello::Status::denied;
  worker.offer.reason = "unknown token";
  hello::HelloReply reply;
  const auto connection = connect({worker.endpoint(), ""}, kPatience, &reply);
  REQUIRE_FALSE(connection);
  CHECK(connection.error().code == ErrorCode::refused);
  CHECK(connection.error().message == "refused: unknown token");
}

TEST_CASE("poold connection: gives up a server that does not answer") {
  const auto listener = transport::listen({"tcp", "127.0.0.1", 0}, {});
  REQUIRE(listener);
  hello::HelloReply reply;
  const auto connection = connect({(*listener)->endpoint(), ""}, std::chrono::seconds(2), &reply);
  REQUIRE_FALSE(connection);
  CHECK_THAT(connection.error().message, ContainsSubstring("no answer to the hello"));
}

TEST_CASE("identity: names this process and its PID namespace") {
  const hello::Hello hello = introduction();
  CHECK(hello.pid == ::getpid());
  CHECK(hello.program == "client_poold_connection_test");
  CHECK_FALSE(hello.host.empty());
  CHECK_THAT(hello.pid_space, ContainsSubstring("pid:["));
  CHECK_FALSE(hello.client_version.empty());
  CHECK(hello.token.empty());
}

TEST_CASE("address offer: asks for the next free range until one is free on both sides") {
  constexpr uint64_t kSize = 64u << 20, kGranule = 2u << 20;
  constexpr uint64_t kBase = kDeviceAddresses + (uint64_t{128} << 30);  // beyond those of FakeWorker
  std::vector<wire::MoveAddresses> asked;
  AddressSpace first, second, third;
  const auto never = [](const wire::MoveAddresses&) -> std::optional<wire::AddressRange> {
    FAIL("asked although the range is free");
    return std::nullopt;
  };
  REQUIRE(agree_on_addresses(first, {kBase, kSize}, kGranule, never));
  CHECK(first.base() == kBase);
  REQUIRE(agree_on_addresses(second, {kBase + kSize, kSize}, kGranule, never));
  REQUIRE(agree_on_addresses(third, {kBase, kSize}, kGranule, [&](const wire::MoveAddresses& request) {
    asked.push_back(request);
    // The server cannot have the first range that it is asked for.
    return std::optional(asked.size() == 1 ? wire::AddressRange{kBase, kSize}
                                           : wire::AddressRange{request.preferred_base, request.size});
  }));
  REQUIRE(asked.size() == 2);
  CHECK(asked[0].preferred_base == kBase + 2 * kSize);  // not the second space's
  CHECK(asked[0].size == kSize);
  CHECK(third.base() == kBase + 2 * kSize);
}

TEST_CASE("address offer: an empty offer is an error") {
  AddressSpace addresses;
  const auto agreed = agree_on_addresses(addresses, {0x3100'0000'0000, 0}, 2u << 20,
                                         [](const auto&) { return std::optional<wire::AddressRange>{}; });
  REQUIRE_FALSE(agreed);
  CHECK(agreed.error().code == ErrorCode::unavailable);
}

TEST_CASE("peer address: the connection's address, else the configured one if it is numeric") {
  CHECK(numeric_address("10.1.0.5:9700", "gpu.example") == mapped(10, 1, 0, 5));
  CHECK(numeric_address("@gpupool", "192.168.0.1") == mapped(192, 168, 0, 1));
  CHECK_FALSE(numeric_address("@gpupool", "gpu.example"));
  CHECK_FALSE(numeric_address("", ""));
  const auto six = numeric_address("[fd00::5]:9700", "");
  REQUIRE(six);
  CHECK((*six)[0] == 0xfd);
  CHECK((*six)[15] == 5);
}

TEST_CASE("reply cache: replies belong to a request, an id and a context") {
  ReplyCache cache;
  const wire::Buffer request(3, std::byte{1}), longer(4, std::byte{1}), reply(2, std::byte{9});
  const std::string key = ReplyCache::key(5, 7, request);
  CHECK_FALSE(cache.find(key));
  cache.keep(key, reply);
  CHECK(cache.find(key) == reply);
  CHECK_FALSE(cache.find(ReplyCache::key(6, 7, request)));
  CHECK_FALSE(cache.find(ReplyCache::key(5, 8, request)));
  CHECK_FALSE(cache.find(ReplyCache::key(5, 7, longer)));
  cache.keep(key, request);
  CHECK(cache.find(key) == request);
  cache.forget();
  CHECK_FALSE(cache.find(key));
}

TEST_CASE("reply cache: does not grow without end") {
  ReplyCache cache;
  for (int i = 0; i < 5000; ++i) cache.keep(std::to_string(i), wire::Buffer(1));
  CHECK(cache.find("4999"));
  CHECK_FALSE(cache.find("0"));
}
