// Tests how a worker learns a device's memory use without a context, from the NVML library beside its device
// library.
#include "server/worker/memory/memory_use.h"

#include <cstdlib>
#include <filesystem>

#include "server/worker/device/device_description.h"
#include "server/worker/device/device_library.h"
#include "tests/support/catch.h"
#include "tests/support/processes.h"

using namespace gpupool;
using namespace gpupool::worker;

namespace {

std::function<MemoryUse(int device)> open_beside(bool nvml) {
  const testing::TemporaryFolder folder;
  std::filesystem::copy_file(
      FAKE_DEVICE_LIBRARY,
      folder.path() / "libcuda.so.1");  // a copy: a library loaded before would keep its first path
  if (nvml) std::filesystem::create_symlink(FAKE_NVML_LIBRARY, folder.path() / "libnvidia-ml.so.1");
  const auto library = DeviceLibrary::load(folder.path() / "libcuda.so.1");
  REQUIRE(library.ok());
  const auto devices = describe_devices(**library);
  REQUIRE(devices.ok());
  return open_memory_use(**library, *devices);
}

}  // namespace

TEST_CASE("reports nothing without NVML beside the device library") {
  CHECK(open_beside(false) == nullptr);
}

TEST_CASE("reports the memory of this process and of all processes from NVML") {
  const auto use = open_beside(true);
  REQUIRE(use);
  for (const int device : {0, 1}) {
    CHECK(use(device).process == 501u + static_cast<unsigned>(device));
    CHECK(use(device).device == 701u + static_cast<unsigned>(device));
  }
  for (const int unknown : {-1, 2}) CHECK(!use(unknown).device);
  for (const char* const how : {"stranger", "none"}) {
    ::setenv("FAKE_NVML", how, 1);
    CHECK(!use(0).process);
    CHECK(use(0).device == 701u);
  }
}
