// Tests the parts that only shm has: memory that a hostile peer writes, descriptors beside the bytes, sockets
// in the file system.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "protocol/transport/shm/address.h"
#include "protocol/transport/shm/connection.h"
#include "protocol/transport/shm/ring.h"
#include "tests/protocol/transport/contract.h"
#include "tests/support/processes.h"
#include "tests/support/skip.h"

using namespace gpupool;
using namespace gpupool::transport;
using namespace gpupool::transport::contract;
using gpupool::testing::TemporaryFolder;
using shm::RingControl;

namespace {

BackendUnderTest shm_backend() {
  for (const auto& backend : backends()) {
    if (backend.scheme == "shm" && backend.upgraded) return backend;
  }
  throw std::logic_error("no shm");
}

int connect_raw(const Endpoint& endpoint) {
  const int made = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto address = shm::make_address(endpoint);
  REQUIRE(address);
  REQUIRE(::connect(made, address->get(), address->size) == 0);
  return made;
}

// A hostile client that accesses the rings directly.
struct Hostile {
  Hostile() {
    const auto backend = shm_backend();
    auto listener = listen(backend.free_endpoint(), {});
    REQUIRE(listener);
    socket = connect_raw((*listener)->endpoint());
    auto accepted = (*listener)->accept(in(kLong));
    REQUIRE(accepted);
    server = std::move(*accepted);
    REQUIRE(server->upgrade(Side::server, in(kLong)));
    char bytes[64];
    iovec part{bytes, sizeof bytes};
    alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    REQUIRE(::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) > 0);
    int received[2];
    std::memcpy(received, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof received);
    memory = received[0];
    room = received[1];
    struct stat about {};
    REQUIRE(::fstat(memory, &about) == 0);
    size = static_cast<size_t>(about.st_size);
    void* const mapped = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    REQUIRE(mapped != MAP_FAILED);
    controls = static_cast<RingControl*>(mapped);
  }
  ~Hostile() {
    ::munmap(controls, size);
    for (const int descriptor : {memory, room, socket}) ::close(descriptor);
  }

  std::unique_ptr<Connection> server;
  int socket = -1, memory = -1, room = -1;
  size_t size = 0;
  RingControl* controls = nullptr;  // 0: to the server; 1: from it
};

}  // namespace

TEST_CASE("impossible ring indices end only the connection") {
  const uint64_t nonsense =
      GENERATE(as<uint64_t>(), ~0ull >> 1, 1ull << 63, shm::kRingBytes + 1, ~0ull - shm::kRingBytes);
  std::byte bytes[64]{};
  const iovec buffer{bytes, sizeof bytes};
  {
    Hostile client;
    client.controls[0].written.store(nonsense);
    const auto ready = client.server->wait(true, false, in(kLong));
    REQUIRE(ready);
    CHECK(*ready == Connection::Ready::receive);
    const auto received = client.server->receive_some(bytes);
    REQUIRE_FALSE(received);
    CHECK(received.error().code == ErrorCode::malformed);
  }
  Hostile client;
  client.controls[1].read.store(nonsense);
  const auto ready = client.server->wait(false, true, in(kLong));
  REQUIRE(ready);
  const auto sent = client.server->send_some({&buffer, 1});
  REQUIRE_FALSE(sent);
  CHECK(sent.error().code == ErrorCode::malformed);
}

