// Connections between the two devices of the guest, for tests that break the cable or one end. Needs
// tests/softroce.
#pragma once
#include "protocol/transport/direct_memory.h"
#include "tests/protocol/transport/contract.h"
#include "tests/rdma/cable.h"

namespace gpupool::transport::contract {

inline Pair make_pair_over_cable(const Options& options = {}) {
  return make_pair(at_address("rdma", testing::kNear), options);
}

inline void require(const Result<void>& result) {
  INFO((result ? "" : result.error().message));
  REQUIRE(result);
}

inline Result<void> send_all_of(Connection& connection, const std::vector<std::byte>& bytes) {
  const iovec part = as_iovec(bytes);
  return send_all(connection, {&part, 1}, in(kLong));
}

// Posts a transfer and waits for its completion, at most kLong.
inline Result<void> complete(DirectMemory& memory, const Result<void>& posted) {
  if (!posted) return posted;
  const Deadline deadline = in(kLong);
  for (uint64_t cookie = 0; Clock::now() < *deadline;) {
    const auto done = memory.completed({&cookie, 1});
    if (!done) return done.error();
    if (*done != 0) return {};
    if (const auto waited = memory.wait(deadline); !waited) return waited;
  }
  return Error{ErrorCode::lost, "not complete in time"};
}

// A connection after upgrade(), with the result at each end.
struct Upgraded {
  Pair pair;
  Result<void> client, server;
};

inline Upgraded upgrade(const Endpoint& place, const Options& client_options, const Options& server_options) {
  auto listener = listen(place, server_options);
  REQUIRE(listener);
  auto client = connect((*listener)->endpoint(), client_options);
  REQUIRE(client);
  auto server = (*listener)->accept(in(kLong));
  REQUIRE(server);
  Upgraded made{{std::move(*client), std::move(*server)}, {}, {}};
  std::thread other([&] { made.server = made.pair.server->upgrade(Side::server, in(kLong)); });
  made.client = made.pair.client->upgrade(Side::client, in(kLong));
  other.join();
  return made;
}

// Both ends' reasons for not using rdma.
inline std::string reasons(const Upgraded& upgraded) {
  std::string text;
  for (const auto* end : {&upgraded.client, &upgraded.server})
    text += (*end ? "" : end->error().message) + "; ";
  return text + upgraded.pair.client->carrier() + "; " + upgraded.pair.server->carrier();
}

// Checks that bytes arrive in both directions.
inline void require_talk(const Pair& pair) {
  REQUIRE(send_text(*pair.client, "ping"));
  REQUIRE(receive_text(*pair.server, 4) == "ping");
  REQUIRE(send_text(*pair.server, "pong"));
  REQUIRE(receive_text(*pair.client, 4) == "pong");
}

}  // namespace gpupool::transport::contract
