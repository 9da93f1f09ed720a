#include "tests/bench/raw_tcp.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <functional>
#include <stdexcept>
#include <vector>

namespace gpupool::bench {
namespace {

using Clock = std::chrono::steady_clock;

void need(bool good, const char* what) {
  if (!good) throw std::runtime_error(std::string("raw TCP baseline: ") + what + " failed");
}

void send_all(int socket, const char* bytes, size_t size) {
  while (size) {
    const ssize_t sent = send(socket, bytes, size, MSG_NOSIGNAL);
    need(sent > 0, "send");
    bytes += sent;
    size -= static_cast<size_t>(sent);
  }
}

// False: the peer has closed.
bool receive_all(int socket, char* bytes, size_t size) {
  while (size) {
    const ssize_t received = recv(socket, bytes, size, 0);
    if (received <= 0) return false;
    bytes += received;
    size -= static_cast<size_t>(received);
  }
  return true;
}

// Runs `serve(socket)` in a child and `measure(socket)` here, connected over loopback.
double against_child(const std::function<void(int)>& serve, const std::function<double(int)>& measure) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  need(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0, "bind");
  need(listen(listener, 1) == 0, "listen");
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
  const int on = 1;
  const pid_t child = fork();
  need(child >= 0, "fork");
  if (child == 0) {
    const int peer = accept(listener, nullptr, nullptr);
    setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    serve(peer);
    _exit(0);
  }
  const int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  need(connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0, "connect");
  setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const double value = measure(connection);
  close(connection);
  close(listener);
  waitpid(child, nullptr, 0);
  return value;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

double seconds(Clock::time_point from) { return std::chrono::duration<double>(Clock::now() - from).count(); }

}  // namespace

double ping_pong_us(size_t request, size_t reply) {
  const auto serve = [&](int socket) {
    std::vector<char> in(request), out(reply);
    while (receive_all(socket, in.data(), in.size())) send_all(socket, out.data(), out.size());
  };
  return against_child(serve, [&](int socket) {
    std::vector<char> out(request), in(reply);
    std::vector<double> times;
    for (int i = 0; i < 5000; ++i) {
      const auto begin = Clock::now();
      send_all(socket, out.data(), out.size());
      need(receive_all(socket, in.data(), in.size()), "recv");
      times.push_back(seconds(begin) * 1e6);
    }
    return median(times);
  });
}

double bandwidth_GBps(size_t bytes) {
  const auto serve = [&](int socket) {
    std::vector<char> in(bytes);
    const char done = 1;
    while (receive_all(socket, in.data(), in.size())) send_all(socket, &done, 1);
  };
  return against_child(serve, [&](int socket) {
    std::vector<char> out(bytes, 1);
    std::vector<double> rates;
    const int rounds = bytes <= (1u << 20) ? 100 : 5;
    for (int i = 0; i < rounds + 1; ++i) {
      const auto begin = Clock::now();
      send_all(socket, out.data(), out.size());
      char done = 0;
      need(receive_all(socket, &done, 1), "recv");
      if (i) rates.push_back(static_cast<double>(bytes) * 1e-9 / seconds(begin));
    }
    return median(rates);
  });
}

}  // namespace gpupool::bench
