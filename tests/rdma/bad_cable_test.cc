// Tests faults of the cable: packet loss only slows transfers down, and a link failure ends them with an
// error within a bounded time.
#include <cstring>

#include "tests/rdma/cable.h"
#include "tests/rdma/pair.h"

using namespace gpupool;
using namespace gpupool::transport;
using namespace gpupool::transport::contract;
using namespace gpupool::testing;

namespace {

void transfer_both_ways(const Pair& pair, size_t bytes) {
  const auto up = pattern(bytes, 1), down = pattern(bytes, 2);
  std::vector<std::byte> at_server(bytes), at_client(bytes);
  Result<void> results[4];
  std::thread threads[] = {
      std::thread([&] { results[0] = send_all_of(*pair.client, up); }),
      std::thread([&] { results[1] = send_all_of(*pair.server, down); }),
      std::thread([&] { results[2] = receive_exact(*pair.server, at_server, in(kLong)); }),
      std::thread([&] { results[3] = receive_exact(*pair.client, at_client, in(kLong)); })};
  for (auto& thread : threads) thread.join();
  for (const auto& result : results) require(result);
  CHECK(are_same(at_server, up));
  CHECK(are_same(at_client, down));
}

// The worker's side reads the program's memory and writes other bytes to it.
void transfer_directly(const Pair& pair, size_t bytes) {
  auto* const client = pair.client->direct_memory();
  auto* const server = pair.server->direct_memory();
  REQUIRE(client);
  REQUIRE(server);
  auto program = pattern(bytes, 3), worker = pattern(bytes, 4);
  const auto original = program, answer = worker;
  const auto far = client->add(program.data(), bytes, DirectMemory::Access::remote);
  const auto near = server->add(worker.data(), bytes, DirectMemory::Access::local);
  REQUIRE(far);
  REQUIRE(near);
  const DirectMemory::Transfer all{.local = worker.data(),
                                   .local_key = near->local_key,
                                   .remote_key = far->remote_key,
                                   .remote = reinterpret_cast<uintptr_t>(program.data()),
                                   .bytes = static_cast<uint32_t>(bytes),
                                   .cookie = 1};
  require(complete(*server, server->read(all)));
  CHECK(are_same(worker, original));
  std::memcpy(worker.data(), answer.data(), bytes);
  require(complete(*server, server->write(all)));
  require(complete(*server, server->flush(all)));
  CHECK(are_same(program, answer));
  server->remove(*near);
  client->remove(*far);
}

}  // namespace

TEST_CASE("loss, reordering, duplication and corruption only slow transfers down") {
  const std::string fault =
      GENERATE(as<std::string>(), "loss 1%", "delay 1ms reorder 98%", "duplicate 2%", "corrupt 1%");
  INFO(fault);
  const BadCable cable(fault);
  const Pair pair = make_pair_over_cable();
  transfer_both_ways(pair, 1 << 20);
  for (int round = 0; round < 20; ++round) require_talk(pair);
  transfer_directly(pair, 1 << 20);
}

TEST_CASE("a short link outage only delays transfers") {
  const Pair pair = make_pair_over_cable();
  auto cable = std::make_unique<BadCable>("loss 100%");
  std::thread mender([&] {
    std::this_thread::sleep_for(milliseconds(400));
    cable.reset();
  });
  transfer_both_ways(pair, 1 << 18);
  mender.join();
}

TEST_CASE("a permanent link failure ends sending and receiving and direct transfers with an error") {
  Options options;
  options.dead_peer_timeout = milliseconds(2000);
  options.rdma.timeout_exponent = 17;  // 3.8 s including all retries
  const Pair pair = make_pair_over_cable(options);
  std::vector<std::byte> program(1 << 16), worker(1 << 16);
  const auto far =
      pair.client->direct_memory()->add(program.data(), program.size(), DirectMemory::Access::remote);
  const auto near =
      pair.server->direct_memory()->add(worker.data(), worker.size(), DirectMemory::Access::local);
  REQUIRE(far);
  REQUIRE(near);

  const PulledCable cable;
  const auto start = Clock::now();
  Result<void> sent, received, moved;
  std::thread sender([&] {
    const auto much = pattern(64 << 20, 1);
    sent = send_all_of(*pair.client, much);
  });
  std::thread receiver([&] {
    std::byte byte{};
    received = receive_exact(*pair.server, {&byte, 1}, in(kLong));
  });
  moved = complete(*pair.server->direct_memory(),
                   pair.server->direct_memory()->write({.local = worker.data(),
                                                        .local_key = near->local_key,
                                                        .remote_key = far->remote_key,
                                                        .remote = reinterpret_cast<uintptr_t>(program.data()),
                                                        .bytes = 1 << 16,
                                                        .cookie = 1}));
  sender.join();
  receiver.join();
  CHECK(Clock::now() - start < milliseconds(15'000));
  for (const auto& [what, result] : {std::pair{"sent", &sent}, {"received", &received}, {"moved", &moved}}) {
    INFO(what);
    REQUIRE_FALSE(*result);
    INFO(result->error().message);
    CHECK(result->error().code == ErrorCode::lost);
    CHECK_FALSE(result->error().message.empty());
  }
}

// As behind a firewall: TCP uses lo here, which does not lose packets.
TEST_CASE("if only rdma packets are lost a connection stays with tcp or fails and both ends report why") {
  const auto use = GENERATE(RdmaOptions::Use::if_possible, RdmaOptions::Use::always);
  Options near, far;
  near.rdma.use = far.rdma.use = use;
  near.rdma.timeout_exponent = far.rdma.timeout_exponent = 12;
  near.rdma.device = "rxe0";
  far.rdma.device = "rxe1";
  const BadCable cable("loss 100%");
  const auto start = Clock::now();
  const Upgraded upgraded = upgrade({"rdma", "127.0.0.1", 0}, near, far);
  CHECK(Clock::now() - start < milliseconds(10'000));
  INFO(reasons(upgraded));
  CHECK(reasons(upgraded).find("no rdma") != std::string::npos);
  CHECK(upgraded.client.ok() == (use == RdmaOptions::Use::if_possible));
  CHECK(upgraded.server.ok() == (use == RdmaOptions::Use::if_possible));
  if (upgraded.client) require_talk(upgraded.pair);
}
