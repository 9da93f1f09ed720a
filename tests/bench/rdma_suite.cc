#include "tests/bench/rdma_suite.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <stdexcept>

#include "tests/bench/perftest.h"
#include "tests/bench/run_program.h"
#include "tests/support/poold_process.h"

namespace gpupool::bench {
namespace {

using testing::Environment;
using testing::PooldProcess;
using testing::Process;
using Kind = Target::Kind;

constexpr int kFewest = 5;  // perftest's minimum number of messages
constexpr int kLatencyMessages = 2000;

const RdmaDevice& named(const std::vector<RdmaDevice>& devices, const std::string& name) {
  const auto found =
      std::find_if(devices.begin(), devices.end(), [&](const auto& device) { return device.name == name; });
  if (found == devices.end()) throw std::runtime_error("there is no RDMA device '" + name + "' that is up");
  return *found;
}

RdmaPair choose(const RdmaSuite& suite) {
  const auto devices = find_rdma_devices();
  if (devices.empty())
    throw std::runtime_error(
        "this machine has no RDMA device that is up; tests/softroce/run.sh runs a command where there are "
        "two");
  RdmaPair pair{devices.front(), devices[devices.size() > 1 ? 1 : 0]};
  if (!suite.devices.empty())
    pair = {named(devices, suite.devices.front()), named(devices, suite.devices.back())};
  if (!suite.addresses.empty()) {
    pair.client.address = suite.addresses.front();
    pair.server.address = suite.addresses.back();
  }
  if (pair.server.address.empty())
    throw std::runtime_error("the address of " + pair.server.name + " is not known; give --rdma-addresses");
  return pair;
}

// A poold that uses the server's device, and the environment for programs that use the client's.
class Pool {
 public:
  Pool(const RdmaSuite& suite, const RdmaPair& pair, const std::string& instance, Environment environment)
      : pair_(pair), poold_(suite.device, options(pair), with_device(instance, std::move(environment))) {}

  Environment through(const std::string& scheme) const {
    return {{"LD_LIBRARY_PATH", prefix() / "lib" / "client"},
            {"GPUPOOL", scheme + "://" + pair_.server.address + ":" + std::to_string(poold_.port())},
            {"GPUPOOL_TRANSPORT", scheme},
            {"GPUPOOL_RDMA_DEVICE", pair_.client.name}};
  }
  const PooldProcess& poold() const { return poold_; }

 private:
  static std::vector<std::string> options(const RdmaPair& pair) {
    return {"--listen",
            "tcp://" + pair.server.address + ":0",
            "--insecure",
            "--idle-workers",
            "1",
            "--rdma-device",
            pair.server.name};
  }
  static Environment with_device(const std::string& instance, Environment environment) {
    environment.merge(device_environment());
    environment["SOFTGPU_INSTANCE"] = instance;
    return environment;
  }

