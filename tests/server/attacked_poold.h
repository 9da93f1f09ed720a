// A poold for tests that attack it and check that it still answers other clients promptly.
#pragma once
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/transport/shm/address.h"
#include "tests/server/fake_device_library.h"
#include "tests/support/catch.h"
#include "tests/support/hostile_descriptors.h"
#include "tests/support/http_get.h"
#include "tests/support/poold_process.h"
#include "tests/support/raw_client.h"

namespace gpupool::testing {

constexpr auto kSoon = std::chrono::seconds(LingeringSocket::kSeconds /
                                            2);  // bound for an answer; a poold blocked in close() exceeds it

// Each test runs twice: on this kernel, and with `old_kernel` as on a kernel without SO_PASSRIGHTS, which
// lets senders pass descriptors to poold.
struct AttackedPoold {
  explicit AttackedPoold(std::vector<std::string> options = {}, const Environment& environment = {},
                         bool old_kernel = GENERATE(false, true))
      : old_kernel(old_kernel) {
    options.insert(options.end(), {"--metrics", "127.0.0.1:0"});
    const auto start = [&] { poold.emplace(kDevice, options, environment); };
    if (old_kernel)
      without_pass_rights(start);
    else
      start();
    REQUIRE(poold->await_log("url=http://"));
    http = metrics_port(poold->log());
  }
  // Connects to the Unix socket that poold opens beside its TCP port by default.
  int connect() const {
    const auto address =
        transport::shm::make_address(transport::shm::shm_endpoint_of_tcp("127.0.0.1", poold->port()));
    REQUIRE(address);
    const int connected = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(::connect(connected, address->get(), address->size) == 0);
    return connected;
  }
  // Sends `bytes` with `count` copies of the descriptor, if the kernel permits that, and then closes this
  // process's copy. On older kernels the send must succeed or fail with EPIPE.
  void send(int connected, std::string_view bytes, LingeringSocket& lingers, size_t count = 1) const {
    const int error = send_with_descriptors(connected, bytes, std::vector<int>(count, lingers.descriptor()));
    if (error == 0) lingers.close();
    CAPTURE(old_kernel, std::strerror(error));
    if (old_kernel)
      CHECK((error == 0 || error == EPIPE));
    else
      CHECK((error == 0 || error == EPERM || error == EPIPE));
  }
  // Checks that poold answers an HTTP request and a new session within kSoon.
  void must_answer() const {
    const auto start = std::chrono::steady_clock::now();
    CHECK(http_get(http, "/healthz").find(" 200 ") != std::string::npos);
    RawClient client(poold->endpoint());
    client.open();
    client.ping();
    CHECK(std::chrono::steady_clock::now() - start < kSoon);
  }
  // Repeats must_answer() until poold's log contains `text`, for at most kSoon.
  void must_answer_until(const std::string& text) const {
    const auto give_up = std::chrono::steady_clock::now() + kSoon;
    do must_answer();
    while (poold->log().find(text) == std::string::npos && std::chrono::steady_clock::now() < give_up);
    CHECK(poold->log().find(text) != std::string::npos);
  }

  const bool old_kernel;
  mutable std::optional<PooldProcess> poold;
  uint16_t http = 0;
};

}  // namespace gpupool::testing
