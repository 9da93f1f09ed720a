// Tests poold's handling of everything that may arrive before a session begins.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <random>
#include <set>
#include <thread>

#include "tests/server/fake_device_library.h"
#include "tests/support/catch.h"
#include "tests/support/connect_from.h"
#include "tests/support/poold_process.h"
#include "tests/support/raw_client.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

std::string whole_hello() {
  return hello_bytes(test_hello());
}

void served(const PooldProcess& poold) {
  RawClient client(poold.endpoint());
  client.open();
  client.ping();
}

}  // namespace

TEST_CASE("a good hello is answered with the devices and the session's addresses") {
  PooldProcess poold(kDevice);
  RawClient client(poold.endpoint());
  const hello::HelloReply reply = client.open();
  CHECK(reply.protocol_version == wire::kProtocolVersion);
  CHECK(reply.driver_version == 13000);
  CHECK_FALSE(reply.server_version.empty());
  CHECK(reply.session_id.size() == 16);
  CHECK(reply.resume_timeout_ms == 0);  // the client cannot resume
  CHECK(reply.addresses.base == 0x2000'0000'0000);
  CHECK(reply.addresses.size == 1ull << 38);  // the fake device's limit
  const auto workers = poold.workers();
  CHECK(std::count(workers.begin(), workers.end(), static_cast<pid_t>(reply.worker_pid)) == 1);
  REQUIRE(reply.devices.size() == 2);
  const hello::Device& device = reply.devices[1];
  CHECK(device.name == "Fake device 1");
  CHECK(device.uuid == std::string(16, 'b'));
  CHECK(device.total_bytes == 9ull << 30);
  CHECK(device.pci_bus_id == "0000:02:00.0");
  CHECK(device.granularity == 2u << 20);
  CHECK(device.has_virtual_memory);
  REQUIRE(device.attributes.size() == 140);
  CHECK(device.attributes[0].id == 1);
  CHECK(device.attributes[139].id == 140);
  CHECK(device.attributes[139].value == 1400);
  client.ping();

  RawClient other(poold.endpoint());
  const hello::HelloReply second = other.open();
  CHECK(second.session_id != reply.session_id);
  CHECK(second.worker_pid != reply.worker_pid);
}

TEST_CASE("an address range that the client cannot reserve is released and another one is requested") {
  PooldProcess poold(kDevice, {}, {{"FAKE_DEVICE", "high"}});
  RawClient client(poold.endpoint());
  const hello::HelloReply reply = client.open();
  CHECK(reply.addresses.base == 0x1000'0000'0000);
  CHECK(reply.addresses.size != 0);
}

TEST_CASE("the range of addresses has room for many reservations as large as the GPUs' memory") {
  PooldProcess poold(kDevice, {}, {{"FAKE_DEVICE", "large"}});
  RawClient client(poold.endpoint());
  CHECK(client.open().addresses.size == uint64_t{16} << 40);
}

TEST_CASE("a device without virtual memory gets no address range") {
  PooldProcess poold(kDevice, {}, {{"FAKE_DEVICE", "novmm"}});
  RawClient client(poold.endpoint());
  const hello::HelloReply reply = client.open();
  CHECK(reply.addresses.size == 0);
  CHECK_FALSE(reply.devices[0].has_virtual_memory);
}

TEST_CASE("commands may follow the hello at once") {
  PooldProcess poold(kDevice);
  RawClient client(poold.endpoint());
  const wire::CommandHeader ping{.id = static_cast<uint16_t>(wire::Command::ping), .sequence = 1};
  client.send(whole_hello() + std::string(RawClient::bytes_of(ping)));
  CHECK(client.receive_reply().status == hello::Status::ok);
  const Message pong = client.receive_message();
  CHECK(pong.header.kind == wire::MessageKind::pong);
  CHECK(pong.header.sequence == 1);
}

