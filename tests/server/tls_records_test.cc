// Tests clients that use TLS records to take poold's time: key updates without end, and data in many small
// records.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>

#include "protocol/transport/tls/context.h"
#include "protocol/transport/tls/openssl.h"
#include "tests/server/fake_device_library.h"
#include "tests/server/processor_time.h"
#include "tests/support/catch.h"
#include "tests/support/certificates.h"
#include "tests/support/poold_process.h"
#include "tests/support/raw_client.h"
#include "tests/support/skip.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

constexpr int kMostUpdates = 1'000'000;  // 27 MB

// A function of libssl that protocol/transport/tls does not need.
template <class Function>
Function* libssl_function(const char* name) {
  static void* const library = ::dlopen("libssl.so.3", RTLD_NOW);
  auto* const found = library ? reinterpret_cast<Function*>(::dlsym(library, name)) : nullptr;
  if (!found) throw std::runtime_error(std::string("libssl.so.3 has no ") + name);
  return found;
}

// A TLS client that chooses its records. Blocks; each call returns false when the server has hung up.
class RecordClient {
 public:
  RecordClient(uint16_t port, const std::string& ca) {
    ::signal(SIGPIPE, SIG_IGN);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const timeval patience{20, 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    REQUIRE(::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    context_ = *transport::tls::Context::client({.ca = ca, .certificate = {}, .key = {}, .secret = {}});
    ssl_ = ssl().SSL_new(context_->get());
    REQUIRE(libssl_function<decltype(SSL_set_fd)>("SSL_set_fd")(ssl_, socket_) == 1);
    ssl().SSL_set_connect_state(ssl_);
    REQUIRE(ssl().SSL_do_handshake(ssl_) == 1);
  }
  ~RecordClient() {
    ssl().SSL_free(ssl_);
    ::close(socket_);
  }
  RecordClient(const RecordClient&) = delete;
  RecordClient& operator=(const RecordClient&) = delete;

  bool update_key() {
    return ssl().SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED) == 1 && ssl().SSL_do_handshake(ssl_) == 1;
  }
  // Sends one record.
  bool send(std::string_view bytes) {
    size_t sent = 0;
    return ssl().SSL_write_ex(ssl_, bytes.data(), bytes.size(), &sent) == 1 && sent == bytes.size();
  }
  // While on, the kernel collects records, so that many arrive at once.
  void cork(bool on) {
    const int value = on ? 1 : 0;
    REQUIRE(::setsockopt(socket_, IPPROTO_TCP, TCP_CORK, &value, sizeof value) == 0);
  }
  std::string receive(size_t size) {
    std::string bytes(size, '\0');
    for (size_t at = 0, got = 0; at < size; at += got)
      REQUIRE(ssl().SSL_read_ex(ssl_, bytes.data() + at, size - at, &got) == 1);
    return bytes;
  }
  hello::HelloReply receive_reply() {
    wire::Preamble preamble;
    std::memcpy(&preamble, receive(sizeof preamble).data(), sizeof preamble);
    const auto reply = hello::decode_hello_reply(receive(preamble.length));
    REQUIRE(reply);
    return *reply;
  }
  // Sends key updates until the server hangs up.
  bool is_dropped_for_key_updates() {
    for (int count = 0; count < kMostUpdates; ++count) {
      if (!update_key()) return true;
    }
    return false;
  }

 private:
  static const transport::tls::Openssl& ssl() { return **transport::tls::load_openssl(); }

  int socket_ = -1;
  std::shared_ptr<const transport::tls::Context> context_;
  SSL* ssl_ = nullptr;
};

struct TlsPoold {
  explicit TlsPoold(std::vector<std::string> options = {}) : authority("authority") {
    const auto files = authority.sign("server", "IP:127.0.0.1");
    options.insert(options.end(), {"--listen", "tls://127.0.0.1:0", "--tls-certificate", files.certificate,
                                   "--tls-key", files.key});
    poold.emplace(kDevice, options);
  }
  Authority authority;
  std::optional<PooldProcess> poold;
};

}  // namespace

TEST_CASE("a client that sends key updates instead of a hello is disconnected") {
  TlsPoold server({"--hello-timeout", "60"});
  RecordClient client(server.poold->port(), server.authority.certificate());
  CHECK(client.is_dropped_for_key_updates());
  CHECK(server.poold->await_log("too many records without data"));
}

TEST_CASE("a watcher or checkpoint client that sends key updates instead of a question is disconnected") {
  hello::Hello hello = test_hello();
  (GENERATE(false, true) ? hello.monitor : hello.checkpoint) = true;
  TlsPoold server;
  RecordClient client(server.poold->port(), server.authority.certificate());
  REQUIRE(client.send(hello_bytes(hello)));
  CHECK(client.receive_reply().status == hello::Status::ok);
  CHECK(client.is_dropped_for_key_updates());
}

TEST_CASE("a few key updates before and in a hello are accepted") {
  TlsPoold server;
  RecordClient client(server.poold->port(), server.authority.certificate());
  hello::Hello hello = test_hello();
  hello.monitor = true;
  const std::string bytes = hello_bytes(hello);
  for (const std::string& part : {bytes.substr(0, 20), bytes.substr(20)}) {
    for (int count = 0; count < 8; ++count) REQUIRE(client.update_key());
    REQUIRE(client.send(part));
  }
  CHECK(client.receive_reply().status == hello::Status::ok);
}

TEST_CASE("a hello in records of one byte does not take the time of the thread that schedules GPU turns") {
  TlsPoold server;
  hello::Hello hello = test_hello();
  hello.monitor = true;
  hello.program = std::string(30'000, 'p');
  hello.host = std::string(30'000, 'h');
  const std::string bytes = hello_bytes(hello);
  const ProcessorTime before = processor_time(server.poold->pid());
  for (int i = 0; i < 4; ++i) {
    RecordClient client(server.poold->port(), server.authority.certificate());
    client.cork(true);
    for (const char& byte : bytes) REQUIRE(client.send({&byte, 1}));
    client.cork(false);
    CHECK(client.receive_reply().status == hello::Status::ok);
  }
  const ProcessorTime after = processor_time(server.poold->pid());
  const uint64_t main = after.main - before.main, others = after.all - before.all - main;
  if (before.main == 0) return report_skip("this kernel does not tell threads' processor time");
  CHECK(main < others);
}
