// Answers GET and HEAD requests over HTTP/1.1, one per connection, for Prometheus and health checks. poold's one thread.
//
// What comes in is not trusted: bounded in size, time and number (the longest waiting connection is dropped for a new one).
#pragma once
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <string>

#include "protocol/wire/result.h"

namespace gpupool::server {

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string type = "text/plain; charset=utf-8";
};

std::string text_of(const asio::ip::tcp::endpoint& endpoint);  // as in addresses

class HttpServer {
 public:
  using Answer = std::function<HttpResponse(const std::string& path)>;
  static constexpr size_t kMostConnections = 64;

  // Fails when it cannot listen on "HOST:PORT" (port 0 takes a free one; "[::1]:PORT").
  static Result<std::unique_ptr<HttpServer>> listen(asio::io_context& context, const std::string& address, Answer answer,
                                                    std::chrono::milliseconds patience = std::chrono::seconds(10));
  HttpServer(asio::io_context& context, asio::ip::tcp::acceptor acceptor, Answer answer, std::chrono::milliseconds patience);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  asio::ip::tcp::endpoint endpoint() const { return acceptor_.local_endpoint(); }
  size_t connections() const { return connections_.size(); }

 private:
  class Connection;
  void accept();

  asio::ip::tcp::acceptor acceptor_;
  const Answer answer_;
  const std::chrono::milliseconds patience_;
  asio::steady_timer pause_;
  std::list<std::shared_ptr<Connection>> connections_;  // oldest first
};

}  // namespace gpupool::server
