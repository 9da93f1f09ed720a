#include "protocol/transport/rdma_options.h"

#include <cstdlib>
#include <vector>

#include "tests/support/catch.h"

using namespace gpupool;
using transport::RdmaOptions;

namespace {

bool reads(const char* name, const std::string& text, RdmaOptions& out) {
  const auto* setting = transport::find_rdma_setting(name);
  REQUIRE(setting);
  return setting->read(text, out);
}

}  // namespace

TEST_CASE("every rdma setting reads its value") {
  RdmaOptions options;
  CHECK(reads("device", "mlx5_0", options));
  CHECK(reads("port", "2", options));
  CHECK(reads("gid-index", "0", options));
  CHECK(reads("mtu", "4096", options));
  CHECK(reads("traffic-class", "0x68", options));
  CHECK(reads("service-level", "15", options));
  CHECK(reads("partition-key", "0xFFFF", options));
  CHECK(reads("timeout", "22", options));
  CHECK(reads("setup", "manager", options));
  CHECK(options.setup == RdmaOptions::Setup::manager);
  CHECK(options.device == "mlx5_0");
  CHECK(options.port == 2);
  CHECK(options.gid_index == 0);
  CHECK(options.mtu == 4096);
  CHECK(options.traffic_class == 0x68);
  CHECK(options.service_level == 15);
  CHECK(options.partition_key == 0xffff);
  CHECK(options.timeout_exponent == 22);
  CHECK(options.use == RdmaOptions::Use::never);
  CHECK(transport::rdma_settings().size() == 9);
  CHECK_FALSE(transport::find_rdma_setting("use"));
}

TEST_CASE("an invalid value leaves a setting unchanged") {
  struct Case {
    const char* name;
    std::vector<std::string> wrong;
  };
  const auto setting = GENERATE(
      Case{"device", {"", "a b", "a/b", "mlx\n", std::string(64, 'x')}},
      Case{"port", {"", "0", "256", "-1", "1 ", " 1", "+1", "one"}}, Case{"gid-index", {"-1", "256", "1x"}},
      Case{"mtu", {"0", "128", "1500", "8192", "4096.0"}}, Case{"traffic-class", {"256", "0x", "0x100"}},
      Case{"service-level", {"16", "99999999999999999999"}}, Case{"partition-key", {"0", "0x10000", "8g"}},
      Case{"timeout", {"0", "23"}}, Case{"setup", {"", "magic"}});
  for (const std::string& text : setting.wrong) {
    INFO(setting.name << "=" << text);
    RdmaOptions options;
    options.gid_index = 7;
    CHECK_FALSE(reads(setting.name, text, options));
    CHECK(options.device.empty());
    CHECK(options.port + options.mtu + options.traffic_class + options.service_level +
              options.partition_key ==
          0);
    CHECK(options.gid_index == 7);
    CHECK(options.setup == RdmaOptions::Setup::automatic);
    CHECK(options.timeout_exponent == 16);
  }
}

TEST_CASE("the environment changes the settings that it names and each mistake is reported") {
  for (const auto& setting : transport::rdma_settings()) ::unsetenv(setting.variable);
  std::vector<std::string> mistakes;
  const auto read = [&] {
    return transport::rdma_options_from_environment(
        [&](const std::string& mistake) { mistakes.push_back(mistake); });
  };
  CHECK(read().device.empty());
  ::setenv("GPUPOOL_RDMA_DEVICE", "rxe0", 1);
  ::setenv("GPUPOOL_RDMA_GID_INDEX", "1", 1);
  ::setenv("GPUPOOL_RDMA_MTU", "", 1);
  ::setenv("GPUPOOL_RDMA_TIMEOUT", "soon", 1);
  const RdmaOptions options = read();
  for (const auto& setting : transport::rdma_settings()) ::unsetenv(setting.variable);
  CHECK(options.device == "rxe0");
  CHECK(options.gid_index == 1);
  CHECK(options.mtu == 0);
  CHECK(options.timeout_exponent == 16);
  REQUIRE(mistakes.size() == 1);
  CHECK(mistakes[0] == "GPUPOOL_RDMA_TIMEOUT=soon: ignored, must be an exponent from 1 to 22");
}
