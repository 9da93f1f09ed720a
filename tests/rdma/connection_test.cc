// Tests that are specific to rdma and not part of the transport contract: how connections are established,
// and peers that violate the protocol. Needs an RDMA device.
#include "rdma/connection.h"

#include <arpa/inet.h>

#include <cstring>
#include <thread>

#include "rdma/stream.h"
#include "tests/rdma/pair.h"
#include "tests/support/catch.h"

namespace {

using namespace gpupool;
using namespace gpupool::transport;
using contract::in;
using contract::kLong;
using contract::require_talk;
using contract::Upgraded;
using Use = RdmaOptions::Use;
using Setup = RdmaOptions::Setup;

std::string server_address() {
  const char* const addresses = std::getenv("GPUPOOL_TEST_RDMA_ADDRESSES");
  const std::string text = addresses ? addresses : "127.0.0.1";
  return text.substr(text.rfind(' ') + 1);
}

Upgraded upgrade(const RdmaOptions& client_options, const RdmaOptions& server_options) {
  Options mine, theirs;
  mine.rdma = client_options;
  theirs.rdma = server_options;
  return contract::upgrade({"rdma", server_address(), 0}, mine, theirs);
}

RdmaOptions with(Use use, Setup setup = Setup::automatic) {
  RdmaOptions options;
  options.use = use;
  options.setup = setup;
  return options;
}

// A peer that uses verbs but violates the protocol, and the stream under test.
struct Rogue {
  std::shared_ptr<rdma::Domain> theirs, mine;
  std::unique_ptr<rdma::Stream> stream;
  std::unique_ptr<rdma::QueuePair> pair;
  std::unique_ptr<rdma::BufferBlock> memory;

  Rogue() {
    const auto open = [] {
      auto domain = rdma::Domain::open({}, {});
      REQUIRE(domain);
      return *domain;
    };
    theirs = open();
    mine = open();
    auto made = rdma::Stream::make(mine, false);
    REQUIRE(made);
    stream = std::move(*made);
    auto rogue = rdma::QueuePair::make(theirs, {.sends = 256, .receives = rdma::kMostSharedReceives});
    REQUIRE(rogue);
    pair = std::move(*rogue);
    auto buffers = theirs->make_buffers(4);
    REQUIRE(buffers);
    memory = std::move(*buffers);
    REQUIRE(stream->begin(32));
    REQUIRE(stream->pair().connect(pair->address(), {}));
    REQUIRE(pair->connect(stream->pair().address(), {}));
  }

  void send(uint32_t bytes, uint32_t word, ibv_wr_opcode how = IBV_WR_SEND_WITH_IMM) {
    ibv_sge part{reinterpret_cast<uintptr_t>(memory->at(0)), bytes, memory->key()};
    ibv_send_wr request{};
    request.sg_list = &part;
    request.num_sge = 1;
    request.opcode = how;
    request.send_flags = IBV_SEND_SIGNALED;
    request.imm_data = htonl(word);
    ibv_send_wr* bad = nullptr;
    REQUIRE(ibv_post_send(pair->get(), &request, &bad) == 0);
  }
  // Returns the stream's error; success if there is none at the deadline.
  Result<void> await_failure() {
    std::vector<std::byte> sink(1 << 20);
    const auto deadline = Clock::now() + kLong;
    while (Clock::now() < deadline) {
      const auto received = stream->receive_some(sink);
      if (!received) return received.error();
      std::this_thread::yield();
    }
    return {};
  }
};

constexpr uint32_t kData = 0, kControl = 1u << 28, kNoKind = 7u << 28;

}  // namespace

TEST_CASE("the connection manager connects both sides if both allow it") {
  Upgraded pair = upgrade(with(Use::always, Setup::manager), with(Use::always, Setup::manager));
  REQUIRE(pair.client);
  REQUIRE(pair.server);
  CHECK(pair.pair.client->carrier().find("connection manager") != std::string::npos);
  CHECK(pair.pair.server->carrier().find("connection manager") != std::string::npos);
  CHECK(pair.pair.server->direct_memory() != nullptr);
  require_talk(pair.pair);
}

TEST_CASE("a side with setup addresses does not use the connection manager") {
  Upgraded pair = upgrade(with(Use::always, Setup::addresses), with(Use::always, Setup::manager));
  REQUIRE(pair.client);
  REQUIRE(pair.server);
  CHECK(pair.pair.client->carrier().find("connection manager") == std::string::npos);
  require_talk(pair.pair);
}

TEST_CASE("a server without rdma is used over tcp or rejected if rdma is required") {
  Upgraded pair = upgrade(with(Use::if_possible), with(Use::never));
  REQUIRE(pair.client);
  REQUIRE(pair.server);
  CHECK(pair.pair.client->carrier().find("tcp (no rdma: the peer: rdma is disabled)") != std::string::npos);
  CHECK(pair.pair.client->direct_memory() == nullptr);
  require_talk(pair.pair);

  const Upgraded refused = upgrade(with(Use::always), with(Use::never));
  REQUIRE_FALSE(refused.client);
  CHECK(refused.client.error().message.find("rdma is disabled") != std::string::npos);
}

