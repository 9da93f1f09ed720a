#include "common/http/http_server.h"

#include <algorithm>
#include <array>
#include <asio/connect.hpp>
#include <asio/write.hpp>
#include <charconv>

#include "common/http/http_request.h"

namespace gpupool {
namespace {

using asio::ip::tcp;

constexpr size_t kMostDiscarded = 64 * 1024;
constexpr std::chrono::milliseconds kPauseAfterFailure{100};
constexpr int kPauseTimes = 20;  // pause after an answer, in multiples of the time that making it took
constexpr std::chrono::milliseconds kLongestPause{1'000};
// Pages load scripts, styles and images from this server only, have no inline scripts or styles, cannot turn
// text into markup (trusted types), send no forms, and no other page may frame them.
constexpr const char* kFixedFields =
    "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY"
    "\r\nReferrer-Policy: no-referrer\r\nCross-Origin-Opener-Policy: same-origin"
    "\r\nCross-Origin-Resource-Policy: same-origin"
    "\r\nContent-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'\r\nConnection: close\r\n";

const char* reason_of(int status) {
  switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 413: return "Content Too Large";
    case 421: return "Misdirected Request";
    case 431: return "Request Header Fields Too Large";
    case 503: return "Service Unavailable";
    case 505: return "HTTP Version Not Supported";
    default: return "Unknown";
  }
}

std::string encode(const HttpResponse& response, bool without_body) {
  std::string text = "HTTP/1.1 " + std::to_string(response.status) + " " + reason_of(response.status) +
                     "\r\nContent-Type: " + response.type +
                     "\r\nContent-Length: " + std::to_string(response.body.size()) + kFixedFields;
  if (response.status == 401) text += "WWW-Authenticate: Bearer\r\n";
  if (response.status == 405) text += "Allow: GET, HEAD\r\n";
  text += "\r\n";
  if (!without_body) text += response.body;
  return text;
}

}  // namespace

std::string text_of(const tcp::endpoint& endpoint) {
  const std::string host = endpoint.address().to_string();
  return (endpoint.address().is_v6() ? "[" + host + "]" : host) + ":" + std::to_string(endpoint.port());
}

class HttpServer::Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(HttpServer& server, tcp::socket socket)
      : server_(&server),
        socket_(std::move(socket)),
        deadline_(socket_.get_executor()),
        turn_(socket_.get_executor()) {}

  void serve() {
    deadline_.expires_after(server_->patience_);
    deadline_.async_wait([self = shared_from_this()](const asio::error_code& status) {
      if (!status) self->time_out();
    });
    read();
  }

  void drop() {
    if (!server_) return;
    const auto self = shared_from_this();
    deadline_.cancel();
    turn_.cancel();
    asio::error_code ignored;
    socket_.close(ignored);
    server_->connections_.erase(place);
    server_ = nullptr;
  }

  std::list<std::shared_ptr<Connection>>::iterator place;

 private:
  void read() {
    socket_.async_read_some(asio::buffer(buffer_),
                            [self = shared_from_this()](const asio::error_code& status, size_t bytes) {
                              if (!self->server_ || self->answered_) return;
                              if (status) return self->drop();
                              self->head_.append(self->buffer_.data(), bytes);
                              const auto request = read_request(self->head_);
                              if (!request) return self->read();
                              self->without_body_ = request->head;
                              if (auto refusal = self->server_->refuse(*request, self->socket_))
                                return self->write(*refusal);
                              self->path_ = request->path;
                              self->asked_ = Clock::now();
                              self->answer();
                            });
  }

  void answer() {
    Clock::time_point when;
    if (const auto response = server_->answer(path_, asked_, when)) return write(*response);
    turn_.expires_at(when);
    turn_.async_wait([self = shared_from_this()](const asio::error_code& status) {
      if (!status && self->server_ && !self->answered_) self->answer();
    });
  }

  void time_out() {
    if (!server_) return;
    if (answered_) return drop();
    deadline_.expires_after(server_->patience_);
    deadline_.async_wait([self = shared_from_this()](const asio::error_code& status) {
      if (!status) self->drop();
    });
    write({408, "request timed out\n"});
  }

  void write(const HttpResponse& response) {
    answered_ = true;
    head_ = encode(response, without_body_);
    asio::async_write(socket_, asio::buffer(head_),
                      [self = shared_from_this()](const asio::error_code& status, size_t) {
                        if (!self->server_) return;
                        if (status) return self->drop();
                        asio::error_code ignored;
                        self->socket_.shutdown(tcp::socket::shutdown_send, ignored);
                        self->linger();
                      });
  }

