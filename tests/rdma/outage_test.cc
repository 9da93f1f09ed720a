// Programs whose cable is pulled while they copy: their sessions go on over rdma. Runs in the guest. With
// CUTS in the environment the programs go on until CUTS connections have broken (3 by default, in the first
// few programs); SEED and PROGRAM (one of the programs) repeat a failed run.
#include <cstdio>
#include <random>
#include <sstream>

#include "protocol/peers/proof.h"
#include "tests/e2e/expect_success.h"
#include "tests/e2e/pool.h"
#include "tests/e2e/steady_programs.h"
#include "tests/rdma/cable.h"
#include "tests/support/catch.h"
#include "tests/support/end_file.h"
#include "tests/support/raw_client.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

const std::vector<std::string> kAtCable{"--listen",   std::string("tcp://") + kNear + ":0",
                                        "--insecure", "--rdma-timeout",
                                        "16",         "--resume-timeout",
                                        "120"};
const Environment kDevice{{"SOFTGPU_MEMORY", "128MiB"}};

transport::Endpoint endpoint_of(Pool& pool) {
  return {"rdma", kNear, pool.poold().port()};
}

// The environment of a program with one connection, so that the log has one line for each break.
Environment over_cable(Pool& pool) {
  return pool.through({{"GPUPOOL", endpoint_of(pool).text()},
                       {"GPUPOOL_RDMA_TIMEOUT", "16"},
                       {"GPUPOOL_BULK_CONNECTIONS", "0"}});
}

// Returns a program's output without the client's notices of a connection that is down for more than a
// second.
std::string without_notices(const std::string& output) {
  std::istringstream lines(output);
  std::string kept;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("gpupool: lost the connection") &&
        !line.starts_with("gpupool: connected to server"))
      kept += line + "\n";
  }
  return kept;
}

// Pulls the cable at random times from the start of the program's session, which is the pool's session with
// this number, until the program ends. Returns how often its connection broke.
unsigned pull_cable_until_end(Process& app, Pool& pool, size_t sessions, std::mt19937& random) {
  constexpr unsigned kLongestCalm = 500;         // milliseconds
  constexpr std::chrono::seconds kUnnoticed{5};  // a connection that sends nothing does not break
  const auto ended = [&] { return app.wait(std::chrono::milliseconds(0)) != -1; };
  const auto logged = [&](const char* event) { return occurrences(pool.poold().log(), event); };
  unsigned breaks = 0;
  CHECK(pool.poold().await_log("session_running", sessions));
  const auto stop = std::chrono::steady_clock::now() + 2 * kLongPatience;
  while (app.wait(std::chrono::milliseconds(random() % kLongestCalm)) == -1) {
    REQUIRE(std::chrono::steady_clock::now() < stop);
    const size_t broken = logged("client_connection_broken"), resumed = logged("session_resumed");
    PulledCable cable;
    const bool broke =
        eventually([&] { return logged("client_connection_broken") > broken || ended(); }, kUnnoticed);
    cable.plug_in();
    if (!broke || ended()) continue;
    ++breaks;
    CHECK(eventually([&] { return logged("session_resumed") > resumed || ended(); }, kLongPatience));
  }
  return breaks;
}

RawClient rdma_client(Pool& pool) {
  transport::Options options;
  options.rdma.use = transport::RdmaOptions::Use::always;
  return RawClient(endpoint_of(pool), options);
}

hello::Hello rdma_hello(bool can_resume_rdma) {
  hello::Hello hello = test_hello();
  hello.rdma = static_cast<uint32_t>(transport::RdmaOptions::Use::always);
  hello.can_resume = true;
  hello.can_resume_rdma = can_resume_rdma;
  return hello;
}

}  // namespace

TEST_CASE("a program counts on after its cable was pulled in the middle of copies") {
  Pool pool(kDevice, kAtCable);
  const EndFile file;
  Process app({driver_app(), "counting", "1000000", "3000000", file.end}, over_cable(pool));
  REQUIRE(app.await_output("working", kLongPatience));
  for (size_t times = 1; times <= 3; ++times) {
    PulledCable cable;
    REQUIRE(pool.poold().await_log("client_connection_broken", times));
    cable.plug_in();
    REQUIRE(pool.poold().await_log("session_resumed", times));
  }
  file.end_program();
  expect_success(app, "counted to");
}

TEST_CASE("programs pass although their cable is pulled at random times") {
  Pool pool(kDevice, kAtCable);
  const auto free_memory = [&] {
    return run_patiently({driver_app(), "free_memory"}, over_cable(pool)).output;
  };
  const std::string free_before = free_memory();
  const unsigned wanted = number_in("CUTS", 3);
  uint32_t seed = number_in("SEED", 1);
  size_t sessions = occurrences(pool.poold().log(), "session_running");
  unsigned breaks = 0;
  while (breaks < wanted) {
    const unsigned breaks_before = breaks;
    for (const auto& program : kSteadyPrograms) {
      if (is_left_out(program) || breaks >= wanted) continue;
      const Finished& direct = directly(pool, program);
      Process app(words_of(program), over_cable(pool));
      std::mt19937 random(seed++);
      breaks += pull_cable_until_end(app, pool, ++sessions, random);
      std::printf("%u broken connections after %s\n", breaks, program.front().c_str());
      std::fflush(stdout);
      INFO(program.front() << " with seed " << seed - 1 << " after " << breaks << " breaks");
      INFO("directly: " << direct.output << "\nthrough poold: " << app.output());
      INFO("poold: " << end_of_log(pool));
      CHECK(app.wait() == direct.status);
      CHECK(without_notices(app.output()) == direct.output);
    }
    REQUIRE(breaks > breaks_before);
  }
  CHECK(eventually([&] { return free_memory() == free_before; }, kLongPatience));
}

TEST_CASE("a client that returns without rdma is refused with the reason") {
  Pool pool(kDevice, kAtCable);
  RawClient client = rdma_client(pool);
  const auto reply = client.open(rdma_hello(true));
  REQUIRE(reply.resume_timeout_ms != 0);
  REQUIRE(client.connection().direct_memory() != nullptr);
  client.ping();  // the session runs
  hello::Hello back = test_hello();
  back.session_id = reply.session_id;
  back.resume_attempt = 1;
  const auto proof = peers::prove_resume(reply.resume_key, 0, 1, 0);
  back.resume_proof.assign(proof.begin(), proof.end());
  RawClient other({"tcp", kNear, pool.poold().port()});
  other.send_hello(back);
  const auto answer = other.receive_reply();
  CHECK(answer.status == hello::Status::denied);
  CHECK(answer.reason.find("the session is over rdma") != std::string::npos);
}

TEST_CASE("a session over rdma of a client that cannot resume it ends with its connection") {
  Pool pool(kDevice, kAtCable);
  RawClient client = rdma_client(pool);
  CHECK(client.open(rdma_hello(false)).resume_timeout_ms == 0);
  client.close();
  CHECK(pool.poold().await_log("session_ended"));
}
