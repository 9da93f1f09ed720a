// gpupool-bench: what the pool costs, as ratios measured side by side in one run.
//
// It starts its own poold, runs the same workload directly on the device library and through the pool in turns, measures
// raw TCP on the same loopback between the turns, and reports medians. docs/performance.md says how to read the figures.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <climits>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "protocol/wire/commands.h"
#include "protocol/wire/frame.h"
#include "tests/bench/raw_tcp.h"
#include "tests/support/proxy.h"
#include "tests/support/poold_process.h"

namespace {

using gpupool::testing::Proxy;
using gpupool::testing::Environment;
using gpupool::testing::PooldProcess;
using gpupool::testing::Process;
namespace fs = std::filesystem;

struct Figure {
  std::string name;
  double value = 0;
  std::string unit;
  std::string baseline;
  double baseline_value = 0;
};

struct Options {
  std::string json;
  std::string device = "softgpu";
  int rounds = 5;
  size_t largest = size_t{256} << 20;
  bool examples = true;
};

using Samples = std::map<std::string, std::vector<double>>;

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

fs::path prefix() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  return fs::path(std::string(path, length > 0 ? length : 0)).parent_path().parent_path();
}

// Runs the workload and adds its "name value" lines.
void run_workload(const Options& options, const Environment& environment, Samples& samples) {
  Process workload({prefix() / "bin" / "gpupool-bench-workload", std::to_string(options.largest)}, environment);
  const int status = workload.wait(std::chrono::minutes(10));
  if (status != 0) throw std::runtime_error("the workload failed (status " + std::to_string(status) + "):\n" + workload.output());
  std::istringstream lines(workload.output());
  std::string name;
  double value = 0;
  while (lines >> name >> value) samples[name].push_back(value);
}

Environment direct_environment(const Options& options) {
  const std::string library = options.device == "softgpu" ? (prefix() / "lib" / "softgpu").string()
                              : options.device == "nvidia" ? ""
                                                           : fs::path(options.device).parent_path().string();
  return {{"LD_LIBRARY_PATH", library}};
}

Environment pool_environment(const std::string& url) {
  return {{"LD_LIBRARY_PATH", (prefix() / "lib" / "client").string()}, {"GPUPOOL", url}};
}

void add_latency(const Samples& direct, const Samples& pool, const Samples& raw, std::vector<Figure>& figures) {
  const auto of = [](const Samples& samples, const std::string& name) {
    const auto found = samples.find(name);
    return found == samples.end() ? 0 : median(found->second);
  };
  figures.push_back({"null_call", of(pool, "null_call_us"), "us", "raw_tcp_ping_pong", of(raw, "ping_pong_us")});
  figures.push_back({"launch_client_cost", of(pool, "launch_client_us"), "us", "direct", of(direct, "launch_client_us")});
  figures.push_back({"launch_throughput", 1e6 / of(pool, "launch_total_us"), "launches/s", "direct",
                     1e6 / of(direct, "launch_total_us")});
  figures.push_back({"alloc_free", of(pool, "alloc_free_us"), "us", "direct", of(direct, "alloc_free_us")});
  for (size_t bytes = 4096; raw.count("bandwidth_" + std::to_string(bytes)); bytes *= 4) {
    const std::string size = std::to_string(bytes);
    for (const std::string way : {"h2d", "d2h"}) {
      const double value = of(pool, way + "_" + size + "_GBps");
      figures.push_back({way + "_" + size, value, "GB/s", "raw_tcp_one_stream", of(raw, "bandwidth_" + size)});
      figures.push_back({way + "_" + size, value, "GB/s", "direct", of(direct, way + "_" + size + "_GBps")});
    }
  }
}

