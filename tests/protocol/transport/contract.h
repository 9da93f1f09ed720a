// Common parts of the contract tests of all transports. A new transport is added to backends().
#pragma once
#include <poll.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "protocol/transport/tls/stream.h"
#include "protocol/transport/transport.h"
#include "tests/support/asleep.h"
#include "tests/support/catch.h"
#include "tests/support/certificates.h"

namespace gpupool::transport::contract {

using std::chrono::milliseconds;
using testing::start_until_asleep;
using testing::wait_until_asleep;

struct BackendUnderTest {
  std::string scheme;
  std::function<Endpoint()> free_endpoint;   // for listeners
  std::function<Endpoint()> nobody_listens;  // connect() is refused
  bool upgraded = true;                      // true: as after the hello; false: as during it
};

inline Endpoint unused_name() {
  static std::atomic<int> count{0};
  return {"shm", "@gpupool-test-" + std::to_string(::getpid()) + "-" + std::to_string(++count), 0};
}

// False on machines without RDMA devices, as most test machines are; tests/softroce runs these tests in a
// virtual machine with two devices.
inline bool has_rdma() {
  std::error_code none;
  return std::filesystem::directory_iterator("/sys/class/infiniband", none) !=
         std::filesystem::directory_iterator();
}

// The listening address selects the server's device.
inline Endpoint rdma_endpoint(uint16_t port) {
  const char* const address = std::getenv("GPUPOOL_TEST_RDMA_ADDRESS");
  return {"rdma", address ? address : "127.0.0.1", port};
}

inline BackendUnderTest at_address(const std::string& scheme, const std::string& host, bool upgraded = true) {
  return {scheme,
          [=] {
            return Endpoint{scheme, host, 0};
          },
          [=] {
            return Endpoint{scheme, host, 1};
          },
          upgraded};
}

// The transports to test. With GPUPOOL_TEST_TRANSPORT=rdma: queue pairs from one device to itself and, if
// there are two devices, to the one with the first of GPUPOOL_TEST_RDMA_ADDRESSES.
inline std::vector<BackendUnderTest> backends() {
  if (const char* wished = std::getenv("GPUPOOL_TEST_TRANSPORT");
      !wished || std::string_view(wished) != "rdma") {
    return {at_address("tcp", "127.0.0.1"),
            at_address("tls", "127.0.0.1"),
            {"shm", unused_name, unused_name},
            {"shm", unused_name, unused_name, false},
            at_address("rdma", "127.0.0.1", false)};
  }
  std::vector<BackendUnderTest> found{at_address("rdma", "127.0.0.1")};
  if (const char* addresses = std::getenv("GPUPOOL_TEST_RDMA_ADDRESSES")) {
    const std::string text = addresses;
    found.push_back(at_address("rdma", text.substr(0, text.find(' '))));
  }
  return found;
}

struct Pair {
  std::unique_ptr<Connection> client;
  std::unique_ptr<Connection> server;
};

inline Deadline in(milliseconds time) {
  return Clock::now() + time;
}
constexpr milliseconds kLong{60'000};  // no operation takes that long unless it hangs

// Does what poold does between accepting a TLS connection and handing it to a worker. Consumes the caller's
// connection.
inline Result<std::unique_ptr<Connection>> hand_over_tls(Connection& accepted, Options options,
                                                         const testing::Authority::Files& files) {
  const int socket = accepted.release_descriptor();
  auto context =
      tls::Context::server({.ca = {}, .certificate = files.certificate, .key = files.key, .secret = {}});
  if (!context) return context.error();
  auto stream = tls::Stream::server(*context, socket);
  if (!stream) return stream.error();
  for (auto open = (*stream)->open(); !open || !*open; open = (*stream)->open()) {
    if (!open) return open.error();
    pollfd polled{socket, static_cast<short>((*stream)->wants_to_send() ? POLLOUT : POLLIN), 0};
    if (::poll(&polled, 1, 20'000) != 1) return Error{ErrorCode::lost, "no TLS in time"};
  }
  const auto secret = (*stream)->secret();
  if (!secret) return secret.error();
  (*stream)->end();
  options.tls = {};
  options.tls.secret.assign(secret->data(), secret->size());
  return adopt("tls", socket, options);
}

inline const testing::Authority& test_authority() {
  static const testing::Authority authority("gpupool test");
  return authority;
}
inline const testing::Authority::Files& test_certificate() {
  static const testing::Authority::Files files =
      test_authority().sign("server", "IP:127.0.0.1,DNS:localhost");
  return files;
}

inline Pair make_pair(const BackendUnderTest& backend, Options options = {}) {
  if (backend.scheme == "tls") options.tls.ca = test_authority().certificate();
  if (backend.scheme == "rdma" && backend.upgraded) options.rdma.use = RdmaOptions::Use::always;
  auto listener = listen(backend.free_endpoint(), options);
  REQUIRE(listener);
  auto client = connect((*listener)->endpoint(), options);
  REQUIRE(client);
  auto server = (*listener)->accept(in(kLong));
  REQUIRE(server);
  if (backend.upgraded) {
    Result<void> offered;
    std::thread other([&] {
      if (backend.scheme == "tls") server = hand_over_tls(**server, options, test_certificate());
      offered = server ? (*server)->upgrade(Side::server, in(kLong)) : server.error();
    });
    const auto upgraded = (*client)->upgrade(Side::client, in(kLong));
    other.join();
    if (!offered) FAIL(offered.error().message);
    REQUIRE(upgraded);
    REQUIRE((backend.scheme != "rdma" || (*client)->carrier().starts_with("rdma")));
  }
  return {std::move(*client), std::move(*server)};
}

// Bytes in which a swap, a gap or a repetition is detected. Made eight at a time, because tests are compiled
// without optimisation.
inline std::vector<std::byte> pattern(size_t size, uint32_t seed) {
  std::vector<std::byte> bytes(size);
  std::byte* const to = bytes.data();
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1, word = 0;
  for (size_t at = 0; at < size; at += sizeof word) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    word = state ^ state >> 32;  // the low bits of `state` repeat soon
    if (size - at >= sizeof word)
      std::memcpy(to + at, &word, sizeof word);
    else
      std::memcpy(to + at, &word, size - at);
  }
  return bytes;
}

// Compares by memcmp(), which == of these vectors does not do.
inline bool are_same(const std::vector<std::byte>& one, const std::vector<std::byte>& other) {
  return one.size() == other.size() && std::memcmp(one.data(), other.data(), one.size()) == 0;
}

inline iovec as_iovec(const std::vector<std::byte>& bytes) {
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};
}
inline iovec as_iovec(const std::string& text) {
  return {const_cast<char*>(text.data()), text.size()};
}

inline Result<void> send_text(Connection& connection, const std::string& text) {
  const iovec buffer = as_iovec(text);
  return send_all(connection, {&buffer, 1}, in(kLong));
}
inline std::string receive_text(Connection& connection, size_t size) {
  std::string text(size, '\0');
  const auto received = receive_exact(connection, std::as_writable_bytes(std::span(text)), in(kLong));
  return received ? text : "error: " + received.error().message;
}

// Sends until nothing more fits, even after the kernel has had time to transmit.
inline size_t fill(Connection& connection) {
  const std::vector<std::byte> block(1 << 20);
  const iovec buffer = as_iovec(block);
  size_t total = 0;
  for (bool rested = false; true;) {
    const auto sent = connection.send_some({&buffer, 1});
    REQUIRE(sent);
    total += *sent;
    if (*sent == 0 && rested) return total;
    rested = *sent == 0;
    if (rested) {
      const auto ready = connection.wait(false, true, in(milliseconds(50)));
      REQUIRE(ready);
    }
  }
}

inline std::set<int> open_descriptors() {
  std::set<int> open;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    open.insert(std::stoi(entry.path().filename().string()));
  }
  return open;
}

}  // namespace gpupool::transport::contract
