#include "tests/bench/baselines.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

namespace gpupool::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Sockets = std::vector<int>;

void need(bool good, const char* what) {
  if (!good) throw std::runtime_error(std::string("raw TCP baseline: ") + what + " failed");
}

constexpr int kOwnBufferBytes = 256 * 1024;  // gpupool's on one host, protocol/transport/tcp/connection.cc
constexpr int kBufferBytes[] = {0, kOwnBufferBytes, 4 * 1024 * 1024};

void send_all(int socket, const char* bytes, size_t size, size_t per_send = ~size_t{0}) {
  while (size) {
    const ssize_t sent = send(socket, bytes, std::min(size, per_send), MSG_NOSIGNAL);
    need(sent > 0, "send");
    bytes += sent;
    size -= static_cast<size_t>(sent);
  }
}

// Returns false if the peer has closed the connection.
bool receive_all(int socket, char* bytes, size_t size, bool spin) {
  while (size) {
    const ssize_t received = recv(socket, bytes, size, spin ? MSG_DONTWAIT : 0);
    if (received < 0 && spin && errno == EAGAIN) {
      sched_yield();
      continue;
    }
    if (received <= 0) return false;
    bytes += received;
    size -= static_cast<size_t>(received);
  }
  return true;
}

// Sets gpupool's size with the options that gpupool uses. For larger sizes tries SO_SNDBUFFORCE and
// SO_RCVBUFFORCE, which exceed net.core.wmem_max and rmem_max but need CAP_NET_ADMIN; otherwise the kernel
// caps the size.
void set_buffers(int socket, int bytes) {
  if (bytes == 0) return;
  for (const auto& [forced, plain] :
       {std::pair{SO_SNDBUFFORCE, SO_SNDBUF}, std::pair{SO_RCVBUFFORCE, SO_RCVBUF}}) {
    if (bytes > kOwnBufferBytes && setsockopt(socket, SOL_SOCKET, forced, &bytes, sizeof bytes) == 0)
      continue;
    need(setsockopt(socket, SOL_SOCKET, plain, &bytes, sizeof bytes) == 0, "setsockopt");
  }
}

// Accepted sockets inherit a listener's buffer sizes.
int new_socket(int buffer_bytes) {
  const int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  need(made >= 0, "socket");
  set_buffers(made, buffer_bytes);
  return made;
}

// Runs serve(socket) for each stream in a thread of a child process, and measure(sockets) in this process.
double against_child(const TcpSettings& settings, const std::function<void(int)>& serve,
                     const std::function<double(const Sockets&)>& measure) {
  const int count = settings.streams;
  const int listener = new_socket(settings.buffer_bytes);
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
    sockets.push_back(new_socket(settings.buffer_bytes));
    need(connect(sockets.back(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0, "connect");
    setsockopt(sockets.back(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  const double value = measure(sockets);
  for (const int socket : sockets) close(socket);
  close(listener);
  waitpid(child, nullptr, 0);
  return value;
}

double seconds(Clock::time_point from) {
  return std::chrono::duration<double>(Clock::now() - from).count();
}

int repetitions(size_t bytes) {
  return bytes <= (1u << 20) ? 100 : bytes <= (16u << 20) ? 20 : 5;
}

// Returns every combination that gpupool could use for a copy.
std::vector<TcpSettings> all_settings(int streams, size_t per_send) {
  std::vector<TcpSettings> all;
  for (const int buffer_bytes : kBufferBytes) {
    for (const bool spin : {false, true}) {
      for (int count = 1; count <= streams; count *= 2) all.push_back({count, buffer_bytes, spin, per_send});
    }
  }
  return all;
}

}  // namespace

std::string text(const TcpSettings& settings) {
  return std::to_string(settings.streams) + " x " +
         (settings.buffer_bytes == 0 ? "system's buffers"
                                     : std::to_string(settings.buffer_bytes / 1024) + " KiB") +
         (settings.spin ? ", spinning" : "");
}

double ping_pong_us(size_t request, size_t reply, bool spin) {
  const auto serve = [&](int socket) {
    std::vector<char> in(request), out(reply);
    while (receive_all(socket, in.data(), in.size(), spin)) send_all(socket, out.data(), out.size());
  };
  return against_child({}, serve, [&](const Sockets& sockets) {
    std::vector<char> out(request), in(reply);
    std::vector<double> times;
    for (int i = 0; i < 5000; ++i) {
      const auto begin = Clock::now();
      send_all(sockets[0], out.data(), out.size());
      need(receive_all(sockets[0], in.data(), in.size(), spin), "recv");
      times.push_back(seconds(begin) * 1e6);
    }
    return median(times);
  });
}

double tcp_GBps(size_t bytes, const TcpSettings& settings) {
  const size_t part = bytes / static_cast<size_t>(settings.streams);
  const auto serve = [&](int socket) {
    std::vector<char> in(part);
    const char done = 1;
    while (receive_all(socket, in.data(), in.size(), settings.spin)) send_all(socket, &done, 1);
  };
  return against_child(settings, serve, [&](const Sockets& sockets) {
    std::vector<char> out(bytes, 1);
    std::vector<double> rates;
    const auto send_part = [&](size_t i) {
      send_all(sockets[i], out.data() + i * part, part, settings.per_send);
      char done = 0;
      need(receive_all(sockets[i], &done, 1, settings.spin), "recv");
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

void measure_tcp(const std::string& name, size_t bytes, int streams, Samples& raw, size_t per_send) {
  for (const TcpSettings& settings : all_settings(streams, per_send)) {
    raw.add(name + ": " + text(settings), tcp_GBps(bytes, settings));
  }
}

FastestTcp fastest_tcp(const std::string& name, const Samples& raw) {
  FastestTcp fastest;
  for (const std::string& each : raw.names(name + ": ")) {
    const double rate = raw.median(each);
    if (rate > fastest.GBps) fastest = {each.substr(name.size() + 2), rate};
  }
  if (fastest.GBps == 0) throw std::runtime_error("no samples of " + name);
  return fastest;
}

}  // namespace gpupool::bench
