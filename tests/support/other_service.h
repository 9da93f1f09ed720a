// A TCP server on loopback that is not a poold: it accepts connections, records what it receives, and stays
// silent, echoes, or sends an SMTP greeting. Throws std::runtime_error.
#pragma once
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace gpupool::testing {

class OtherService {
 public:
  enum class Manner { silent, echoes, talks };

  explicit OtherService(Manner manner)
      : manner_(manner), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    if (listener_ < 0 || ::bind(listener_, generic, size) != 0 || ::listen(listener_, 16) != 0 ||
        ::getsockname(listener_, generic, &size) != 0) {
      throw std::runtime_error("cannot listen on 127.0.0.1");
    }
    port_ = ntohs(address.sin_port);
  }
  ~OtherService() { ::close(listener_); }
  OtherService(const OtherService&) = delete;
  OtherService& operator=(const OtherService&) = delete;

  uint16_t port() const { return port_; }
  // Returns true if no connection is pending.
  bool untouched() const {
    pollfd polled{listener_, POLLIN, 0};
    return ::poll(&polled, 1, 0) == 0;
  }
  // Serves one connection until the peer closes it or sends nothing for 20 s. Returns the received bytes.
  std::string serve() {
    pollfd polled{listener_, POLLIN, 0};
    if (::poll(&polled, 1, kPatienceMs) != 1) throw std::runtime_error("no connection within 20 s");
    const int served = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (served < 0) throw std::runtime_error("cannot accept a connection");
    if (manner_ == Manner::talks)
      say(served, "220 mail.example ESMTP: what is your name, and what do you want of this host today?\r\n");
    std::string said;
    char bytes[4096];
    pollfd client{served, POLLIN, 0};
    while (::poll(&client, 1, kPatienceMs) == 1) {
      const ssize_t got = ::recv(served, bytes, sizeof bytes, 0);
      if (got <= 0) break;
      said.append(bytes, static_cast<size_t>(got));
      if (manner_ == Manner::echoes) say(served, std::string(bytes, static_cast<size_t>(got)));
    }
    ::close(served);
    return said;
  }

 private:
  static constexpr int kPatienceMs = 20'000;
  static void say(int socket, const std::string& text) {
    (void)!::send(socket, text.data(), text.size(), MSG_NOSIGNAL);
  }

  const Manner manner_;
  const int listener_;
  uint16_t port_ = 0;
};

}  // namespace gpupool::testing