  const RdmaPair& pair_;
  PooldProcess poold_;
};

void measure_copies(const RdmaSuite& suite, const RdmaPair& pair, const Pool& direct, const Pool& staged,
                    size_t bytes, std::map<std::string, Samples>& samples) {
  const int messages = std::max(kFewest, static_cast<int>(suite.perftest_bytes / bytes));
  const std::vector<std::string> words{program("gpupool-bench-workload"), "pinned", std::to_string(bytes)};
  const auto perftest = [&](const char* name) {
    if (is_installed(name))
      samples[name].add(std::to_string(bytes), perftest_MBps(name, pair, bytes, messages));
  };
  perftest("ib_write_bw");
  run_program(words, direct.through("rdma"), samples["direct"]);
  perftest("ib_read_bw");
  run_program(words, staged.through("rdma"), samples["staged"]);
}

void measure_calls(const RdmaPair& pair, const Pool& pool, std::map<std::string, Samples>& samples) {
  const std::vector<std::string> words{program("gpupool-bench-workload"), "calls"};
  if (is_installed("ib_write_lat"))
    samples["ib_write_lat"].add("us", perftest_latency_us(pair, kLatencyMessages));
  run_program(words, pool.through("rdma"), samples["direct"]);
  run_program(words, pool.through("tcp"), samples["tcp"]);
}

// Adds a sample of perftest as the baseline; without perftest removes the target.
Figure beside(Figure figure, const std::string& name, const std::string& sample, double factor,
              std::map<std::string, Samples>& samples) {
  if (samples[name].has(sample)) {
    figure.baseline_value = factor * samples[name].median(sample);
  } else {
    figure.target = {};
    figure.baseline = "no " + name + " (perftest) here";
  }
  return figure;
}

void add_copies(size_t bytes, std::map<std::string, Samples>& samples, std::vector<Figure>& figures) {
  for (const std::string way : {"h2d", "d2h"}) {
    const std::string name = way + "_pinned_" + std::to_string(bytes);
    const std::string perftest = way == "h2d" ? "ib_write_bw" : "ib_read_bw";
    const double direct = samples["direct"].median(name) * 1e3, staged = samples["staged"].median(name) * 1e3;
    const auto against_perftest = [&](const char* via, double value, Target target) {
      figures.push_back(beside({name, via, value, "MB/s", perftest, 0, target}, perftest,
                               std::to_string(bytes), 1, samples));
    };
    against_perftest("rdma", direct, {Kind::ratio_at_least, 0.9});
    figures.push_back({name, "rdma", direct, "MB/s", "staged", staged, {Kind::ratio_at_least, 1}});
    against_perftest("staged", staged, {});
  }
}

void add_calls(std::map<std::string, Samples>& samples, std::vector<Figure>& figures) {
  Samples& rdma = samples["direct"];
  Samples& tcp = samples["tcp"];
  figures.push_back(beside({"null_call",
                            "rdma",
                            rdma.median("null_call_us"),
                            "us",
                            "2 x ib_write_lat",
                            0,
                            {Kind::ratio_at_most, 1.5}},
                           "ib_write_lat", "us", 2, samples));
  figures.push_back(
      {"null_call", "rdma", rdma.median("null_call_us"), "us", "tcp", tcp.median("null_call_us")});
  figures.push_back({"queued_launch", "rdma", rdma.median("launch_client_us"), "us", "tcp",
                     tcp.median("launch_client_us")});
  figures.push_back({"launches_until_done",
                     "rdma",
                     1e6 / rdma.median("launch_total_us"),
                     "1/s",
                     "tcp",
                     1e6 / tcp.median("launch_total_us"),
                     {Kind::ratio_at_least, 1}});
}

// Reports the memory registered by the client and by the worker of an idle session.
void add_registered(const Pool& pool, std::vector<Figure>& figures) {
  Process idle({program("gpupool-bench-workload"), "idle"}, pool.through("rdma"));
  if (!idle.await_output("idle")) throw std::runtime_error("the idle program failed:\n" + idle.output());
  size_t worker = 0;
  for (const pid_t pid : pool.poold().workers()) worker += registered_bytes(pid);
  const size_t client = registered_bytes(idle.pid());
  if (client == 0 || worker == 0)
    throw std::runtime_error(
        "cannot determine the registered memory; is the program rdma (iproute2) installed?");
  const auto add = [&](const char* name, size_t bytes, Target target) {
    figures.push_back({name, "rdma", static_cast<double>(bytes) / (1 << 20), "MiB", "", 0, target});
  };
  add("registered_client", client, {});
  add("registered_worker", worker, {});
  add("registered_session", client + worker, {Kind::value_at_most, 4});
}

}  // namespace

RdmaFigures measure_rdma(const RdmaSuite& suite) {
  const RdmaPair pair = choose(suite);
  for (const char* name : {"ib_write_bw", "ib_read_bw", "ib_write_lat"}) {
    if (!is_installed(name))
      std::fprintf(
          stderr, "gpupool-bench: %s is not installed (package perftest): its rows have no baseline\n", name);
  }
  const Pool direct(suite, pair, "bench-direct", {});
  const Pool staged(suite, pair, "bench-staged", {{"GPUPOOL_STAGING", "always"}});
  std::map<std::string, Samples> samples;
  for (int round = 0; round < suite.rounds; ++round) {
    std::fprintf(stderr, "gpupool-bench: round %d of %d\n", round + 1, suite.rounds);
    measure_calls(pair, direct, samples);
    for (const size_t bytes : suite.sizes) measure_copies(suite, pair, direct, staged, bytes, samples);
  }
  RdmaFigures measured;
  measured.hardware = hardware_of(pair.client);
  if (pair.server.name != pair.client.name) measured.hardware += "; " + hardware_of(pair.server);
  for (const size_t bytes : suite.sizes) add_copies(bytes, samples, measured.figures);
  add_calls(samples, measured.figures);
  add_registered(direct, measured.figures);
  return measured;
}

}  // namespace gpupool::bench