TEST_CASE("another protocol version is refused with both versions named") {
  PooldProcess poold(kDevice);
  RawClient client(poold.endpoint());
  client.send_preamble({.protocol_version = wire::kProtocolVersion + 41, .length = 100});
  client.send("whatever the other version says here");
  const hello::HelloReply reply = client.receive_reply();
  CHECK(reply.status == hello::Status::wrong_version);
  CHECK(reply.protocol_version == wire::kProtocolVersion);
  CHECK(reply.reason.find("version " + std::to_string(wire::kProtocolVersion)) != std::string::npos);
  CHECK(reply.reason.find(std::to_string(wire::kProtocolVersion + 41)) != std::string::npos);
  CHECK(client.await_end());
  served(poold);
}

TEST_CASE("a hello that cannot be read, or is too long, is refused as malformed") {
  PooldProcess poold(kDevice);
  RawClient damaged(poold.endpoint());
  damaged.send_preamble({.length = 4});
  damaged.send("\xff\xff\xff\xff");
  hello::HelloReply reply = damaged.receive_reply();
  CHECK(reply.status == hello::Status::malformed);
  CHECK_FALSE(reply.reason.empty());
  for (const uint32_t length : {64u * 1024 + 1, 0x7fffffffu, 0xffffffffu}) {
    RawClient big(poold.endpoint());
    big.send_preamble({.length = length});
    reply = big.receive_reply();
    CHECK(reply.status == hello::Status::malformed);
    CHECK(reply.reason.find(std::to_string(length)) != std::string::npos);
    CHECK(big.await_end());
  }
  RawClient longest(poold.endpoint());
  hello::Hello hello = test_hello();
  hello.token = std::string(65'000, 't');
  longest.open(hello);
  longest.ping();
}

TEST_CASE("garbage is closed without an answer") {
  PooldProcess poold(kDevice);
  for (const std::string& garbage :
       {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), std::string(100, '\0')}) {
    RawClient client(poold.endpoint());
    client.send(garbage);
    CHECK(client.await_end() == "");
  }
  CHECK(poold.await_log("not gpupool's protocol", 2));
  served(poold);
}

TEST_CASE("a hello that comes byte by byte is served") {
  PooldProcess poold(kDevice);
  RawClient client(poold.endpoint());
  for (const char byte : whole_hello()) client.send({&byte, 1});
  CHECK(client.receive_reply().status == hello::Status::ok);
  client.ping();
}

TEST_CASE("a client that hangs up after any byte of its hello leaves nothing behind") {
  PooldProcess poold(kDevice, kTellsOfWorkers);
  served(poold);
  REQUIRE(poold.await_rest(1));
  const size_t descriptors = poold.descriptors();
  const std::string hello = whole_hello();
  for (size_t size = 0; size < hello.size(); ++size) {
    RawClient client(poold.endpoint());
    client.send(std::string_view(hello).substr(0, size));
  }
  served(poold);
  CHECK(eventually([&] { return poold.descriptors() == descriptors && poold.workers().size() == 2; }));
}

TEST_CASE("a client whose handshake times out is dropped and others are served meanwhile") {
  PooldProcess poold(kDevice, {"--hello-timeout", "3"});
  const auto start = std::chrono::steady_clock::now();
  RawClient silent(poold.endpoint());
  RawClient slow(poold.endpoint());
  slow.send_preamble({.length = 1000});
  slow.send("half a hello");
  served(poold);
  CHECK(silent.await_end() == "");
  CHECK(slow.await_end() == "");
  CHECK(std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(2900));
  CHECK(poold.await_log("handshake timed out", 2));
}

TEST_CASE("hundreds of silent connections are bounded and keep no other client out") {
  PooldProcess poold(kDevice, {"--hello-timeout", "60"});
  RawClient first(poold.endpoint());
  std::vector<int> silent;  // with one descriptor each, since an ordinary user may have 1,024
  for (int count = 0; count < 700; ++count) silent.push_back(connect_from("127.0.0.1", poold.port()));
  CHECK(std::count(silent.begin(), silent.end(), -1) == 0);
  RawClient last(poold.endpoint());
  served(poold);
  CHECK(first.await_end() == "");  // poold closed the oldest connection
  CHECK(poold.descriptors() < 560);
  last.open();
  last.ping();
  for (const int socket : silent) ::close(socket);
}