TEST_CASE("options that the device does not support are reported by name") {
  const auto why = [](const RdmaOptions& options) {
    const Upgraded pair = upgrade(options, with(Use::if_possible));
    REQUIRE_FALSE(pair.client);
    return pair.client.error().message;
  };
  RdmaOptions options = with(Use::always);
  options.device = "no_such_device";
  CHECK(why(options).find("no RDMA device 'no_such_device'") != std::string::npos);
  options = with(Use::always);
  options.gid_index = 200;
  CHECK(why(options).find("has no GID 200") != std::string::npos);
  options = with(Use::always);
  options.partition_key = 0x1234;
  CHECK(why(options).find("does not have the requested partition key") != std::string::npos);
}

TEST_CASE("a message without credit ends the connection") {
  Rogue rogue;
  for (uint32_t i = 0; i <= rogue.stream->receives(); ++i) rogue.send(16, kData);
  const auto end = rogue.await_failure();
  REQUIRE_FALSE(end);
  // The device rejects messages without a receive buffer, or the stream rejects messages without credit.
  CHECK((end.error().code == ErrorCode::malformed || end.error().code == ErrorCode::lost));
}

TEST_CASE("impossible counts and kinds and sizes end the connection") {
  struct Offence {
    uint32_t bytes, word;
    ibv_wr_opcode how;
  };
  const Offence offence =
      GENERATE(Offence{16, kData | 5, IBV_WR_SEND_WITH_IMM},  // returns unused credits
               Offence{0, kControl | 1, IBV_WR_SEND_WITH_IMM}, Offence{0, kNoKind, IBV_WR_SEND_WITH_IMM},
               Offence{0, kData, IBV_WR_SEND_WITH_IMM},  // a data message without data
               Offence{16, 0, IBV_WR_SEND},              // without immediate data
               Offence{rdma::kBufferBytes + 1, kData, IBV_WR_SEND_WITH_IMM});
  Rogue rogue;
  rogue.send(offence.bytes, offence.word, offence.how);
  const auto end = rogue.await_failure();
  REQUIRE_FALSE(end);
  CHECK((end.error().code == ErrorCode::malformed || end.error().code == ErrorCode::lost));
}

TEST_CASE("the queue pair of direct transfers gives a client no access to the server") {
  Upgraded pair = upgrade(with(Use::always), with(Use::always));
  REQUIRE(pair.client);
  REQUIRE(pair.server);
  // Only the server may use it to access the peer's memory.
  DirectMemory& direct = *pair.pair.client->direct_memory();
  std::vector<std::byte> memory(4096);
  const auto region = direct.add(memory.data(), memory.size(), DirectMemory::Access::local);
  REQUIRE(region);
  REQUIRE(direct.write({memory.data(), region->local_key, region->local_key,
                        reinterpret_cast<uintptr_t>(memory.data()), 64, 1}));
  uint64_t cookie = 0;
  Result<size_t> done = size_t{0};
  for (const auto deadline = Clock::now() + kLong; done && *done == 0 && Clock::now() < deadline;)
    done = direct.completed({&cookie, 1});
  CHECK_FALSE(done);
  // The byte stream continues if the device reports no error; in any case the server detects the client's
  // close.
  pair.pair.client->close();
  const auto ready = pair.pair.server->wait(true, false, in(kLong));
  if (ready) {
    std::byte byte{};
    CHECK_FALSE(pair.pair.server->receive_some({&byte, 1}));
  }
}

TEST_CASE("a peer cannot read or write memory with any address and key") {
  Rogue rogue;
  std::vector<std::byte> secret(4096, std::byte{0x5a});
  auto registered = rogue.mine->add(secret.data(), secret.size(), IBV_ACCESS_LOCAL_WRITE);
  REQUIRE(registered);
  const ibv_wr_opcode how = GENERATE(IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ);
  ibv_sge part{reinterpret_cast<uintptr_t>(rogue.memory->at(0)), 64, rogue.memory->key()};
  ibv_send_wr request{};
  request.sg_list = &part;
  request.num_sge = 1;
  request.opcode = how;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = reinterpret_cast<uintptr_t>(secret.data());
  request.wr.rdma.rkey = registered->remote_key();
  ibv_send_wr* bad = nullptr;
  REQUIRE(ibv_post_send(rogue.pair->get(), &request, &bad) == 0);
  ibv_wc done{};
  const auto deadline = Clock::now() + kLong;
  while (ibv_poll_cq(rogue.pair->completions(), 1, &done) == 0 && Clock::now() < deadline)
    std::this_thread::yield();
  CHECK(done.status != IBV_WC_SUCCESS);
  CHECK(std::all_of(secret.begin(), secret.end(), [](std::byte byte) { return byte == std::byte{0x5a}; }));
}
