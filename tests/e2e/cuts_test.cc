// Programs compute the same when their connections are cut at random bytes (tcp, tls) or times (shared
// memory). With CUTS in the environment the tests go on until there were so many; SEED and PROGRAM (one of
// the programs) repeat a failed run.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>

#include "protocol/transport/shm/address.h"
#include "tests/e2e/pool_admin.h"
#include "tests/e2e/steady_programs.h"
#include "tests/support/catch.h"
#include "tests/support/certificates.h"
#include "tests/support/cutting_proxy.h"
#include "tests/support/cutting_relay.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

// Cuts the connections of one run; the program needs its environment.
struct Cutter {
  Environment environment;
  std::function<unsigned()> cuts;
  std::shared_ptr<void> owner;
};
using MakeCutter = std::function<Cutter(uint32_t seed)>;

// Prints how long connections were down: the time from the worker's notice of a break to its end.
void print_silence(const std::string& log) {
  std::vector<long> times;
  for (const std::string& line : lines_with(log, "session_resumed")) {
    constexpr std::string_view kTime = " milliseconds=";
    if (const size_t at = line.find(kTime); at != std::string::npos)
      times.push_back(std::strtol(line.c_str() + at + kTime.size(), nullptr, 10));
  }
  std::sort(times.begin(), times.end());
  if (times.empty()) return;
  std::printf("%zu resumed: median %ld ms, 99 %% within %ld ms\n", times.size(), times[times.size() / 2],
              times[times.size() * 99 / 100]);
}

// Runs the programs, all of them at least once, until there were `least` cuts.
void pass_despite_cuts(Pool& pool, const MakeCutter& make, unsigned least, const Environment& uncut = {}) {
  const auto free_memory = [&] {
    return run_patiently({driver_app(), "free_memory"}, pool.through(uncut)).output;
  };
  const std::string free_before = free_memory();
  const unsigned wanted = number_in("CUTS", least);
  uint32_t seed = number_in("SEED", 1);
  unsigned cuts = 0;
  for (bool first = true; first || (cuts < wanted && cuts != 0); first = false) {
    for (const auto& program : kSteadyPrograms) {
      if (is_left_out(program)) continue;
      const Finished& direct = directly(pool, program);
      const Cutter cutter = make(seed++);
      const Finished pooled = run_patiently(words_of(program), pool.through(cutter.environment));
      INFO(program.front() << " with seed " << seed - 1 << " after " << cutter.cuts() << " cuts");
      INFO("directly: " << direct.output << "\nthrough poold: " << pooled.output);
      INFO("poold: " << (pooled.status == direct.status ? "" : end_of_log(pool)));
      CHECK(pooled.status == direct.status);
      CHECK(pooled.output == direct.output);
      cuts += cutter.cuts();
    }
  }
  CHECK(cuts >= wanted);
  print_silence(pool.poold().log());
  const bool freed = eventually([&] { return free_memory() == free_before; }, std::chrono::seconds(20));
  INFO("before: " << free_before << "now: " << free_memory());
  INFO(run_to_end(admin_words(pool.poold(), {"sessions"})).output);
  std::string breaks;
  for (const char* const event : {"client_connection_broken", "session_not_resumed"}) {
    for (const std::string& line : lines_with(freed ? "" : pool.poold().log(), event)) breaks += line + '\n';
  }
  INFO(breaks);
  CHECK(freed);
}

Cutter over_proxy(Pool& pool, const std::string& scheme, uint32_t seed, Environment environment) {
  // From a cut in every few calls to one in some large copies. Without CUTS they become rarer, so that a
  // program with much data has dozens of cuts until its end and not thousands.
  const uint64_t mean = seed % 3 == 0 ? 20'000 : seed % 3 == 1 ? 100'000 : 600'000;
  const double growth = std::getenv("CUTS") == nullptr ? 1.1 : 1;
  auto proxy =
      std::make_shared<CuttingProxy>(pool.poold().endpoint(), mean, seed, CuttingProxy::kSpared, growth);
  environment["GPUPOOL"] = scheme + "://127.0.0.1:" + std::to_string(proxy->endpoint().port);
  environment["GPUPOOL_BULK_CONNECTIONS"] = std::to_string(seed % 4);
  return {environment, [proxy] { return proxy->cuts(); }, proxy};
}

}  // namespace

TEST_CASE("programs pass although their tcp connections are cut") {
  Pool pool({}, {"--resume-timeout", "60"});
  pass_despite_cuts(
      pool, [&](uint32_t seed) { return over_proxy(pool, "tcp", seed, {}); }, 30);
}

TEST_CASE("programs pass although their tls connections are cut") {
  const Authority authority("authority");
  const auto files = authority.sign("server", "IP:127.0.0.1");
  Pool pool({}, {"--listen", "tls://127.0.0.1:0", "--tls-certificate", files.certificate, "--tls-key",
                 files.key, "--resume-timeout", "60"});
  const Environment trusting{{"GPUPOOL_TLS_CA", authority.certificate()}};
  Environment uncut = trusting;
  uncut["GPUPOOL"] = "tls://127.0.0.1:" + std::to_string(pool.poold().port());
  pass_despite_cuts(
      pool, [&](uint32_t seed) { return over_proxy(pool, "tls", seed, trusting); }, 30, uncut);
}

TEST_CASE("programs pass although their shared-memory connections are cut") {
  Pool pool({}, {"--resume-timeout", "60"});
  const TemporaryFolder folder;
  const auto server = transport::shm::shm_endpoint_of_tcp("127.0.0.1", pool.poold().port());
  const MakeCutter make = [&](uint32_t seed) -> Cutter {
    const auto mean = std::chrono::milliseconds(seed % 2 == 0 ? 5 : 30);
    const std::string path = folder.path() / ("relay" + std::to_string(seed));
    auto relay = std::make_shared<CuttingRelay>(path, server, mean, seed);
    Environment environment{{"GPUPOOL", relay->url()}, {"GPUPOOL_TRANSPORT", "auto"}};
    return {environment, [relay] { return relay->cuts(); }, relay};
  };
  pass_despite_cuts(pool, make, 30);
}