TEST_CASE("an address that opens connections in a loop keeps no other address out") {
  PooldProcess poold(kDevice, {"--hello-timeout", "60"});
  std::atomic<size_t> opened{0};
  const std::jthread flood([&](const std::stop_token& stop) {
    std::deque<int> open;
    while (!stop.stop_requested()) {
      const int socket = connect_from("127.0.0.2", poold.port());
      if (socket < 0) continue;
      open.push_back(socket);
      ++opened;
      if (open.size() <= 600) continue;
      ::close(open.front());
      open.pop_front();
    }
    for (const int socket : open) ::close(socket);
  });
  for (int session = 0; session < 8; ++session) {
    RawClient client(poold.endpoint());
    const size_t before = opened;
    REQUIRE(eventually([&] { return opened >= before + 1024; }));  // far more than poold keeps
    client.open();
    client.ping();
  }
}

TEST_CASE("connections above the rate limit of an address are closed and other addresses are served") {
  PooldProcess poold(kDevice, {"--connections-per-second", "1"});
  std::vector<int> sockets;
  while (occurrences(poold.log(), "too many new connections from 127.0.0.2") == 0) {
    REQUIRE(sockets.size() < 1000);
    sockets.push_back(connect_from("127.0.0.2", poold.port()));
    REQUIRE(sockets.back() >= 0);
  }
  served(poold);
  for (const int socket : sockets) ::close(socket);
}

TEST_CASE("a flood of garbage leaks no resources of poold") {
  PooldProcess poold(kDevice, kTellsOfWorkers);
  served(poold);
  REQUIRE(poold.await_rest(1));
  const size_t descriptors = poold.descriptors();
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    RawClient client(poold.endpoint());
    std::string bytes(random() % 2000, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    if (round % 3 == 0 && bytes.size() > 12) {  // a valid preamble passes the first check
      const wire::Preamble preamble{.length = static_cast<uint32_t>(random() % 3000)};
      bytes.replace(0, sizeof preamble, RawClient::bytes_of(preamble));
    }
    try {
      client.send(bytes);
    } catch (const std::runtime_error&) {  // poold closed the connection first
    }
  }
  served(poold);
  CHECK(eventually([&] { return poold.descriptors() == descriptors && poold.workers().size() == 2; }));
  CHECK(occurrences(poold.log(), "client_refused ") < 200);  // log lines are limited as well
}

TEST_CASE("sessions are limited and an ended session frees its slot") {
  PooldProcess poold(kDevice, {"--max-sessions", "2"});
  RawClient first(poold.endpoint());
  first.open();
  auto second = std::make_unique<RawClient>(poold.endpoint());
  second->open();
  RawClient third(poold.endpoint());
  third.send_hello();
  const hello::HelloReply reply = third.receive_reply();
  CHECK(reply.status == hello::Status::busy);
  CHECK(reply.reason.find("2 session slots") != std::string::npos);
  CHECK(third.await_end());
  second.reset();
  CHECK(poold.await_log("session_ended"));
  served(poold);
  first.ping();
}

TEST_CASE("a client's names cannot forge log lines") {
  PooldProcess poold(kDevice);
  hello::Hello hello = test_hello();
  hello.program = "evil\n2026-01-01 info poold listening address=\"x\"";
  hello.host = "host with bl\xe4nks";
  RawClient client(poold.endpoint());
  client.open(hello);
  CHECK(poold.await_log("session_started"));
  CHECK(poold.log().find("\n2026-01-01") == std::string::npos);
  CHECK(poold.log().find("program=\"evil\\n2026-01-01 info poold listening address=\\\"x\\\"\"") !=
        std::string::npos);
  CHECK(poold.log().find("host=\"host with bl\\u00e4nks\"") != std::string::npos);
}
