// Injects two hundred faults of ten kinds into a pool beside healthy clients, which must not be affected.
// Afterwards no process, memory or file may be left.
#include <signal.h>

#include <random>

#include "common/sanitizers.h"
#include "protocol/calls/handles.h"
#include "protocol/wire/commands.h"
#include "protocol/wire/copies.h"
#include "tests/e2e/pool.h"
#include "tests/support/catch.h"
#include "tests/support/has.h"
#include "tests/support/raw_client.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

constexpr int kFaults = kSanitized ? 40 : 200;
constexpr int kHealthy = 4;
constexpr uint64_t kContext = cuda::make_handle(cuda::Kind::context, 1, 0);

class Saboteur {
 public:
  explicit Saboteur(Pool& pool) : pool_(pool) {}

  static constexpr int kKinds = 10;
  void inject(int kind) {
    switch (kind) {
      case 0: return run("illegal_address", "CUDA_ERROR_ILLEGAL_ADDRESS");
      case 1: return run("assertion", "CUDA_ERROR_ASSERT");
      case 2: return run("trap", "CUDA_ERROR_");
      case 3: return kill(true);
      case 4: return kill(false);
      case 5: return garbage_commands();
      case 6: return garbage_hello();
      case 7: return flood();
      case 8: return slow_reader();
      case 9: return half_a_command();
    }
  }
  // Number of sessions that poold has started for faults.
  size_t sessions() const { return sessions_; }
  // Disconnects the clients that stay connected but neither send nor read.
  void leave() { lurking_.clear(); }

 private:
  void run(const char* scenario, const char* error) {
    const Finished app = run_patiently({driver_app(), scenario}, pool_.through());
    INFO(app.output);
    CHECK(app.output.find(error) != std::string::npos);
    ++sessions_;
  }

  void kill(bool worker) {
    static constexpr const char* kActivities[] = {"read", "write", "launch", "kernel"};
    Process app({driver_app(), "until_it_fails", kActivities[random_() % 4]}, pool_.through());
    const bool works = app.await_output("working");
    INFO(app.output());
    REQUIRE(works);
    if (worker)
      REQUIRE(::kill(pool_.worker_of(app), SIGKILL) == 0);
    else
      app.signal(SIGKILL);
    if (worker) CHECK(app.await_output("gave CUDA_ERROR_"));
    app.wait(kLongPatience);
    ++sessions_;
  }

  std::unique_ptr<RawClient> session() {
    auto client = std::make_unique<RawClient>(pool_.poold().endpoint());
    base_ = client->open().addresses.base;
    ++sessions_;
    return client;
  }

  // Ignores failed sends: the server may have closed the connection already.
  template <class Body>
  static void perhaps(const Body& body) {
    try {
      body();
    } catch (const std::runtime_error&) {
    }
  }

  std::string random_bytes(size_t size) {
    std::string bytes(size, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random_());
    return bytes;
  }

  void garbage_commands() {
    const auto client = session();
    perhaps([&] {
      for (int i = 0; i < 20; ++i) {
        const auto id = static_cast<uint16_t>(random_() % 2 != 0 ? 0x8000 + random_() % 0x25 : random_());
        client->send_command(id, random_bytes(random_() % 200), kContext, static_cast<uint16_t>(random_()));
      }
      client->send(random_bytes(1000));
    });
  }

  void garbage_hello() {
    RawClient client(pool_.poold().endpoint());
    perhaps([&] { client.send(random_bytes(1 + random_() % 3000)); });
  }

  // Sends pings that want replies and never reads.
  void flood() {
    const auto client = session();
    const std::string pings = [] {
      std::string bytes;
      for (uint64_t sequence = 1; sequence <= 20'000; ++sequence) {
        wire::CommandHeader header{};
        header.id = static_cast<uint16_t>(wire::Command::ping);
        header.sequence = sequence;
        header.flags = wire::kWantsReply;
        bytes += RawClient::bytes_of(header);
      }
      return bytes;
    }();
    perhaps([&] { client->send(pings); });
  }

  // Requests more bytes than the connection buffers, does not read them, and stays connected.
  void slow_reader() {
    auto client = session();
    constexpr uint64_t kBytes = 16u << 20;
    const wire::PrimaryContext context{kContext, 0, 0};
    client->send_command(wire::Command::retain_primary_context, RawClient::bytes_of(context));
    const wire::MapMemory memory{base_, kBytes, 0, 0};
    client->send_command(wire::Command::map_memory, RawClient::bytes_of(memory), kContext);
    wire::CopyFromDevice rows{};
    rows.source = base_;
    rows.pitch = rows.width = kBytes;
    rows.rows = 1;
    for (int i = 0; i < 4; ++i) {
      client->send_command(wire::Command::copy_from_device, RawClient::bytes_of(rows), kContext,
                           wire::kWantsReply);
    }
    if (lurking_.size() < 8) lurking_.push_back(std::move(client));
  }

  void half_a_command() {
    auto client = session();
    wire::CommandHeader header{};
    header.id = static_cast<uint16_t>(wire::Command::load_module);
    header.sequence = 1;
    header.length = 1u << 20;
    client->send_header(header);
    perhaps([&] { client->send(random_bytes(500)); });
    if (lurking_.size() < 8 && random_() % 2 != 0) lurking_.push_back(std::move(client));
  }

  Pool& pool_;
  std::mt19937 random_{20};
  std::vector<std::unique_ptr<RawClient>> lurking_;
  size_t sessions_ = 0;
  uint64_t base_ = 0;
};

}  // namespace

TEST_CASE("injected faults beside healthy clients") {
  Pool pool({{"SOFTGPU_MEMORY", "1GiB"}},
            kTellsOfWorkers);  // silent and killed clients hold some of the memory for a while
  size_t sessions = 1;
  const uint64_t free_before = free_bytes(pool);
  REQUIRE(pool.poold().await_rest(sessions));
  std::vector<std::unique_ptr<Process>> healthy;
  for (int i = 0; i < kHealthy; ++i) {
    healthy.push_back(std::make_unique<Process>(
        std::vector<std::string>{driver_app(), "healthy", std::to_string(1000 * i)}, pool.through()));
    REQUIRE(healthy.back()->await_output("working"));
  }
  sessions += kHealthy;

  Saboteur saboteur(pool);
  for (int fault = 0; fault < kFaults; ++fault) {
    INFO("fault " << fault << " of kind " << fault % Saboteur::kKinds);
    saboteur.inject(fault % Saboteur::kKinds);
    if (fault % 50 == 49) saboteur.leave();
  }
  sessions += saboteur.sessions();

  for (const auto& program : healthy) program->signal(SIGUSR1);
  for (const auto& program : healthy) {
    CHECK(program->wait(kLongPatience) == 0);
    INFO(program->output());
    CHECK(program->output().find("healthy for ") != std::string::npos);
    CHECK(lines_with(program->output(), "gpupool:").empty());
  }
  saboteur.leave();
  REQUIRE(pool.poold().await_rest(sessions));
  CHECK(pool.poold().workers().size() == pool.poold().idle_workers());
  CHECK(eventually([&] { return free_bytes(pool) == free_before; }));
  const std::string instance = pool.instance();
  CHECK(pool.poold().stop() == 0);
  // Sanitizers can let a worker take longer to exit than poold waits. A killed one leaves its file behind.
  if (!kSanitized || !has(pool.poold().log(), "worker_killed"))
    CHECK(shared_files(instance) == std::vector<std::string>());  // a comparison, which prints the names
}
