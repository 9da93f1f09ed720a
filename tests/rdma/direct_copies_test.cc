// Tests copies directly between a program's registered memory and the device, with real processes, and
// clients that abuse the server's access to their memory. Runs in the guest.
#include <cstring>

#include "protocol/calls/handles.h"
#include "protocol/wire/commands.h"
#include "protocol/wire/copies.h"
#include "tests/e2e/pool.h"
#include "tests/rdma/pair.h"
#include "tests/support/raw_client.h"

using namespace gpupool;
using namespace gpupool::testing;
using transport::DirectMemory;
using wire::Command;

namespace {

// Timeout exponent 18: a packet is retransmitted after 1.07 s, up to six times. A guest on a busy host may
// stand still for longer than the default's 2 s, and bad_cable_test covers lost packets.
const char* const kPacketTimeout = "18";
const std::vector<std::string> kAtCable{"--listen", std::string("tcp://") + kNear + ":0", "--insecure",
                                        "--rdma-timeout", kPacketTimeout};
const Environment kDevice{{"SOFTGPU_MEMORY", "128MiB"}};

std::string url_of(const Pool& pool) {
  return std::string("rdma://") + kNear + ":" + std::to_string(const_cast<Pool&>(pool).poold().port());
}

Environment staged(bool always) {
  Environment environment = kDevice;
  if (always) environment.emplace("GPUPOOL_STAGING", "always");
  return environment;
}

void passes(const Pool& pool, const std::string& url, const std::vector<std::string>& words,
            const Environment& more = {}) {
  std::vector<std::string> command{driver_app()};
  command.insert(command.end(), words.begin(), words.end());
  Environment environment = more;
  environment["GPUPOOL"] = url;
  environment["GPUPOOL_RDMA_TIMEOUT"] = kPacketTimeout;
  const Finished app = run_patiently(command, pool.through(environment));
  INFO(app.output);
  CHECK(app.status == 0);
}

// A client without the client library, with 2 MiB of device memory and as much memory of its own.
class Hand {
 public:
  static constexpr uint64_t kBytes = 2 << 20;
  static constexpr uint64_t kContext = cuda::make_handle(cuda::Kind::context, 1, 1);

  explicit Hand(const Pool& pool)
      : client_({"rdma", kNear, const_cast<Pool&>(pool).poold().port()}, options()), memory_(kBytes) {
    hello::Hello hello = test_hello();
    hello.rdma = static_cast<uint32_t>(transport::RdmaOptions::Use::always);
    device_ = client_.open(hello).addresses.base;
    REQUIRE(direct() != nullptr);
    send(Command::retain_primary_context, wire::PrimaryContext{kContext, 0, 0});
    send(Command::map_memory, wire::MapMemory{device_, kBytes, 0, 0});
  }
  static transport::Options options() {
    transport::Options options;
    options.rdma.use = transport::RdmaOptions::Use::always;
    return options;
  }

  RawClient& client() { return client_; }
  DirectMemory* direct() { return client_.connection().direct_memory(); }
  std::byte* memory() { return memory_.data(); }
  uint64_t device() const { return device_; }
  DirectMemory::Region add(DirectMemory::Access access) {
    auto region = direct()->add(memory_.data(), memory_.size(), access);
    REQUIRE(region);
    return *region;
  }
  template <class Body>
  uint64_t send(Command command, const Body& body) {
    return client_.send_command(command, RawClient::bytes_of(body), kContext);
  }
  uint64_t copy(Command command, uint32_t key, uint64_t offset = 0) {
    return send(command, wire::DirectCopy{{0, device_, kBytes, kBytes, 1, 0, 0},
                                          reinterpret_cast<uint64_t>(memory_.data()) + offset,
                                          key,
                                          0});
  }
  void expect_good_copies(uint32_t key) {
    for (const Command command : {Command::direct_to_device, Command::direct_from_device}) {
      CHECK(client_.receive_reply_to(copy(command, key)).header.result == 0);
    }
  }

 private:
  RawClient client_;
  std::vector<std::byte> memory_;
  uint64_t device_ = 0;
};

}  // namespace

TEST_CASE("large copies of pinned memory work directly and staged") {
  for (const bool always : {false, true}) {
    Pool pool(staged(always), kAtCable);
    for (const char* scenario :
         {"large_asynchronous_copies", "large_boxes", "pinned_copies_of_every_shape"}) {
      INFO(scenario << (always ? ", staged" : ""));
      passes(pool, url_of(pool), {scenario});
    }
  }
}

TEST_CASE("the server reads pinned memory directly") {
  Pool pool(kDevice, kAtCable);
  const Finished app = run_patiently({driver_app(), "pinned_memory_comes_and_goes"},
                                     pool.through({{"GPUPOOL", url_of(pool)}, {"GPUPOOL_TRACE", "1"}}));
  INFO(app.output);
  CHECK(app.status == 0);
  CHECK_FALSE(lines_with(app.output, "direct_to_device").empty());
  CHECK_FALSE(lines_with(app.output, "direct_from_device").empty());
}

