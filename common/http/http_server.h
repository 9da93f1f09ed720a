// Answers GET and HEAD requests over HTTP/1.1, one per connection, for Prometheus, health checks and pages.
// poold and pool-scheduler use it, on their main threads.
//
// Requests are untrusted: limited in size, time and number (a new connection replaces the oldest if there are
// too many). On a loopback address only requests for localhost, a numeric address or a configured name are
// answered, so that web pages of other sites cannot read the answers by DNS rebinding. All answers forbid
// scripts, styles and images of other sites, inline scripts, and frames. After an answer whose making took a
// time t, the next one to that path is made 20 t later, or 1 s later if that is less, for all requests that
// wait by then. So no answer is older than its request, and many requests cannot use up the thread's time.
#pragma once
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/result.h"

namespace gpupool {

// The content type of pages in Prometheus's text format.
constexpr const char* kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

struct HttpRequest;

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string type = "text/plain; charset=utf-8";
};

// Decides which requests are answered.
struct HttpAccess {
  // Names that `Host` may have besides localhost and numeric addresses, without ports. If there are any,
  // `Host` is checked on every address, otherwise on loopback addresses only.
  std::vector<std::string> hosts;
  // Called for each request before it is answered, also if an answer that was made for another request would
  // do. Returns the refusal, or nothing. `peer`: the client's address and port.
  std::function<std::optional<HttpResponse>(const HttpRequest& request, const std::string& peer)> refuse;
};

std::string text_of(const asio::ip::tcp::endpoint& endpoint);  // HOST:PORT, with brackets for IPv6

class HttpServer {
 public:
  using Answer = std::function<HttpResponse(const std::string& path)>;
  static constexpr size_t kMostConnections = 64;
  static constexpr std::chrono::milliseconds kPatience{10'000};

  // Listens on "HOST:PORT" or "[::1]:PORT"; port 0 takes a free one. ErrorCode::unavailable: it cannot.
  static Result<std::unique_ptr<HttpServer>> listen(asio::io_context& context, const std::string& address,
                                                    Answer answer,
                                                    std::chrono::milliseconds patience = kPatience,
                                                    HttpAccess access = {});
  HttpServer(asio::io_context& context, asio::ip::tcp::acceptor acceptor, Answer answer,
             std::chrono::milliseconds patience, HttpAccess access);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  asio::ip::tcp::endpoint endpoint() const { return acceptor_.local_endpoint(); }
  size_t connections() const { return connections_.size(); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Made {
    HttpResponse response;
    Clock::time_point at;    // when making it began
    Clock::time_point next;  // the next answer is not made before
  };
  class Connection;
  void accept();
  std::optional<HttpResponse> refuse(const HttpRequest& request, const asio::ip::tcp::socket& client) const;
  // Returns nothing if the answer must wait until `when`.
  std::optional<HttpResponse> answer(const std::string& path, Clock::time_point asked,
                                     Clock::time_point& when);

  asio::ip::tcp::acceptor acceptor_;
  const Answer answer_;
  const std::chrono::milliseconds patience_;
  const HttpAccess access_;
  const bool checks_host_;
  std::map<std::string, Made> made_;  // by path
  asio::steady_timer pause_;
  std::list<std::shared_ptr<Connection>> connections_;  // oldest first
};

}  // namespace gpupool