// Round trips of each example: a count, against the commands it sent in all.
void add_examples(const PooldProcess& poold, std::vector<Figure>& figures) {
  const fs::path folder = prefix() / "examples";
  if (!fs::exists(folder)) return;
  std::vector<fs::path> programs;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const bool program = entry.is_regular_file() && access(entry.path().c_str(), X_OK) == 0 && !entry.path().has_extension();
    if (program) programs.push_back(entry.path());
  }
  std::sort(programs.begin(), programs.end());
  for (const auto& program : programs) {
    Proxy proxy(poold.endpoint());
    gpupool::testing::TemporaryFolder outputs;  // an example may write a picture where it runs
    Process example({"/bin/sh", "-c", "cd \"$0\" && exec \"$1\"", outputs.path(), program}, pool_environment(proxy.url()));
    if (example.wait(std::chrono::minutes(2)) != 0) {
      throw std::runtime_error("the example " + program.string() + " failed:\n" + example.output());
    }
    figures.push_back({"round_trips_" + program.filename().string(), static_cast<double>(proxy.round_trips()), "calls",
                       "commands_sent", static_cast<double>(proxy.commands())});
  }
}

void print(const std::vector<Figure>& figures) {
  std::printf("%-34s %12s %-11s %12s %8s  %s\n", "figure", "value", "unit", "baseline", "ratio", "of");
  for (const auto& f : figures) {
    std::printf("%-34s %12.3f %-11s %12.3f %8.3f  %s\n", f.name.c_str(), f.value, f.unit.c_str(), f.baseline_value,
                f.baseline_value ? f.value / f.baseline_value : 0, f.baseline.c_str());
  }
}

void write_json(const std::string& path, const std::vector<Figure>& figures) {
  std::ofstream out(path);
  out << "{\"results\": [";
  const char* separator = "\n  ";
  for (const auto& f : figures) {
    char line[512];
    std::snprintf(line, sizeof line,
                  "{\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\", \"baseline\": \"%s\", \"baseline_value\": %.6g, "
                  "\"ratio\": %.6g}",
                  f.name.c_str(), f.value, f.unit.c_str(), f.baseline.c_str(), f.baseline_value,
                  f.baseline_value ? f.value / f.baseline_value : 0);
    out << separator << line;
    separator = ",\n  ";
  }
  out << "\n]}\n";
  if (!out.flush()) throw std::runtime_error("cannot write " + path);
}

int run(const Options& options) {
  PooldProcess poold(options.device);
  Samples direct, pool, raw;
  for (int round = 0; round < options.rounds; ++round) {
    std::fprintf(stderr, "gpupool-bench: round %d of %d\n", round + 1, options.rounds);
    // The bytes of the null call: header and stream handle there, header back.
    raw["ping_pong_us"].push_back(
        gpupool::bench::ping_pong_us(sizeof(gpupool::wire::CommandHeader) + 8, sizeof(gpupool::wire::MessageHeader)));
    for (size_t bytes = 4096; bytes <= options.largest; bytes *= 4) {
      raw["bandwidth_" + std::to_string(bytes)].push_back(gpupool::bench::bandwidth_GBps(bytes));
    }
    run_workload(options, direct_environment(options), direct);
    run_workload(options, pool_environment(poold.url()), pool);
  }
  std::vector<Figure> figures;
  add_latency(direct, pool, raw, figures);
  if (options.examples) add_examples(poold, figures);
  print(figures);
  if (!options.json.empty()) write_json(options.json, figures);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Measures what the pool costs against the bare device and raw TCP, side by side");
  app.add_option("--json", options.json, "also write the figures to this file");
  app.add_option("--device", options.device, "device library, as poold takes it: softgpu, nvidia or a path");
  app.add_option("--rounds", options.rounds, "how often each side is measured; medians are reported")->check(CLI::Range(1, 100));
  app.add_option("--largest", options.largest, "largest copy in bytes")->check(CLI::Range(size_t{4096}, size_t{1} << 30));
  app.add_flag("!--no-examples", options.examples, "do not count the examples' round trips");
  CLI11_PARSE(app, argc, argv);
  try {
    return run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpupool-bench: %s\n", error.what());
    return 1;
  }
}
