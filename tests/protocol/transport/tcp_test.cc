// Tests the parts that only tcp has: connect timeouts, dead peers, IPv6, host names.
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "tests/protocol/transport/contract.h"
#include "tests/support/processes.h"
#include "tests/support/skip.h"

using namespace gpupool;
using namespace gpupool::transport;
using namespace gpupool::transport::contract;

namespace {

BackendUnderTest tcp_backend() {
  return backends().front();
}

// Drops every incoming packet of this socket from now on, as if its machine were gone. Returns false if the
// kernel permits that to root only.
bool play_dead(int socket) {
  sock_filter drop{BPF_RET | BPF_K, 0, 0, 0};
  const sock_fprog program{1, &drop};
  if (::setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0) return true;
  if (errno != EPERM) std::perror("SO_ATTACH_FILTER"), std::abort();
  return false;
}
constexpr const char* kNeedsFilters =
    "this kernel lets this user attach no filter to a socket (SO_ATTACH_FILTER)";

// Number of SYN packets that the kernel has retransmitted in this thread's network namespace.
long resent_syns() {
  std::ifstream file("/proc/thread-self/net/netstat");
  std::string names, values, name;
  long value = 0;
  while (std::getline(file, names) && std::getline(file, values)) {
    std::istringstream of_names(names), of_values(values);
    std::string protocol;
    of_names >> protocol, of_values >> protocol;
    while (of_names >> name && of_values >> value) {
      if (name == "TCPSynRetrans") return value;
    }
  }
  return -1;
}

}  // namespace

