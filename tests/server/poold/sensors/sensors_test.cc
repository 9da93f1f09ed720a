// Tests of reading GPUs' sensors, with a library in place of NVIDIA's NVML.
#include "server/poold/sensors/sensors.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "tests/support/catch.h"
#include "tests/support/processes.h"

using namespace gpupool;
using namespace gpupool::testing;
using server::Sensors;

namespace {

const std::string kUuid = "GPU-00000000-0000-0000-0000-000000000001";

}  // namespace

TEST_CASE("what the driver reports is read, and the rest is absent") {
  const Sensors sensors(FAKE_NVML_LIBRARY);
  REQUIRE(eventually([&] { return sensors.of(kUuid).has_value(); }));
  const admin::GpuSensors gpu = *sensors.of(kUuid);
  CHECK(gpu.sensors().temperature() == 41);
  CHECK(gpu.sensors().energy_millijoules() == 123'456'789'012ull);
  CHECK(gpu.sensors().sm_mhz() == 1001);
  CHECK(gpu.sensors().memory_mhz() == 1002);
  CHECK(gpu.sensors().ecc_corrected() == 0);
  CHECK(gpu.sensors().ecc_uncorrected() == 10);
  CHECK(gpu.gpu_percent() == 73);
  CHECK(gpu.memory_percent() == 12);
  CHECK(gpu.memory_used_bytes() == 5);
  CHECK(gpu.memory_free_bytes() == 6);
  CHECK(gpu.memory_reserved_bytes() == 7);
  CHECK(gpu.driver_version() == "580.95?");
  CHECK(!gpu.sensors().has_power_milliwatts());  // the GPU has none
  CHECK(!gpu.sensors().has_fan_percent());       // the library lacks the function
  CHECK(!gpu.sensors().has_memory_temperature());
  CHECK(!sensors.of("GPU-other"));
}

TEST_CASE("without a library nothing is read") {
  CHECK(!Sensors("").of(kUuid));
  CHECK(!Sensors("/no/such/library.so").of(kUuid));
}

TEST_CASE("the library is NVIDIA's for NVIDIA's devices alone, unless it is named") {
  CHECK(server::nvml_library("auto", "nvidia") == "libnvidia-ml.so.1");
  CHECK(server::nvml_library("auto", "softgpu").empty());
  CHECK(server::nvml_library("auto", "/some/libcuda.so.1").empty());
  CHECK(server::nvml_library("off", "nvidia").empty());
  CHECK(server::nvml_library("/some/libnvidia-ml.so.1", "softgpu") == "/some/libnvidia-ml.so.1");
}

// The last case, because the thread that hangs stays.
TEST_CASE("a driver that hangs does not hold up poold") {
  const TemporaryFolder folder;
  const std::string hangs = folder.path() / "hangs";
  ::setenv("FAKE_NVML_HANGS", hangs.c_str(), 1);
  const auto before = std::chrono::steady_clock::now();
  {
    const Sensors sensors(FAKE_NVML_LIBRARY);
    REQUIRE(eventually([&] { return std::filesystem::exists(hangs); }));
    CHECK(!sensors.of(kUuid));
  }
  CHECK(std::chrono::steady_clock::now() - before < std::chrono::seconds(30));
}
