// gpupool-bench-attacker: attacks a poold. gpupool-bench --suite attacks runs it beside a well-behaved
// program.
//
//     gpupool-bench-attacker WAY PORT RATE END [CREDENTIAL]    RATE steps per second until END (monotonic.h)
//     gpupool-bench-attacker listen                            prints a port; accepts and closes connections
//
// A step makes the same system calls whatever the other side does, so that an attack on poold costs the
// machine as much as one on a listener that only accepts and closes; except that `handshakes` waits for the
// other side. Prints the number of steps per second.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "protocol/transport/shm/address.h"
#include "protocol/transport/tls/stream.h"
#include "protocol/wire/checkpoint.h"
#include "protocol/wire/peers.h"
#include "tests/bench/monotonic.h"
#include "tests/support/connect_from.h"
#include "tests/support/hostile_descriptors.h"
#include "tests/support/hostile_text.h"
#include "tests/support/raw_client.h"

namespace {

using namespace gpupool;
using bench::now;
using bench::sleep_until;
using testing::RawClient;

class Socket {
 public:
  explicit Socket(int descriptor = -1) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Socket() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int get() const { return descriptor_; }
  // Sends without blocking; drops what does not fit into the buffer.
  void send(std::string_view bytes) const {
    (void)::send(descriptor_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  void receive() const {
    std::array<char, 4096> ignored;
    (void)::recv(descriptor_, ignored.data(), ignored.size(), MSG_DONTWAIT);
  }

 private:
  int descriptor_;
};

struct Victim {
  uint16_t port = 0;
  std::string credential;  // checkpoint_questions: a tenant's token; handshakes: the CA's certificate file
};

Socket connect(const char* address, const Victim& victim) {
  return Socket(testing::connect_from(address, victim.port, SOCK_NONBLOCK));
}

Socket connect_beside(const Victim& victim) {
  const auto address =
      transport::shm::make_address(transport::shm::shm_endpoint_of_tcp("127.0.0.1", victim.port));
  Socket made(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (address) (void)::connect(made.get(), address->get(), address->size);
  return made;
}

std::string with_preamble(std::string_view body, uint16_t version = wire::kProtocolVersion) {
  const wire::Preamble preamble{.protocol_version = version, .length = static_cast<uint32_t>(body.size())};
  return std::string(RawClient::bytes_of(preamble)) + std::string(body);
}

// An attack executes its n-th step per call. Each attack connects from its own loopback address.
using Attack = std::function<void(size_t n)>;

// Opens connections and sends nothing. Keeps the newest 600, more than poold accepts before the handshake.
Attack flood(const Victim& victim) {
  return [victim, open = std::make_shared<std::array<Socket, 600>>()](size_t n) {
    (*open)[n % open->size()] = connect("127.0.0.2", victim);
  };
}

// Uses 512 connections, poold's limit before the handshake; each sends a hello byte by byte and reconnects
// after twelve.
Attack one_byte_at_a_time(const Victim& victim) {
  constexpr size_t kConnections = 512, kBytes = 12;
  const std::string hello = testing::hello_bytes(testing::test_hello());
  return [victim, hello, open = std::make_shared<std::array<Socket, kConnections>>()](size_t n) {
    Socket& one = (*open)[n % kConnections];
    const size_t byte = n / kConnections % kBytes;
    if (byte == 0) one = connect("127.0.0.3", victim);
    one.send({&hello[byte], 1});
  };
}

std::vector<std::string> malformed_hellos() {
  std::mt19937 random(7);
  std::string noise(2000, '\0');
  for (char& byte : noise) byte = static_cast<char>(random());
  hello::Hello hostile = testing::test_hello();
  for (int i = 0; i < 500; ++i) hostile.program += testing::kHostileText;
  hostile.host = hostile.tenant = hostile.program;
  const wire::Preamble endless{.length = 0xffffffff}, cut{.length = 60'000};
  return {"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
          std::string(100, '\0'),
          with_preamble("another version's hello", wire::kProtocolVersion + 41),
          with_preamble("\xff\xff\xff\xff"),
          with_preamble(noise),
          noise,
          with_preamble(std::string(100, '\x01'), wire::kPeerProtocolVersion),
          std::string(RawClient::bytes_of(endless)),
          std::string(RawClient::bytes_of(cut)) + noise,
          testing::hello_bytes(hostile)};
}

Attack malformed(const Victim& victim) {
  return [victim, hellos = malformed_hellos(), open = std::make_shared<std::array<Socket, 64>>()](size_t n) {
    Socket& one = (*open)[n % open->size()];
    one = connect("127.0.0.4", victim);
    one.send(hellos[n % hellos.size()]);
  };
}

// Sends wrong tokens from 5,000 addresses, more than poold tracks.
Attack wrong_tokens(const Victim& victim) {
  hello::Hello hello = testing::test_hello();
  hello.token = std::string(64, 'x');
  return [victim, bytes = testing::hello_bytes(hello),
          open = std::make_shared<std::array<Socket, 64>>()](size_t n) {
    const std::string address = "127.1." + std::to_string(n / 250 % 20) + "." + std::to_string(1 + n % 250);
    Socket& one = (*open)[n % open->size()];
    one = connect(address.c_str(), victim);
    one.send(bytes);
  };
}

// Uses 64 connections, the limit per tenant; each sends 8 checkpoint requests per step, more than the 500 per
// second that poold answers, and reconnects after 500 steps.
Attack checkpoint_questions(const Victim& victim) {
  constexpr size_t kConnections = 64, kSteps = 500, kQuestions = 8;
  hello::Hello hello = testing::test_hello();
  hello.token = victim.credential;
  hello.checkpoint = true;
  hello.pid_space = "here";
  std::string questions;
  for (size_t i = 0; i < kQuestions; ++i) {
    const wire::CheckpointQuestion question{
        .action = static_cast<wire::CheckpointAction>(i % wire::kCheckpointActions),
        .pid = 1,
        .session = i % wire::kCheckpointActions};
    questions += with_preamble(RawClient::bytes_of(question));
  }
  return [victim, bytes = testing::hello_bytes(hello), questions,
          open = std::make_shared<std::array<Socket, kConnections>>()](size_t n) {
    Socket& one = (*open)[n % kConnections];
    if (n / kConnections % kSteps == 0) {
      one = connect("127.0.0.5", victim);
      return one.send(bytes);
    }
    one.send(questions);
    one.receive();
  };
}

// Sends descriptors whose last close() blocks over the Unix socket of the same port; keeps the newest 32
// lingering.
Attack lingering_sockets(const Victim& victim) {
  struct Sent {
    explicit Sent(const Victim& victim) : connected(connect_beside(victim)) {
      if (testing::send_with_descriptors(connected.get(), "four", {lingers.descriptor()}) != 0) return;
      closes = std::jthread([this] { lingers.close(); });  // blocks if it is the last copy
    }
    ~Sent() { lingers.end_lingering(); }
    Socket connected;
    testing::LingeringSocket lingers;
    std::jthread closes;
  };
  return [victim, sent = std::make_shared<std::array<std::unique_ptr<Sent>, 32>>()](size_t n) {
    (*sent)[n % sent->size()] = std::make_unique<Sent>(victim);
  };
}

// Performs TLS handshakes one after another and disconnects after each.
Attack handshakes(const Victim& victim) {
  const auto context =
      transport::tls::Context::client({.ca = victim.credential, .certificate = {}, .key = {}, .secret = {}});
  if (!context) throw std::runtime_error(context.error().message);
  return [victim, context = *context](size_t) {
    const Socket connected = connect("127.0.0.6", victim);
    const auto stream = transport::tls::Stream::client(context, connected.get(), "127.0.0.1");
    if (!stream) throw std::runtime_error(stream.error().message);
    while (true) {
      const auto open = (*stream)->open();
      if (!open || *open) return;
      pollfd polled{connected.get(), static_cast<short>((*stream)->wants_to_send() ? POLLOUT : POLLIN), 0};
      if (::poll(&polled, 1, 1000) <= 0) return;
    }
  };
}

struct Way {
  const char* name;
  Attack (*begin)(const Victim& victim);
};
constexpr Way kWays[] = {
    {"flood", flood},
    {"one_byte_at_a_time", one_byte_at_a_time},
    {"malformed", malformed},
    {"wrong_tokens", wrong_tokens},
    {"checkpoint_questions", checkpoint_questions},
    {"lingering_sockets", lingering_sockets},
    {"handshakes", handshakes},
};

// Late steps are executed at once, so that the average rate is right on a busy machine.
void make_steps(const Attack& attack, double rate, double end) {
  const double begin = now();
  size_t made = 0;
  for (double time = begin; time < end; time = now()) {
    const double due = rate > 0 ? begin + static_cast<double>(made) / rate : time;
    if (due <= time)
      attack(made++);
    else
      sleep_until(std::min(due, end));
  }
  std::printf("steps %zu\nsteps_per_second %.6g\n", made, static_cast<double>(made) / (now() - begin));
}

[[noreturn]] void close_all_of(const Socket& listener) {
  while (true) {
    const int accepted = ::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC);
    if (accepted >= 0) ::close(accepted);
  }
}

// Listens on a TCP port and on the Unix socket that belongs to it, as poold does.
[[noreturn]] void accept_and_close() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const Socket tcp(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
      local(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  bool listens = ::bind(tcp.get(), reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                 ::listen(tcp.get(), SOMAXCONN) == 0 &&
                 ::getsockname(tcp.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0;
  const uint16_t port = ntohs(address.sin_port);
  const auto beside = transport::shm::make_address(transport::shm::shm_endpoint_of_tcp("127.0.0.1", port));
  listens = listens && beside && ::bind(local.get(), beside->get(), beside->size) == 0 &&
            ::listen(local.get(), SOMAXCONN) == 0;
  if (!listens) throw std::runtime_error("cannot listen on 127.0.0.1 and the Unix socket beside it");
  std::printf("port %u\n", port);
  std::fflush(stdout);
  // On a thread of its own, because closing a received descriptor may block.
  const std::jthread beside_it([&] { close_all_of(local); });
  close_all_of(tcp);
}

int attack(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  if (name == "listen") accept_and_close();
  for (const Way& way : kWays) {
    if (name != way.name || argc < 5) continue;
    const Victim victim{static_cast<uint16_t>(std::atoi(argv[2])), argc > 5 ? argv[5] : ""};
    make_steps(way.begin(victim), std::atof(argv[3]), std::atof(argv[4]));
    return 0;
  }
  std::fputs("gpupool-bench-attacker: expected WAY PORT RATE END [CREDENTIAL], or listen\n", stderr);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return attack(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpupool-bench-attacker: %s\n", error.what());
    return 1;
  }
}
