#include "tests/support/http_get.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>

#include "tests/support/loopback.h"

namespace gpupool::testing {

std::string http_exchange(uint16_t port, const std::string& request) {
  struct Socket {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ~Socket() { ::close(fd); }
  } socket;
  const sockaddr_in server = loopback_address(port);
  if (::connect(socket.fd, reinterpret_cast<const sockaddr*>(&server), sizeof server) != 0) {
    throw std::system_error(errno, std::system_category(), "connect to 127.0.0.1:" + std::to_string(port));
  }
  for (size_t sent = 0; sent < request.size();) {
    const ssize_t now = ::send(socket.fd, request.data() + sent, request.size() - sent, MSG_NOSIGNAL);
    if (now <= 0) break;  // the server may have answered before it closed the connection
    sent += static_cast<size_t>(now);
  }
  std::string answer;
  char part[16384];
  ssize_t received;
  while ((received = ::recv(socket.fd, part, sizeof part, 0)) > 0)
    answer.append(part, static_cast<size_t>(received));
  return answer;
}

std::string http_get(uint16_t port, const std::string& path) {
  return http_exchange(port, "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
}

uint16_t metrics_port(const std::string& log) {
  const std::string before = "url=http://127.0.0.1:";
  const size_t at = log.rfind(before);
  if (at == log.npos) throw std::runtime_error("no metrics address in the log: " + log);
  return static_cast<uint16_t>(std::stoul(log.substr(at + before.size())));
}

}  // namespace gpupool::testing
