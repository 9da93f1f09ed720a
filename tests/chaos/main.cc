// gpupool-chaos: runs a pool of real daemons on machines made of namespaces, injects random faults, and
// checks that every GPU share is accounted for (CONTRIBUTING.md). Exit status 77: skipped.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <random>

#include "tests/chaos/chaos.h"

namespace {

constexpr int kSkipped = 77;

}  // namespace

int main(int count, char** words) {
  using namespace gpupool::testing;
  ChaosOptions options;
  bool seeded = false;
  CLI::App app{
      "gpupool-chaos: injects random faults into a pool of real daemons, and checks that all resources are "
      "accounted for. Needs root."};
  app.add_option("--faults", options.faults, "number of faults")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "random seed [random]")->each([&](const std::string&) {
    seeded = true;
  });
  app.add_option("--pace-ms", options.pace_ms, "mean time between faults")
      ->check(CLI::Range(10, 60'000))
      ->capture_default_str();
  app.add_option("--quiet-every", options.quiet_every, "number of faults between checks")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--jobs", options.jobs, "number of concurrent programs")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app.add_option("--gpu-hosts", options.gpu_hosts, "number of GPU hosts with two software GPUs each")
      ->check(CLI::Range(1, 16))
      ->capture_default_str();
  app.add_option("--schedulers", options.schedulers,
                 "number of schedulers; with more than one the store is etcd")
      ->check(CLI::Range(1, 5))
      ->capture_default_str();
  app.add_flag("!--no-long-ones", options.long_ones,
               "exclude faults that last longer than the pool's timeouts");
  app.add_option("--only", options.only, "only faults with this in their names, e.g. scheduler");
  app.add_option("--keep", options.keep, "folder for the logs of a failed run");
  CLI11_PARSE(app, count, words);
  if (!seeded) options.seed = std::random_device{}();
  if (const std::string why = Network::enter(); !why.empty()) {
    std::printf("skipped: %s\n", why.c_str());
    return kSkipped;
  }
  if (options.schedulers > 1 && ::access("/usr/bin/etcd", X_OK) != 0) {
    std::printf("skipped: several schedulers need etcd (etcd-server)\n");
    return kSkipped;
  }
  try {
    return Chaos(options).run() == 0 ? 0 : 1;
  } catch (const std::exception& failure) {
    std::printf("gpupool-chaos: %s\n", failure.what());
    return 1;
  }
}
