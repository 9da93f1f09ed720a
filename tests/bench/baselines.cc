#include "tests/bench/baselines.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/bench/figures.h"

namespace gpupool::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Sockets = std::vector<int>;

void need(bool good, const char* what) {
  if (!good) throw std::runtime_error(std::string("raw TCP baseline: ") + what + " failed");
}

void send_all(int socket, const char* bytes, size_t size, size_t per_send = ~size_t{0}) {
  while (size) {
    const ssize_t sent = send(socket, bytes, std::min(size, per_send), MSG_NOSIGNAL);
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

int new_socket() {
  const int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  need(made >= 0, "socket");
  return made;
}

// Runs `serve(socket)` for each of `count` connections in threads of a child, and `measure(sockets)` here.
double against_child(int count, const std::function<void(int)>& serve, const std::function<double(const Sockets&)>& measure) {
  const int listener = new_socket();
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  need(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0, "bind");
  need(listen(listener, count) == 0, "listen");
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
  const int on = 1;
  const pid_t child = fork();
  need(child >= 0, "fork");
  if (child == 0) {
    std::vector<std::thread> threads;
    for (int i = 0; i < count; ++i) {
      const int peer = accept(listener, nullptr, nullptr);
      setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      threads.emplace_back(serve, peer);
    }
    for (std::thread& thread : threads) thread.join();
    _exit(0);
  }
  Sockets sockets;
  for (int i = 0; i < count; ++i) {
    sockets.push_back(new_socket());
    need(connect(sockets.back(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0, "connect");
    setsockopt(sockets.back(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  const double value = measure(sockets);
  for (const int socket : sockets) close(socket);
  close(listener);
  waitpid(child, nullptr, 0);
  return value;
}

double seconds(Clock::time_point from) { return std::chrono::duration<double>(Clock::now() - from).count(); }

int repetitions(size_t bytes) { return bytes <= (1u << 20) ? 100 : bytes <= (16u << 20) ? 20 : 5; }

}  // namespace

double ping_pong_us(size_t request, size_t reply) {
  const auto serve = [&](int socket) {
    std::vector<char> in(request), out(reply);
    while (receive_all(socket, in.data(), in.size())) send_all(socket, out.data(), out.size());
  };
  return against_child(1, serve, [&](const Sockets& sockets) {
    std::vector<char> out(request), in(reply);
    std::vector<double> times;
    for (int i = 0; i < 5000; ++i) {
      const auto begin = Clock::now();
      send_all(sockets[0], out.data(), out.size());
      need(receive_all(sockets[0], in.data(), in.size()), "recv");
      times.push_back(seconds(begin) * 1e6);
    }
    return median(times);
  });
}

double tcp_GBps(size_t bytes, int streams, size_t per_send) {
  const size_t part = bytes / static_cast<size_t>(streams);
  const auto serve = [&](int socket) {
    std::vector<char> in(part);
    const char done = 1;
    while (receive_all(socket, in.data(), in.size())) send_all(socket, &done, 1);
  };
  return against_child(streams, serve, [&](const Sockets& sockets) {
    std::vector<char> out(bytes, 1);
    std::vector<double> rates;
    const auto send_part = [&](size_t i) {
      send_all(sockets[i], out.data() + i * part, part, per_send);
      char done = 0;
      need(receive_all(sockets[i], &done, 1), "recv");
    };
    for (int round = 0; round < repetitions(bytes) + 1; ++round) {
      const auto begin = Clock::now();
      std::vector<std::thread> threads;
      for (size_t i = 1; i < sockets.size(); ++i) threads.emplace_back(send_part, i);
      send_part(0);
      for (std::thread& thread : threads) thread.join();
      if (round) rates.push_back(static_cast<double>(bytes) * 1e-9 / seconds(begin));
    }
    return median(rates);
  });
}

double memcpy_GBps(size_t bytes) {
  std::vector<char> from(bytes, 1), to(bytes, 2);
  std::vector<double> rates;
  for (int round = 0; round < repetitions(bytes) + 1; ++round) {
    const auto begin = Clock::now();
    std::memcpy(to.data(), from.data(), bytes);
    asm volatile("" : : "r"(to.data()) : "memory");
    if (round) rates.push_back(static_cast<double>(bytes) * 1e-9 / seconds(begin));
  }
  return median(rates);
}

}  // namespace gpupool::bench
