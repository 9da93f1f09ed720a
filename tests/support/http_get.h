// A minimal blocking HTTP client for servers on 127.0.0.1.
#pragma once
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>
#include <string>

namespace gpupool::testing {

// Sends the request and returns everything received until the connection ends. Throws if the port refuses the
// connection.
inline std::string http_exchange(uint16_t port, const std::string& request) {
  asio::io_context context;
  asio::ip::tcp::socket socket(context);
  socket.connect({asio::ip::make_address("127.0.0.1"), port});
  asio::error_code status;
  asio::write(socket, asio::buffer(request), status);
  std::string answer;
  asio::read(socket, asio::dynamic_buffer(answer), status);
  return answer;
}
inline std::string http_get(uint16_t port, const std::string& path) {
  return http_exchange(port, "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
}

// Returns the metrics port that a poold started with --metrics 127.0.0.1:0 has logged last.
inline uint16_t metrics_port(const std::string& log) {
  const std::string before = "url=http://127.0.0.1:";
  const size_t at = log.rfind(before);
  if (at == log.npos) throw std::runtime_error("no metrics address in the log: " + log);
  return static_cast<uint16_t>(std::stoul(log.substr(at + before.size())));
}

}  // namespace gpupool::testing