  // Reads the rest: closing with unread bytes would reset the connection, and the client might lose the
  // answer.
  void linger() {
    socket_.async_read_some(asio::buffer(buffer_),
                            [self = shared_from_this()](const asio::error_code& status, size_t bytes) {
                              self->discarded_ += bytes;
                              if (!self->server_) return;
                              if (status || self->discarded_ > kMostDiscarded) return self->drop();
                              self->linger();
                            });
  }

  HttpServer* server_;  // null: dropped
  tcp::socket socket_;
  asio::steady_timer deadline_;
  asio::steady_timer turn_;  // until a new answer may be made
  std::array<char, 4096> buffer_;
  std::string head_;  // head of the request, later the response
  std::string path_;
  Clock::time_point asked_;
  bool without_body_ = false;
  size_t discarded_ = 0;
  bool answered_ = false;
};

Result<std::unique_ptr<HttpServer>> HttpServer::listen(asio::io_context& context, const std::string& address,
                                                       Answer answer, std::chrono::milliseconds patience,
                                                       HttpAccess access) {
  const auto failure = [&](const std::string& why) {
    return Error{ErrorCode::unavailable, "cannot listen on '" + address + "' for metrics: " + why};
  };
  const size_t colon = address.rfind(':');
  uint16_t port = 0;
  const char* const end = address.data() + address.size();
  const auto number = colon == address.npos ? std::from_chars_result{}
                                            : std::from_chars(address.data() + colon + 1, end, port);
  if (colon == address.npos || colon == 0 || number.ec != std::errc() || number.ptr != end ||
      address.find("://") != address.npos) {
    return failure("must be HOST:PORT, such as 127.0.0.1:9701");
  }
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  asio::error_code status;
  const auto found =
      tcp::resolver(context).resolve(host, std::to_string(port), tcp::resolver::passive, status);
  if (status) return failure(status.message());
  const tcp::endpoint endpoint = *found.begin();
  tcp::acceptor acceptor(context);
  acceptor.open(endpoint.protocol(), status);
  if (!status) acceptor.set_option(tcp::acceptor::reuse_address(true), status);
  if (!status) acceptor.bind(endpoint, status);
  if (!status) acceptor.listen(asio::socket_base::max_listen_connections, status);
  if (status) return failure(status.message());
  return std::make_unique<HttpServer>(context, std::move(acceptor), std::move(answer), patience,
                                      std::move(access));
}

HttpServer::HttpServer(asio::io_context& context, tcp::acceptor acceptor, Answer answer,
                       std::chrono::milliseconds patience, HttpAccess access)
    : acceptor_(std::move(acceptor)),
      answer_(std::move(answer)),
      patience_(patience),
      access_(std::move(access)),
      checks_host_(!access_.hosts.empty() || acceptor_.local_endpoint().address().is_loopback()),
      pause_(context) {
  accept();
}

std::optional<HttpResponse> HttpServer::refuse(const HttpRequest& request, const tcp::socket& client) const {
  if (request.refusal != 0)
    return HttpResponse{request.refusal, std::string(reason_of(request.refusal)) + "\n"};
  if (checks_host_ && !request.host.empty() && !is_allowed_host(request.host, access_.hosts))
    return HttpResponse{421, "Host must be localhost, a numeric address or a configured name\n"};
  if (!access_.refuse) return std::nullopt;
  asio::error_code gone;
  const tcp::endpoint peer = client.remote_endpoint(gone);
  return access_.refuse(request, gone ? "" : text_of(peer));
}

std::optional<HttpResponse> HttpServer::answer(const std::string& path, Clock::time_point asked,
                                               Clock::time_point& when) {
  const auto begin = Clock::now();
  const auto made = made_.find(path);
  if (made != made_.end() && made->second.at >= asked) return made->second.response;
  if (made != made_.end() && made->second.next > begin) {
    when = made->second.next;
    return std::nullopt;
  }
  HttpResponse response = answer_(path);
  const auto end = Clock::now();
  // Keep successful answers only: only these have a small number of paths.
  if (response.status == 200)
    made_.insert_or_assign(
        path,
        Made{response, begin, end + std::min<Clock::duration>(kPauseTimes * (end - begin), kLongestPause)});
  return response;
}

HttpServer::~HttpServer() {
  while (!connections_.empty()) connections_.front()->drop();
}

void HttpServer::accept() {
  acceptor_.async_accept([this](const asio::error_code& status, tcp::socket socket) {
    if (status == asio::error::operation_aborted) return;
    if (status) {  // out of descriptors: retry later
      pause_.expires_after(kPauseAfterFailure);
      pause_.async_wait([this](const asio::error_code& over) {
        if (!over) accept();
      });
      return;
    }
    if (connections_.size() >= kMostConnections) connections_.front()->drop();
    auto connection = std::make_shared<Connection>(*this, std::move(socket));
    connection->place = connections_.insert(connections_.end(), connection);
    connection->serve();
    accept();
  });
}

}  // namespace gpupool
