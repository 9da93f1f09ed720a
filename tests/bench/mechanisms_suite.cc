#include "tests/bench/mechanisms_suite.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "tests/bench/run_program.h"
#include "tests/support/poold_process.h"
#include "tests/support/slow_link.h"

namespace gpupool::bench {
namespace {

using testing::Environment;
using testing::PooldProcess;
using testing::SlowLink;
using testing::TemporaryFolder;

constexpr double kLinkBytesPerSecond = 100e6;
constexpr std::chrono::microseconds kLinkRoundTrip{200};
const char* const kData[] = {"repetitive", "random"};

// Runs gpupool-bench-mechanisms, and adds its printed values with `prefix` in front of their names.
void measure(const std::vector<std::string>& arguments, const Environment& environment,
             const std::string& prefix, Samples& samples) {
  std::vector<std::string> words{program("gpupool-bench-mechanisms")};
  words.insert(words.end(), arguments.begin(), arguments.end());
  Samples printed;
  run_program(words, environment, printed);
  for (const std::string& name : printed.names("")) samples.add(prefix + name, printed.median(name));
}

Environment through(const std::string& url, Environment more = {}) {
  more["LD_LIBRARY_PATH"] = prefix() / "lib" / "client";
  more["GPUPOOL"] = url;
  more["GPUPOOL_TRANSPORT"] = "tcp";
  return more;
}

class MechanismsRun {
 public:
  explicit MechanismsRun(const MechanismsSuite& suite) : suite_(suite) {}

  bool chosen(const std::string& part) const {
    return suite_.only.empty() ||
           std::find(suite_.only.begin(), suite_.only.end(), part) != suite_.only.end();
  }
  void round() {
    if (chosen("quota")) quota();
    if (chosen("pools")) pools();
    if (chosen("compression")) compression();
    if (chosen("images")) images();
  }
  std::vector<Figure> figures() const;

 private:
  // The quota exceeds the program's memory, so that no allocation fails.
  void quota() {
    const TemporaryFolder folder;
    const std::string config = folder.write("poold.toml", "[default_quota]\nmemory = \"1000MiB\"\n");
    Environment device = device_environment();
    device["SOFTGPU_MEMORY"] = "1GiB";
    const PooldProcess limited(suite_.device, {"--config", config}, device),
        unlimited(suite_.device, {}, device);
    const std::vector<std::string> allocations{"allocations", suite_.quick ? "3" : "24"};
    measure(allocations, through(unlimited.url()), "unlimited_", samples_);
    measure(allocations, through(limited.url()), "limited_", samples_);
  }
  void pools() {
    const PooldProcess poold(suite_.device, {}, device_environment());
    const std::vector<std::string> pooled{"pooled", suite_.quick ? "3" : "200"};
    measure(pooled, suite_.direct, "direct_", samples_);
    measure(pooled, through(poold.url()), "pooled_", samples_);
  }
  void compression() {
    const PooldProcess poold(suite_.device, {}, device_environment());
    for (const std::string data : kData) {
      for (const std::string wish : {"off", "auto"}) {
        const SlowLink link(poold.endpoint(),
                            {.round_trip = kLinkRoundTrip, .bytes_per_second = kLinkBytesPerSecond});
        const std::string prefix = data + "_" + wish + "_";
        measure({"copies", data, suite_.quick ? "16" : "48"},
                through(link.url(), {{"GPUPOOL_COMPRESSION", wish}}), prefix, samples_);
      }
    }
  }
  // poold's cache does not contain the image before the first of the two loads.
  void images() {
    const PooldProcess poold(suite_.device, {}, device_environment());
    const std::vector<std::string> image{"image", suite_.quick ? "1" : "8"};
    measure(image, suite_.direct, "direct_", samples_);
    measure(image, through(poold.url()), "first_", samples_);
    measure(image, through(poold.url()), "again_", samples_);
  }

  const MechanismsSuite suite_;
  Samples samples_;
};

std::vector<Figure> MechanismsRun::figures() const {
  std::vector<Figure> figures;
  const auto add = [&](const std::string& name, const char* unit, const std::string& value,
                       const char* beside, const std::string& baseline) {
    figures.push_back({name, "tcp", samples_.median(value), unit, beside, samples_.median(baseline)});
  };
  if (chosen("quota")) {
    add("quota_alloc_32_mib", "us", "limited_fresh_us", "without a quota", "unlimited_fresh_us");
    add("quota_alloc_free_4_kib", "us", "limited_small_us", "without a quota", "unlimited_small_us");
  }
  if (chosen("pools"))
    add("pool_alloc_free_async_64_mib", "us", "pooled_pair_us", "direct", "direct_pair_us");
  if (chosen("compression")) {
    for (const std::string data : kData) {
      for (const std::string way : {"h2d", "d2h"}) {
        add("compression_" + data + "_" + way, "MB/s", data + "_auto_" + way + "_MBps",
            "GPUPOOL_COMPRESSION=off", data + "_off_" + way + "_MBps");
      }
    }
  }
  if (chosen("images")) {
    add("image_first_load", "ms", "first_load_ms", "direct", "direct_load_ms");
    add("image_load_again", "ms", "again_load_ms", "direct", "direct_load_ms");
  }
  return figures;
}

}  // namespace

std::vector<Figure> measure_mechanisms(const MechanismsSuite& suite) {
  MechanismsRun measured(suite);
  return measure_rounds(measured, suite.rounds);
}

}  // namespace gpupool::bench
