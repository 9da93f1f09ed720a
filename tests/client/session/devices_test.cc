// Tests which devices a program sees, in which order, and their attributes.
#include "client/session/devices.h"

#include <string>

#include "client/process/log.h"
#include "protocol/driver/cuda_header.h"
#include "tests/client/fake_device.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::client;
using gpupool::client::test::no_session;

namespace {

// Four devices of two servers. Each byte of the UUID of device n is n * 0x11.
std::vector<OfferedDevice> offered() {
  std::vector<OfferedDevice> devices(4);
  for (size_t i = 0; i < devices.size(); ++i) {
    devices[i].session = &no_session(i / 2);
    devices[i].server_ordinal = static_cast<int>(i % 2);
    devices[i].description.name = "device " + std::to_string(i);
    devices[i].description.uuid = std::string(16, static_cast<char>(i * 0x11));
    devices[i].description.pci_bus_id = "0000:0" + std::to_string(1 + i % 2) + ":00.0";
  }
  return devices;
}

std::string seen(const char* visible) {
  std::string names;
  for (const auto& device : make_devices(offered(), visible)) {
    CHECK(device->ordinal == static_cast<int>(names.size()));
    names += device->name.back();
  }
  return names;
}

}  // namespace

TEST_CASE("devices: numbers the devices of all servers consecutively") {
  const Devices devices = make_devices(offered(), nullptr);
  REQUIRE(devices.size() == 4);
  CHECK(seen(nullptr) == "0123");
  CHECK(devices[3]->session == &no_session(1));
  CHECK(devices[3]->server_ordinal == 1);
}

TEST_CASE("devices: CUDA_VISIBLE_DEVICES chooses and orders them") {
  CHECK(seen("2") == "2");
  CHECK(seen("3,0, 1") == "301");
  CHECK(seen("GPU-22222222-2222-2222-2222-222222222222,0") == "20");
  CHECK(seen("GPU-33") == "3");
}

TEST_CASE("devices: CUDA_VISIBLE_DEVICES ends at the first unknown or repeated device") {
  CHECK(seen("").empty());
  CHECK(seen("-1").empty());
  CHECK(seen("4,0").empty());
  CHECK(seen("1,x,2") == "1");
  CHECK(seen("1,,2") == "1");
  CHECK(seen("1,2,1,3") == "12");
  CHECK(seen("GPU-44,0").empty());
}

TEST_CASE("devices: reports an unknown device in CUDA_VISIBLE_DEVICES unless the value hides all devices") {
  static std::string said;
  error_listener = [](const char* text, size_t length) { said += std::string(text, length) + "\n"; };
  CHECK(seen("0,4,1,9") == "0");
  CHECK(said ==
        "CUDA_VISIBLE_DEVICES=0,4,1,9: device '4' does not exist (devices of the servers: 4, numbered from "
        "0); this entry and all after it are ignored, as with CUDA\n");
  said.clear();
  CHECK(seen("GPU-44").empty());
  CHECK(said.find("device 'GPU-44' does not exist") != std::string::npos);
  said.clear();
  CHECK(seen("all").empty());
  CHECK(said.find("device 'all' does not exist") != std::string::npos);
  said.clear();
  for (const char* const good : {"", "-1", "0,-1", "NoDevFiles", "3,2", "1,1"}) seen(good);
  CHECK(said.empty());
  error_listener = nullptr;
}

TEST_CASE("devices: PCI addresses of several servers differ in the domain and in its attribute") {
  auto all = offered();
  all[2].description.attributes.push_back({CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 0});
  const Devices devices = make_devices(all, nullptr);
  CHECK(devices[0]->pci_bus_id == "0000:01:00.0");
  CHECK(devices[1]->pci_bus_id == "0000:02:00.0");
  CHECK(devices[2]->pci_bus_id == "0001:01:00.0");
  CHECK(devices[3]->pci_bus_id == "0001:02:00.0");
  CHECK(devices[2]->attributes.at(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID) == 1);
  // Also if not all devices are visible.
  CHECK(make_devices(offered(), "2")[0]->pci_bus_id == "0001:01:00.0");
}

TEST_CASE("devices: clears attributes of features that the client does not forward") {
  auto all = offered();
  all[0].description.attributes = {{CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 1},
                                   {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32}};
  const Devices devices = make_devices(all, nullptr);
  CHECK(devices[0]->attributes.at(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS) == 0);
  CHECK(devices[0]->attributes.at(CU_DEVICE_ATTRIBUTE_WARP_SIZE) == 32);
}

TEST_CASE("devices: does not report handle types if the server shares no memory") {
  auto all = offered();
  all[0].description.attributes = {{CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1}};
  CHECK(make_devices(all, nullptr)[0]->attributes.at(
            CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) == 0);
}

TEST_CASE("devices: assumes a granularity of 2 MiB if the server sends none") {
  hello::Device described;
  CHECK(granularity_of(described) == 2u << 20);
  described.granularity = 64 << 10;
  CHECK(granularity_of(described) == 64u << 10);
}