TEST_CASE("a peer that overwrites all of the shared memory crashes nothing") {
  Hostile client;
  std::atomic<bool> done{false};
  std::thread pest([&] {
    uint32_t state = 1;
    auto* const words = reinterpret_cast<std::atomic<uint32_t>*>(client.controls);
    while (!done.load()) {
      state = state * 1664525u + 1013904223u;
      words[(state >> 8) % (2 * sizeof(RingControl) / sizeof(uint32_t))].store(state >> 20);
    }
  });
  std::vector<std::byte> bytes(200'000);
  const iovec buffer = as_iovec(bytes);
  for (int round = 0; round < 2000; ++round) {
    (void)client.server->send_some({&buffer, 1});
    (void)client.server->receive_some(bytes);
    (void)client.server->wait(true, true, Clock::now());
  }
  done.store(true);
  pest.join();
}

TEST_CASE("the rings cannot be shrunk or grown") {
  Hostile client;
  CHECK(::ftruncate(client.memory, 4096) != 0);
  CHECK(::ftruncate(client.memory, static_cast<off_t>(2 * client.size)) != 0);
  CHECK(::fcntl(client.memory, F_ADD_SEALS, F_SEAL_WRITE) != 0);
}

TEST_CASE("the client rejects an offer that is not shared memory") {
  auto listener = listen(unused_name(), {});
  REQUIRE(listener);
  auto client = connect((*listener)->endpoint(), {});
  REQUIRE(client);
  auto server = (*listener)->accept(in(kLong));
  REQUIRE(server);
  const int what = GENERATE(0, 1, 2);
  // A file without seals, memory of an odd size, memory that can shrink.
  const int file = ::memfd_create("bad", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(::ftruncate(file, what == 1 ? 4096 + 3 * 65536 : 4096 + 2 * 65536) == 0);
  if (what == 1) REQUIRE(::fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  if (what == 2) REQUIRE(::fcntl(file, F_ADD_SEALS, F_SEAL_GROW) == 0);
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  REQUIRE((*server)->send_descriptor(file, in(kLong)));
  REQUIRE((*server)->send_descriptor(ends[0], in(kLong)));
  const auto upgraded = (*client)->upgrade(Side::client, in(kLong));
  REQUIRE_FALSE(upgraded);
  CHECK(upgraded.error().code == ErrorCode::malformed);
  for (const int descriptor : {file, ends[0], ends[1]}) ::close(descriptor);
}

TEST_CASE("times out if a server never offers shared memory") {
  auto listener = listen(unused_name(), {});
  REQUIRE(listener);
  auto client = connect((*listener)->endpoint(), {});
  REQUIRE(client);
  auto server = (*listener)->accept(in(kLong));
  REQUIRE(server);
  CHECK_FALSE((*client)->upgrade(Side::client, in(milliseconds(50))));
}

TEST_CASE("descriptors arrive in order beside the bytes whether the peer sleeps or not") {
  Pair pair = make_pair(shm_backend());
  CHECK(pair.client->shares_memory());
  const auto nothing = pair.server->receive_descriptor(Clock::now());
  REQUIRE_FALSE(nothing);
  const auto before = open_descriptors();
  for (int round = 0; round < 3; ++round) {
    const int sent = ::memfd_create("sent", MFD_CLOEXEC);
    REQUIRE(::ftruncate(sent, 100 + round) == 0);
    REQUIRE(pair.client->send_descriptor(sent, in(kLong)));
    ::close(sent);
  }
  // A descriptor is neither data nor the end of the connection.
  const auto ready = pair.server->wait(true, false, in(milliseconds(20)));
  REQUIRE(ready);
  CHECK(*ready == Connection::Ready::none);
  REQUIRE(send_text(*pair.client, "bytes"));
  CHECK(receive_text(*pair.server, 5) == "bytes");
  for (int round = 0; round < 3; ++round) {
    const auto received = pair.server->receive_descriptor(in(kLong));
    REQUIRE(received);
    struct stat about {};
    REQUIRE(::fstat(*received, &about) == 0);
    CHECK(about.st_size == 100 + round);
    CHECK((::fcntl(*received, F_GETFD) & FD_CLOEXEC) != 0);
    ::close(*received);
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("unexpected descriptors end the connection and are closed") {
  Pair pair = make_pair(shm_backend());
  const auto before = open_descriptors().size();
  for (size_t count = 0; count <= shm::kMostDescriptors; ++count) {
    REQUIRE(pair.client->send_descriptor(STDERR_FILENO, in(kLong)));
  }
  const auto ready = pair.server->wait(true, false, in(kLong));
  REQUIRE_FALSE(ready);
  CHECK(ready.error().code == ErrorCode::malformed);
  pair.server.reset();
  CHECK(open_descriptors().size() < before);
}

TEST_CASE("a reader and a writer detect a peer killed in the middle of a message") {
  auto listener = listen(unused_name(), {});
  REQUIRE(listener);
  const bool reads = GENERATE(true, false);
  const pid_t child = ::fork();
  if (child == 0) {
    auto client = connect((*listener)->endpoint(), {});
    if (!client || !(*client)->upgrade(Side::client, in(kLong))) ::_exit(1);
    const std::vector<std::byte> half(1000);
    const iovec buffer = as_iovec(half);
    if (!send_all(**client, {&buffer, 1}, in(kLong))) ::_exit(1);
    ::pause();
    ::_exit(0);
  }
  auto server = (*listener)->accept(in(kLong));
  REQUIRE(server);
  REQUIRE((*server)->upgrade(Side::server, in(kLong)));
  std::vector<std::byte> message(2 * shm::kRingBytes);
  REQUIRE(receive_exact(**server, std::span(message).first(500), in(kLong)));
  std::thread killer([child] {
    std::this_thread::sleep_for(milliseconds(50));
    ::kill(child, SIGKILL);
  });
  if (reads) {
    const auto received = receive_exact(**server, message, in(kLong));
    REQUIRE_FALSE(received);
    CHECK(received.error().code == ErrorCode::lost);
    CHECK(received.error().message.find("middle") != std::string::npos);
  } else {
    const iovec buffer = as_iovec(message);
    const auto sent = send_all(**server, {&buffer, 1}, in(kLong));
    REQUIRE_FALSE(sent);
    CHECK(sent.error().code == ErrorCode::reset);
  }
  killer.join();
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WIFSIGNALED(status));
}

TEST_CASE("a forked child does not keep its parent's connection open") {
  Pair pair = make_pair(shm_backend());
  REQUIRE(send_text(*pair.client, "before"));
  int alive[2];
  REQUIRE(::pipe2(alive, O_CLOEXEC) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(alive[1]);
    const int descriptor = pair.client->release_descriptor();
    const int other = pair.server->release_descriptor();
    if (descriptor < 0 || ::close(descriptor) != 0 || ::close(other) != 0) ::_exit(1);
    char byte = 0;
    while (::read(alive[0], &byte, 1) > 0) {
    }
    ::_exit(0);
  }
  CHECK(receive_text(*pair.server, 6) == "before");
  pair.client->close();
  std::byte byte{};
  const auto end = receive_exact(*pair.server, {&byte, 1}, in(kLong));
  REQUIRE_FALSE(end);
  CHECK(end.error().code == ErrorCode::closed);
  for (const int descriptor : alive) ::close(descriptor);
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
}

TEST_CASE("a stale socket file is replaced and one in use is kept and removed at the end") {
  const TemporaryFolder folder;
  const Endpoint endpoint{"shm", folder.path() / "pool.sock", 0};
  {
    const auto listener = listen(endpoint, {});
    REQUIRE(listener);
    REQUIRE(connect(endpoint, {}));
    const auto second = listen(endpoint, {});
    REQUIRE_FALSE(second);
    CHECK(second.error().message.find("in use") != std::string::npos);
  }
  CHECK(::access(endpoint.host.c_str(), F_OK) != 0);
  const auto address = shm::make_address(endpoint);
  REQUIRE(address);
  const int left_over = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  REQUIRE(::bind(left_over, address->get(), address->size) == 0);
  ::close(left_over);
  const auto refused = connect(endpoint, {});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message.find("refused") != std::string::npos);
  const auto listener = listen(endpoint, {});
  REQUIRE(listener);
  CHECK(connect(endpoint, {}));
}

TEST_CASE("rejects a path that is too long or not a socket with the reason") {
  const Endpoint longest{"shm", "/" + std::string(107, 'x'), 0};
  for (const std::string& message :
       {connect(longest, {}).error().message, listen(longest, {}).error().message}) {
    CHECK(message.find("too long") != std::string::npos);
    CHECK(message.find("107") != std::string::npos);
  }
  const auto missing = connect({"shm", "/nowhere/pool.sock", 0}, {});
  REQUIRE_FALSE(missing);
  CHECK(missing.error().message.find("shm:///nowhere/pool.sock") != std::string::npos);
  CHECK(missing.error().message.find("No such file") != std::string::npos);
  CHECK_FALSE(listen({"shm", "/nowhere/pool.sock", 0}, {}));
  CHECK_FALSE(listen({"shm", "/dev/null", 0}, {}));
}

namespace {

// A process of user 65534 that listens at a Unix socket's address. Only root can start it.
class ForeignListener {
 public:
  explicit ForeignListener(const Endpoint& endpoint) {
    REQUIRE(::pipe2(ready_, O_CLOEXEC) == 0);
    process_ = ::fork();
    if (process_ == 0) {
      if (::setuid(65534) != 0) ::_exit(1);
      const auto taken = listen(endpoint, {});
      if (!taken || ::write(ready_[1], "x", 1) != 1) ::_exit(1);
      ::pause();
    }
    ::close(ready_[1]);
    char byte = 0;
    CHECK(::read(ready_[0], &byte, 1) == 1);
  }
  ~ForeignListener() {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    ::close(ready_[0]);
  }
  ForeignListener(const ForeignListener&) = delete;
  ForeignListener& operator=(const ForeignListener&) = delete;

 private:
  int ready_[2];
  pid_t process_ = -1;
};

}  // namespace

TEST_CASE("an abstract name that another user has taken is not trusted") {
  if (::geteuid() != 0) return gpupool::testing::report_skip("only root can act as another user");
  auto tcp = listen({"tcp", "127.0.0.1", 0}, {});
  REQUIRE(tcp);
  const ForeignListener squatter(shm::shm_endpoint_of_tcp("127.0.0.1", (*tcp)->endpoint().port));
  Options options;
  options.prefer_shared_memory = true;
  const auto connection = connect((*tcp)->endpoint(), options);
  REQUIRE(connection);
  CHECK_FALSE((*connection)->shares_memory());
}

TEST_CASE("an abstract name given as the server's address is refused where another user listens") {
  if (::geteuid() != 0) return gpupool::testing::report_skip("only root can act as another user");
  const std::string name = "@gpupool-test-" + std::to_string(::getpid());
  {
    const ForeignListener squatter({"shm", name, 0});
    const auto connection = connect({"shm", name, 0}, {});
    REQUIRE_FALSE(connection);
    CHECK(connection.error().message.find("runs as user 65534") != std::string::npos);
    CHECK(connection.error().message.find("shm:///PATH") != std::string::npos);
  }
  const auto own = listen({"shm", name, 0}, {});
  REQUIRE(own);
  CHECK(connect({"shm", name, 0}, {}));
}

TEST_CASE("a tcp connection on this host uses shared memory if both sides allow it") {
  auto tcp = listen({"tcp", "127.0.0.1", 0}, {});
  REQUIRE(tcp);
  const Endpoint endpoint = (*tcp)->endpoint();
  Options options;
  options.prefer_shared_memory = true;
  const auto shares = [&](const Options& with) {
    const auto connection = connect(endpoint, with);
    REQUIRE(connection);
    return (*connection)->shares_memory();
  };
  CHECK_FALSE(shares(options));
  const auto anywhere = listen(shm::shm_endpoint_of_tcp(GENERATE("127.0.0.1", "0.0.0.0"), endpoint.port), {});
  REQUIRE(anywhere);
  CHECK(shares(options));
  CHECK_FALSE(shares({}));
}

TEST_CASE("a sender detects with one check whether the peer is alive") {
  Hostile client;
  char byte = 0;
  const iovec part{&byte, 1};
  client.server->check_peer_alive();
  REQUIRE(client.server->send_some({&part, 1}).ok());
  REQUIRE(::shutdown(client.socket, SHUT_RDWR) == 0);  // as at the end of its process
  client.server->check_peer_alive();
  CHECK_FALSE(client.server->send_some({&part, 1}).ok());
}
