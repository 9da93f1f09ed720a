// Tests the HTTP server with slow, numerous and malformed clients.
#include "common/http/http_server.h"

#include <asio/connect.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/post.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>
#include <atomic>
#include <future>
#include <thread>

#include "common/http/http_request.h"
#include "tests/support/catch.h"
#include "tests/support/processes.h"

using namespace gpupool;
using namespace gpupool;
using asio::ip::tcp;
using std::chrono::milliseconds;

namespace {

class Endpoint {
 public:
  explicit Endpoint(milliseconds patience = milliseconds(20'000), HttpAccess access = {},
                    const std::string& address = "127.0.0.1:0") {
    auto made = HttpServer::listen(
        context_, address,
        [this](const std::string& path) {
          if (path == "/slow") {
            std::this_thread::sleep_for(milliseconds(50));
            return HttpResponse{200, std::to_string(++made_)};
          }
          if (path == "/large") return HttpResponse{200, std::string(8u << 20, 'x')};
          return path == "/here" ? HttpResponse{200, "found\n"} : HttpResponse{404, "no\n"};
        },
        patience, std::move(access));
    REQUIRE(made);
    server_ = std::move(*made);
    where_ = {asio::ip::address_v4::loopback(), server_->endpoint().port()};
    thread_ = std::thread([this] { context_.run(); });
  }
  ~Endpoint() {
    asio::post(context_, [this] {
      server_.reset();
      work_.reset();
    });
    thread_.join();
  }
  tcp::socket connect() {
    tcp::socket socket(clients_);
    socket.connect(where_);
    return socket;
  }
  size_t connections() {
    std::promise<size_t> count;
    asio::post(context_, [&] { count.set_value(server_->connections()); });
    return count.get_future().get();
  }

 private:
  int made_ = 0;
  asio::io_context context_, clients_;
  asio::executor_work_guard<asio::io_context::executor_type> work_{context_.get_executor()};
  std::unique_ptr<HttpServer> server_;
  tcp::endpoint where_;
  std::thread thread_;
};

void send(tcp::socket& socket, const std::string& text) {
  asio::error_code ignored;
  asio::write(socket, asio::buffer(text), ignored);
}
// Reads until the server closes the connection.
std::string rest(tcp::socket& socket) {
  std::string text;
  asio::error_code end;
  asio::read(socket, asio::dynamic_buffer(text), end);
  return text;
}
std::string get(Endpoint& endpoint, const std::string& request) {
  tcp::socket socket = endpoint.connect();
  send(socket, request);
  return rest(socket);
}

}  // namespace

TEST_CASE("requests are answered, one per connection") {
  Endpoint endpoint;
  const std::string found = get(endpoint, "GET /here HTTP/1.1\r\nHost: localhost\r\n\r\n");
  CHECK(found.starts_with("HTTP/1.1 200 OK\r\n"));
  CHECK(found.find("Content-Length: 6\r\n") != found.npos);
  CHECK(found.find("Connection: close\r\n") != found.npos);
  CHECK(found.ends_with("\r\n\r\nfound\n"));
  CHECK(get(endpoint, "HEAD /here HTTP/1.1\r\nHost: localhost\r\n\r\n").ends_with("\r\n\r\n"));
  CHECK(get(endpoint, "GET /elsewhere HTTP/1.1\r\nHost: localhost\r\n\r\n").starts_with("HTTP/1.1 404 "));
  CHECK(get(endpoint,
            "GET /here HTTP/1.1\r\nHost: localhost\r\n\r\nGET /here HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .ends_with("\r\n\r\nfound\n"));
  CHECK(get(endpoint, "DELETE /here HTTP/1.1\r\nHost: localhost\r\n\r\n").starts_with("HTTP/1.1 405 "));
  CHECK(get(endpoint, "nonsense\r\n\r\n").starts_with("HTTP/1.1 400 "));
  CHECK(get(endpoint, "GET / HTTP/1.1\r\nX: " + std::string(100'000, 'a')).starts_with("HTTP/1.1 431 "));
  CHECK(get(endpoint, "GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n").size() > (8u << 20));
  CHECK(testing::eventually([&] { return endpoint.connections() == 0; }));
}

TEST_CASE("a loopback server refuses names in Host with 421 against DNS rebinding") {
  Endpoint endpoint;
  for (const char* host : {"evil.example", "evil.example:9701", "localhost.evil.example"}) {
    const std::string refused =
        get(endpoint, std::string("GET /here HTTP/1.1\r\nHost: ") + host + "\r\n\r\n");
    CHECK(refused.starts_with("HTTP/1.1 421 "));
    CHECK(refused.find("found") == refused.npos);
  }
  for (const char* host : {"localhost:1", "127.0.0.1:1", "[::1]"}) {
    CHECK(
        get(endpoint, std::string("GET /here HTTP/1.1\r\nHost: ") + host + "\r\n\r\n").ends_with("found\n"));
  }
  CHECK(get(endpoint, "GET /here HTTP/1.0\r\n\r\n").ends_with("found\n"));
}

TEST_CASE("responses forbid framing by other pages") {
  Endpoint endpoint;
  const std::string found = get(endpoint, "GET /here HTTP/1.1\r\nHost: localhost\r\n\r\n");
  CHECK(found.find("frame-ancestors 'none'") != found.npos);
  for (const char* const field : {"X-Frame-Options: DENY", "X-Content-Type-Options: nosniff",
                                  "Cross-Origin-Resource-Policy: same-origin", "Cache-Control: no-store"}) {
    INFO(field);
    CHECK(found.find("\r\n" + std::string(field) + "\r\n") != found.npos);
  }
  CHECK(found.find("\r\nContent-Security-Policy: default-src 'none'; script-src 'self'; ") != found.npos);
  CHECK(found.find("unsafe-inline") == found.npos);
}

TEST_CASE("a server with names refuses others, on every address") {
  for (const std::string address : {"127.0.0.1:0", "0.0.0.0:0"}) {
    Endpoint endpoint(milliseconds(20'000), {.hosts = {"pool.example"}, .refuse = {}}, address);
    const auto status = [&](const std::string& host) {
      return get(endpoint, "GET /here HTTP/1.1\r\nHost: " + host + "\r\n\r\n").substr(9, 3);
    };
    CHECK(status("pool.example") == "200");
    CHECK(status("127.0.0.1:9801") == "200");
    CHECK(status("evil.example") == "421");
  }
}

TEST_CASE("access is checked before an answer that was made for another request is used") {
  Endpoint endpoint(
      milliseconds(20'000),
      {.hosts = {},
       .refuse = [](const HttpRequest& request, const std::string& peer) -> std::optional<HttpResponse> {
         if (bearer_token(request.authorization) == "good" && peer.starts_with("127.0.0.1:"))
           return std::nullopt;
         return HttpResponse{401, "no\n"};
       }});
  const auto ask = [&](const std::string& field) {
    return get(endpoint, "GET /slow HTTP/1.1\r\nHost: localhost\r\n" + field + "\r\n");
  };
  CHECK(ask("Authorization: Bearer good\r\n").starts_with("HTTP/1.1 200 "));
  for (int i = 0; i < 3; ++i) {
    const std::string refused = ask("");
    CHECK(refused.starts_with("HTTP/1.1 401 Unauthorized\r\n"));
    CHECK(refused.find("\r\nWWW-Authenticate: Bearer\r\n") != refused.npos);
    CHECK(refused.ends_with("\r\n\r\nno\n"));
  }
}

TEST_CASE("a slow answer is computed once for all waiting requests and after each of them arrived") {
  Endpoint endpoint;
  const std::string request = "GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n";
  const auto number_of = [](const std::string& answer) {
    return std::stoi(answer.substr(answer.rfind('\n') + 1));
  };
  CHECK(number_of(get(endpoint, request)) == 1);
  std::vector<tcp::socket> waiting;
  for (int i = 0; i < 20; ++i) {
    waiting.push_back(endpoint.connect());
    send(waiting.back(), request);
  }
  int last = 0;
  for (tcp::socket& socket : waiting) {
    const int number = number_of(rest(socket));
    CHECK(number >= 2);  // not the answer computed before the request
    last = std::max(last, number);
  }
  CHECK(last <= 10);
  CHECK(number_of(get(endpoint, request)) > last);
}

TEST_CASE("a request that arrives byte by byte is answered") {
  Endpoint endpoint;
  tcp::socket socket = endpoint.connect();
  for (const char byte : std::string("GET /here HTTP/1.1\r\nHost: localhost\r\n\r\n"))
    send(socket, std::string(1, byte));
  CHECK(rest(socket).ends_with("found\n"));
}

TEST_CASE("rejects unfinished and oversized requests and closes the connection") {
  Endpoint endpoint(milliseconds(200));
  tcp::socket silent = endpoint.connect();
  CHECK(rest(silent).starts_with("HTTP/1.1 408 "));
  tcp::socket slow = endpoint.connect();
  const auto start = std::chrono::steady_clock::now();
  std::atomic<bool> over{false};
  std::thread dripping([&] {
    send(slow, "GET /here HTTP/1.1\r\nHost: localhost\r\n");
    while (!over) {
      send(slow, "X: y\r\n");
      std::this_thread::sleep_for(milliseconds(20));
    }
  });
  CHECK(rest(slow).starts_with("HTTP/1.1 408 "));
  CHECK(std::chrono::steady_clock::now() - start < milliseconds(10'000));
  over = true;
  dripping.join();
  CHECK(testing::eventually([&] { return endpoint.connections() == 0; }));
}

TEST_CASE("closes connections whose client does not read the answer") {
  Endpoint endpoint(milliseconds(200));
  tcp::socket lazy = endpoint.connect();
  send(lazy, "GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n");
  CHECK(testing::eventually([&] { return endpoint.connections() == 0; }));
}

TEST_CASE("open connections do not keep other clients out") {
  Endpoint endpoint;
  std::vector<tcp::socket> held;
  for (size_t count = 0; count < HttpServer::kMostConnections + 10; ++count) {
    held.push_back(endpoint.connect());
    send(held.back(), "GET /here HTTP/1.1\r\n");
  }
  CHECK(get(endpoint, "GET /here HTTP/1.1\r\nHost: localhost\r\n\r\n").ends_with("found\n"));
  CHECK(endpoint.connections() <= HttpServer::kMostConnections);
  CHECK(rest(held.front()).empty());  // the server closed the oldest connection
}

TEST_CASE("an address that cannot be listened on is an error that names it") {
  asio::io_context context;
  for (const std::string address : {"", "9701", ":9701", "127.0.0.1:", "127.0.0.1:99999", "256.0.0.1:0",
                                    "nowhere.invalid:0", "http://127.0.0.1:0"}) {
    const auto made = HttpServer::listen(context, address, [](const std::string&) { return HttpResponse(); });
    REQUIRE_FALSE(made);
    CHECK(made.error().message.find("'" + address + "'") != std::string::npos);
  }
}
