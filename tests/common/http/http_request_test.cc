#include "common/http/http_request.h"

#include "tests/support/catch.h"

using namespace gpupool;

namespace {

const std::string kGood = "GET /metrics?name=x HTTP/1.1\r\nHost: gpu-host:9701\r\nAccept: */*\r\n\r\n";

int refusal(const std::string& bytes) {
  const auto request = read_request(bytes);
  REQUIRE(request);
  return request->refusal;
}

}  // namespace

TEST_CASE("a GET is read with its path, without its query") {
  const auto request = read_request(kGood);
  REQUIRE(request);
  CHECK(request->refusal == 0);
  CHECK(request->path == "/metrics");
  CHECK_FALSE(request->head);
  CHECK(read_request("HEAD / HTTP/1.0\r\n\r\n")->head);
  CHECK(read_request("HEAD / HTTP/1.0\r\n\r\n")->refusal == 0);
  CHECK(read_request(kGood + "more bytes")->refusal == 0);
}

TEST_CASE("the host is read without the spaces around it") {
  CHECK(read_request(kGood)->host == "gpu-host:9701");
  CHECK(read_request("GET / HTTP/1.1\r\nhOST:x \t\r\n\r\n")->host == "x");
  CHECK(read_request("GET / HTTP/1.1\r\nHost:\r\n\r\n")->host.empty());
  CHECK(read_request("GET / HTTP/1.0\r\n\r\n")->host.empty());
}

TEST_CASE("a bearer token is read from Authorization") {
  const auto token = [](const std::string& value) {
    return bearer_token(
        read_request("GET / HTTP/1.1\r\nHost: x\r\nauthorization: " + value + "\r\n\r\n")->authorization);
  };
  CHECK(token("Bearer abc.-_~+/=") == "abc.-_~+/=");
  CHECK(token("bearer  abc \t") == "abc");
  CHECK(token("Bearer").empty());
  CHECK(token("Basic abc").empty());
  CHECK(token("Bearerabc").empty());
  CHECK(bearer_token("").empty());
  CHECK(refusal("GET / HTTP/1.1\r\nHost: x\r\nAuthorization: a\r\nAuthorization: b\r\n\r\n") == 400);
}

TEST_CASE("configured names are allowed hosts, with or without a port") {
  const std::vector<std::string> names{"Pool.example"};
  for (const char* const allowed :
       {"pool.example", "POOL.example:443", "localhost", "127.0.0.1:9801", "[::1]"}) {
    INFO(allowed);
    CHECK(is_allowed_host(allowed, names));
  }
  for (const char* const other : {"", "evil.example", "pool.example.evil.example", "xpool.example",
                                  "pool.example:x", "pool.example:80:80"}) {
    INFO(other);
    CHECK_FALSE(is_allowed_host(other, names));
  }
  CHECK_FALSE(is_allowed_host("pool.example", {}));
}

TEST_CASE("local hosts are localhost and numeric addresses, with or without a port") {
  for (const char* local : {"localhost", "LocalHost:9701", "127.0.0.1", "127.0.0.1:9701", "10.0.0.1", "[::1]",
                            "[::1]:9701", "[fe80::1]:1"}) {
    INFO(local);
    CHECK(is_local_host(local));
  }
  for (const char* other :
       {"", ":", "evil.example", "evil.example:9701", "localhost.evil.example", "127.0.0.1.evil.example:9701",
        "127.1", "2130706433", "::1", "[::1", "[evil]", "[]", "localhost:evil", "127.0.0.1:80:80",
        "localhost@evil.example", "evil.example:80]"}) {
    INFO(other);
    CHECK_FALSE(is_local_host(other));
  }
}

TEST_CASE("a truncated request is incomplete") {
  for (size_t length = 0; length < kGood.size(); ++length) {
    INFO(length);
    CHECK_FALSE(read_request(std::string_view(kGood).substr(0, length)));
  }
}

TEST_CASE("malformed and unsupported requests are refused with their status") {
  const std::string host = "Host: x\r\n";
  CHECK(refusal("POST /metrics HTTP/1.1\r\n" + host + "\r\n") == 405);
  CHECK(refusal("POST /metrics HTTP/1.1\r\n" + host + "Content-Length: 3\r\n\r\nabc") == 413);
  CHECK(refusal("GET / HTTP/1.1\r\n" + host + "Content-Length: 0\r\n\r\n") == 0);
  CHECK(refusal("GET / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n") == 400);
  CHECK(refusal("GET / HTTP/1.1\r\n\r\n") == 400);  // no Host
  CHECK(refusal("GET / HTTP/1.1\r\n" + host + host + "\r\n") == 400);
  CHECK(refusal("GET / HTTP/2.0\r\n" + host + "\r\n") == 505);
  CHECK(refusal("GET /\r\n\r\n") == 400);
  CHECK(refusal("GET  / HTTP/1.1\r\n" + host + "\r\n") == 400);
  CHECK(refusal("GET / HTTP/1.1 \r\n" + host + "\r\n") == 400);
  CHECK(refusal("GET metrics HTTP/1.1\r\n" + host + "\r\n") == 400);
  CHECK(refusal("GET http://x/ HTTP/1.1\r\n" + host + "\r\n") == 400);
  CHECK(refusal("G\tT / HTTP/1.1\r\n" + host + "\r\n") == 400);
  CHECK(refusal("GET /\x01 HTTP/1.1\r\n" + host + "\r\n") == 400);
  CHECK(refusal("GET / HTTP/1.1\r\n" + host + "no colon\r\n\r\n") == 400);
  CHECK(refusal("GET / HTTP/1.1\r\n" + host + "bad name: x\r\n\r\n") == 400);
  CHECK(refusal("GET / HTTP/1.1\r\n" + host + ": x\r\n\r\n") == 400);
  CHECK(refusal("GET / HTTP/1.1\r\n" + host + "X: a\nb\r\n\r\n") == 400);
  CHECK(refusal("\r\n\r\n") == 400);
  CHECK(refusal(std::string("\x16\x03\x01 TLS\r\n\r\n", 11)) == 400);
}

TEST_CASE("an oversized request head is refused") {
  const std::string long_one = "GET / HTTP/1.1\r\nHost: x\r\nX: " + std::string(kMostRequestHeadBytes, 'a');
  CHECK_FALSE(read_request(long_one.substr(0, kMostRequestHeadBytes - 1)));
  CHECK(refusal(long_one.substr(0, kMostRequestHeadBytes)) == 431);
  CHECK(refusal(long_one + "\r\n\r\n") == 431);
}