TEST_CASE("a program at its memlock limit sends its pinned memory and reports it once") {
  Pool pool(kDevice, kAtCable);
  // Root may lock any amount of memory unless the capability is removed permanently.
  const Finished app =
      run_patiently({"/usr/bin/setpriv", "--bounding-set", "-ipc_lock", "--inh-caps", "-ipc_lock", "prlimit",
                     "--memlock=6000000:6000000", driver_app(), "pinned_copies_of_every_shape"},
                    pool.through({{"GPUPOOL", url_of(pool)}, {"GPUPOOL_LOG", "debug"}}));
  INFO(app.output);
  CHECK(app.status == 0);
  CHECK(lines_with(app.output, "over rdma").size() == 1);
  CHECK(lines_with(app.output, "cannot register pinned memory for RDMA, copies use a buffer: cannot register")
            .size() == 1);
}

TEST_CASE("copies between two servers go directly over rdma") {
  Pool first(kDevice, kAtCable), second(kDevice, kAtCable);
  const std::string both = url_of(first) + "," + url_of(second);
  passes(first, both, {"copies_between_devices"});
  passes(first, both, {"boxes_between_devices"});
  passes(first, both, {"large_copies_between_devices", "4"});
}

TEST_CASE("a client that names unregistered memory loses only its own session") {
  Pool pool(kDevice, kAtCable);
  Hand other(pool);
  const auto good = other.add(DirectMemory::Access::remote);
  other.expect_good_copies(good.remote_key);
  for (const Command command : {Command::direct_to_device, Command::direct_from_device}) {
    for (const int how : {0, 1, 2, 3}) {
      Hand bad(pool);
      const auto mine = bad.add(how == 3 ? DirectMemory::Access::local : DirectMemory::Access::remote);
      if (how == 0) bad.copy(command, mine.remote_key + 0x100);  // an invalid key
      if (how == 1) bad.copy(command, mine.remote_key, 1);       // one byte too far
      if (how == 2) {
        bad.direct()->remove(mine);  // no longer registered
        bad.copy(command, mine.remote_key);
      }
      if (how == 3) bad.copy(command, mine.local_key);  // not registered for remote access
      const auto end = bad.client().await_end();
      INFO(how);
      REQUIRE(end);
      INFO(*end);
      CHECK(end->find("used memory that is not registered") != std::string::npos);
    }
  }
  other.expect_good_copies(good.remote_key);
  passes(pool, url_of(pool), {"short_life"});
}

TEST_CASE("a client cannot read or write memory of any worker") {
  Pool pool(kDevice, kAtCable);
  Hand victim(pool);
  const auto good = victim.add(DirectMemory::Access::remote);
  std::memset(victim.memory(), 0x11, Hand::kBytes);
  victim.expect_good_copies(good.remote_key);  // so that its worker has registered device memory
  for (int guess = -6; guess <= 6; ++guess) {
    for (const bool write : {false, true}) {
      Hand bad(pool);
      const auto mine = bad.add(DirectMemory::Access::remote);
      bad.expect_good_copies(mine.remote_key);
      std::memset(bad.memory(), 0x22, Hand::kBytes);
      // Guesses keys near this client's own, and uses both workers' device addresses.
      const uint32_t key =
          guess == 0 ? good.remote_key : mine.remote_key + static_cast<uint32_t>(guess) * 0x100;
      const DirectMemory::Transfer transfer{.local = bad.memory(),
                                            .local_key = mine.local_key,
                                            .remote_key = key,
                                            .remote = guess % 2 == 0 ? victim.device() : bad.device(),
                                            .bytes = 4096};
      DirectMemory& direct = *bad.direct();
      const auto done =
          transport::contract::complete(direct, write ? direct.write(transfer) : direct.read(transfer));
      CHECK_FALSE(done);
      CHECK(bad.memory()[0] == std::byte{0x22});
      victim.client().ping();
    }
  }
  std::memset(victim.memory(), 0, Hand::kBytes);
  CHECK(victim.client()
            .receive_reply_to(victim.copy(Command::direct_from_device, good.remote_key))
            .header.result == 0);
  CHECK(std::count(victim.memory(), victim.memory() + Hand::kBytes, std::byte{0x11}) ==
        static_cast<ptrdiff_t>(Hand::kBytes));
  passes(pool, url_of(pool), {"short_life"});
}

TEST_CASE("a client that disconnects in the middle of copies leaves nothing behind") {
  Pool pool(kDevice, kAtCable);
  for (int round = 0; round < 3; ++round) {
    Hand hand(pool);
    const auto mine = hand.add(DirectMemory::Access::remote);
    for (int i = 0; i < 50; ++i)
      hand.copy(i % 2 == 0 ? Command::direct_to_device : Command::direct_from_device, mine.remote_key);
    hand.client().receive_message();  // one of them has completed
    hand.client().close();
    CHECK(pool.poold().await_log("session_ended", static_cast<size_t>(round) + 1));
  }
  passes(pool, url_of(pool), {"short_life"});
}
