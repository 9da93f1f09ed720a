#include "protocol/transport/loopback.h"
#include "protocol/transport/transport.h"
#include "tests/support/catch.h"

using namespace gpupool;
using transport::Endpoint;

TEST_CASE("parses and formats addresses") {
  struct Case {
    const char* text;
    const char* host;
    uint16_t port;
    const char* scheme = "tcp";
  };
  const auto good = GENERATE(
      Case{"tcp://127.0.0.1:4321", "127.0.0.1", 4321},
      Case{"tcp://gpu-7.example.org:1", "gpu-7.example.org", 1}, Case{"tcp://[::1]:65535", "::1", 65535},
      Case{"tcp://[fe80::1%eth0]:7", "fe80::1%eth0", 7}, Case{"tcp://localhost:0", "localhost", 0},
      Case{"rdma://10.77.0.2:9700", "10.77.0.2", 9700, "rdma"},
      Case{"rdma://[fd00::2]:1", "fd00::2", 1, "rdma"});
  const auto endpoint = Endpoint::parse(good.text);
  REQUIRE(endpoint);
  CHECK(endpoint->scheme == good.scheme);
  CHECK(endpoint->host == good.host);
  CHECK(endpoint->port == good.port);
  CHECK(endpoint->text() == good.text);
}

TEST_CASE("parses socket paths and abstract names") {
  const auto text = GENERATE(as<std::string>(), "shm:///run/gpupool/pool.sock", "shm://@pool",
                             "shm://@gpupool/tcp/::/9700");
  const auto endpoint = Endpoint::parse(text);
  REQUIRE(endpoint);
  CHECK(endpoint->scheme == "shm");
  CHECK(endpoint->host == text.substr(6));
  CHECK(endpoint->text() == text);
}

TEST_CASE("rejects a bad address with its text and the expected form") {
  const auto text = GENERATE(
      as<std::string>(), "", "127.0.0.1:4321", "://h:1", "tcp:/h:1", "tcp://", "tcp://:1", "tcp://h",
      "tcp://h:", "tcp://h:x", "tcp://h:1x", "tcp://h:-1", "tcp://h:65536", "tcp://h:99999999999",
      "tcp://::1:5", "tcp://[::1", "tcp://[::1]", "tcp://[::1]5", "tcp://[]:5", "tcp://h :5", "tcp://a/b:5",
      "rdma://", "rdma://h", "rdma://@h", "rdma:///h", "tcp://h\n:5", "tcp://h: 5", "shm://", "shm://@",
      "shm:///", "shm://pool.sock", "shm:///a b", "shm:///a\n", "shm://h:5", "http://h:80", "pool://h:1");
  const auto endpoint = Endpoint::parse(text);
  REQUIRE_FALSE(endpoint);
  CHECK(endpoint.error().code == ErrorCode::invalid);
  CHECK(endpoint.error().message.find("'" + text + "'") != std::string::npos);
  CHECK(endpoint.error().message.find("tcp://HOST:PORT") != std::string::npos);
  CHECK(endpoint.error().message.find("rdma://HOST:PORT") != std::string::npos);
}

TEST_CASE("rejects pool options in a server's address with a hint") {
  const auto endpoint = Endpoint::parse("tcp://gpu-1:9700?gpus=2");
  REQUIRE_FALSE(endpoint);
  CHECK(endpoint.error().message.find(
            "options after '?' are only valid for pool:// addresses, for example pool://HOST:9800?gpus=2") !=
        std::string::npos);
}

TEST_CASE("a list of servers may mix transports and has no duplicates") {
  const auto endpoints = Endpoint::parse_list("rdma://h:1,tcp://h:1,shm://@h");
  REQUIRE(endpoints);
  REQUIRE(endpoints->size() == 3);
  CHECK((*endpoints)[0].scheme == "rdma");
  CHECK((*endpoints)[2].scheme == "shm");
  CHECK_FALSE(Endpoint::parse_list("rdma://h:1,rdma://h:1"));
}

TEST_CASE("rejects an unknown transport and lists the known ones") {
  const Endpoint endpoint{"pigeon", "loft", 1};
  for (const Error& error :
       {transport::connect(endpoint, {}).error(), transport::listen(endpoint, {}).error(),
        transport::adopt("pigeon", -1, {}).error()}) {
    CHECK(error.code == ErrorCode::invalid);
    CHECK(error.message.find("'pigeon'") != std::string::npos);
    CHECK(error.message.find("tcp") != std::string::npos);
  }
}

TEST_CASE("recognises loopback addresses and localhost but no other names") {
  for (const char* address : {"127.0.0.1", "127.1.2.3:9800", "localhost", "localhost:9800", "::1",
                              "[::1]:9800", "[::1]", "::ffff:127.0.0.1", "[::ffff:127.0.0.2]:1"}) {
    CAPTURE(address);
    CHECK(transport::connects_to_loopback(address));
  }
  for (const char* address :
       {"127.evil.example", "127.evil.example:9800", "127.0.0.1.evil.example:1", "localhost.evil.example:1",
        "127.1", "128.0.0.1", "::2", "[::2]:1", "::ffff:10.0.0.1", "[::1", "", ":", "[]:1",
        "[::1]evil.example:1", "@127.0.0.1"}) {
    CAPTURE(address);
    CHECK_FALSE(transport::connects_to_loopback(address));
  }
  CHECK(transport::is_loopback("127.0.0.1"));
  CHECK_FALSE(transport::is_loopback("localhost"));
}