TEST_CASE("connecting ends at its time limit") {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  REQUIRE(::bind(listener, reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(::listen(listener, 0) == 0);
  REQUIRE(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  const Endpoint endpoint{"tcp", "127.0.0.1", ntohs(address.sin_port)};
  // Never accepted: once the queue is full, connects get no answer.
  std::vector<std::unique_ptr<Connection>> fillers;
  const auto start = Clock::now();
  Options options;
  options.connect_timeout = milliseconds(150);
  std::string message;
  for (int count = 0; count < 8 && message.empty(); ++count) {
    auto connection = connect(endpoint, options);
    if (connection) {
      fillers.push_back(std::move(*connection));
    } else {
      message = connection.error().message;
    }
  }
  CHECK(message.find(endpoint.text()) != std::string::npos);
  CHECK(message.find("150 ms") != std::string::npos);
  CHECK(message.find("firewall") != std::string::npos);
  CHECK(Clock::now() - start >= milliseconds(150));
  CHECK(Clock::now() - start < kLong);
  ::close(listener);
}

TEST_CASE(
    "connects to a server that is reachable after 3 s without waiting for the kernel's retry after 7 s") {
  bool connected = false;
  std::string missing;
  // A thread in its own network namespace, with the SYN timers of kernels before 6.5.
  std::thread([&] {
    if (::unshare(CLONE_NEWNET) != 0) return missing = "needs the right to make a network namespace", void();
    std::system("ip link set lo up; sysctl -qw net.ipv4.tcp_syn_linear_timeouts=0 2>/dev/null");
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (::bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(listener, 4) != 0 ||
        ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      return missing = "no listener in the namespace", void();
    }
    if (!play_dead(listener)) return ::close(listener), missing = kNeedsFilters, void();
    std::thread back([listener] {
      gpupool::testing::eventually([] { return resent_syns() >= 2; });  // after 3 s
      const int ignored = 0;
      ::setsockopt(listener, SOL_SOCKET, SO_DETACH_FILTER, &ignored, sizeof ignored);
    });
    Options options;
    options.connect_timeout = milliseconds(6500);
    connected = connect({"tcp", "127.0.0.1", ntohs(address.sin_port)}, options).ok();
    back.join();
    ::close(listener);
  }).join();
  if (!missing.empty()) return gpupool::testing::report_skip(missing);
  CHECK(connected);
}

TEST_CASE("rejects bad targets with a reason") {
  const auto unknown = connect({"tcp", "no-such-host.invalid", 5}, {});
  REQUIRE_FALSE(unknown);
  CHECK(unknown.error().message.find("tcp://no-such-host.invalid:5") != std::string::npos);
  const auto zero = connect({"tcp", "127.0.0.1", 0}, {});
  REQUIRE_FALSE(zero);
  CHECK(zero.error().message.find("port") != std::string::npos);
}

TEST_CASE("a port that is taken and an address of another host cannot be listened on") {
  const auto first = listen({"tcp", "127.0.0.1", 0}, {});
  REQUIRE(first);
  const auto second = listen((*first)->endpoint(), {});
  REQUIRE_FALSE(second);
  CHECK(second.error().message.find((*first)->endpoint().text()) != std::string::npos);
  CHECK(second.error().message.find("in use") != std::string::npos);
  CHECK_FALSE(listen({"tcp", "192.0.2.1", 0}, {}));
}

TEST_CASE("host names and IPv6 work") {
  const auto listener = listen({"tcp", "localhost", 0}, {});
  REQUIRE(listener);
  CHECK(connect({"tcp", "localhost", (*listener)->endpoint().port}, {}));
  const auto six = listen({"tcp", "::1", 0}, {});
  if (!six) return gpupool::testing::report_skip("no IPv6 loopback: " + six.error().message);
  const auto client = connect((*six)->endpoint(), {});
  REQUIRE(client);
  CHECK((*client)->peer() == "[::1]:" + std::to_string((*six)->endpoint().port));
}

TEST_CASE("small messages are not delayed") {
  Pair pair = make_pair(tcp_backend());
  for (Connection* side : {pair.client.get(), pair.server.get()}) {
    const int descriptor = side->release_descriptor();
    int on = 0;
    socklen_t size = sizeof on;
    REQUIRE(::getsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, &size) == 0);
    CHECK(on != 0);
    ::close(descriptor);
  }
}

TEST_CASE("detects a vanished host while data is unacknowledged") {
  Options options;
  options.dead_peer_timeout = milliseconds(1000);
  Pair pair = make_pair(tcp_backend(), options);
  const int dead = pair.server->release_descriptor();
  if (!play_dead(dead)) return ::close(dead), gpupool::testing::report_skip(kNeedsFilters);
  REQUIRE(send_text(*pair.client, "anybody there?"));
  const auto start = Clock::now();
  std::byte byte{};
  const auto received = receive_exact(*pair.client, {&byte, 1}, in(kLong));
  REQUIRE_FALSE(received);
  CHECK(received.error().code == ErrorCode::lost);
  CHECK(received.error().message.find(pair.client->peer()) != std::string::npos);
  CHECK(received.error().message.find("1000 ms") != std::string::npos);
  CHECK(Clock::now() - start >= milliseconds(900));
  CHECK(Clock::now() - start < kLong);
  ::close(dead);
}

TEST_CASE("detects a vanished host on an idle connection") {
  Options options;
  options.dead_peer_timeout = milliseconds(2000);
  Pair pair = make_pair(tcp_backend(), options);
  const int dead = pair.server->release_descriptor();
  if (!play_dead(dead)) return ::close(dead), gpupool::testing::report_skip(kNeedsFilters);
  const auto start = Clock::now();
  std::byte byte{};
  const auto received = receive_exact(*pair.client, {&byte, 1}, in(kLong));
  REQUIRE_FALSE(received);
  CHECK(received.error().code == ErrorCode::lost);
  CHECK(Clock::now() - start < kLong);
  ::close(dead);
}

TEST_CASE("a peer that is alive but does not read keeps its connection") {
  Options options;
  options.dead_peer_timeout = milliseconds(500);
  Pair pair = make_pair(tcp_backend(), options);
  const size_t total = fill(*pair.client);
  std::byte byte{};
  const auto late = receive_exact(*pair.client, {&byte, 1}, in(milliseconds(2500)));
  REQUIRE_FALSE(late);
  CHECK(late.error().message.find("timed out") != std::string::npos);
  std::vector<std::byte> sink(total);
  CHECK(receive_exact(*pair.server, sink, in(kLong)));
  REQUIRE(send_text(*pair.server, "awake"));
  CHECK(receive_text(*pair.client, 5) == "awake");
}

TEST_CASE("peers that hang up before they are accepted do not keep accept beyond its deadline") {
  constexpr int kHangUp = 20;
  const auto listener = listen({"tcp", "127.0.0.1", 0}, {});
  REQUIRE(listener);
  for (int count = 0; count < kHangUp; ++count) {
    auto connection = connect((*listener)->endpoint(), {});
    REQUIRE(connection);
    const int socket = (*connection)->release_descriptor();
    const linger at_once{1, 0};  // resets the connection
    REQUIRE(::setsockopt(socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) == 0);
    ::close(socket);
  }
  const auto stays = connect((*listener)->endpoint(), {});
  REQUIRE(stays);
  int calls = 1;
  while (!(*listener)->accept(Clock::now()) && calls < 10 * kHangUp) ++calls;
  CHECK(calls == kHangUp + 1);
}
