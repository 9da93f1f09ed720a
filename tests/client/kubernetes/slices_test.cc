// Tests of the ResourceSlices of a pool.
#include "client/kubernetes/slices.h"

#include <initializer_list>

#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::kubernetes;

namespace {

struct Host {
  const char* rack;
  const char* model;
  int gpus;
};

// Returns a pool of these nodes, whose GPUs have 80 GiB.
pool::ListNodesReply pool_of(std::initializer_list<Host> hosts) {
  pool::ListNodesReply nodes;
  for (const Host& host : hosts) {
    pool::NodeState& node = *nodes.add_nodes();
    node.set_rack(host.rack);
    for (int gpu = 0; gpu < host.gpus; ++gpu) {
      pool::PoolGpu& one = *node.add_gpus();
      one.set_model(host.model);
      one.set_memory_bytes(uint64_t{80} << 30);
    }
  }
  return nodes;
}

}  // namespace

TEST_CASE("GPUs of a model are one device with the sum of their capacity") {
  const Json devices =
      devices_of(pool_of({{"r1", "NVIDIA H100 80GB HBM3", 8}, {"r2", "NVIDIA H100 80GB HBM3", 8}}), true);
  REQUIRE(devices.size() == 1);
  const Json& device = devices[0];
  CHECK(device["name"] == "nvidia-h100-80gb-hbm3");
  CHECK(device["allowMultipleAllocations"] == true);
  CHECK(device["attributes"]["model"]["string"] == "NVIDIA H100 80GB HBM3");
  CHECK(device["attributes"]["architecture"]["string"] == "Hopper");
  CHECK(device["attributes"]["memoryMiB"]["int"] == 81920);
  CHECK_FALSE(device["attributes"].contains("rack"));  // the GPUs are in two
  CHECK(device["capacity"]["compute"]["value"] == "1600");
  CHECK(device["capacity"]["compute"]["requestPolicy"]["validRange"]["max"] == "100");
  CHECK(device["capacity"]["memory"]["value"] == std::to_string((uint64_t{80} << 30) * 16));
  CHECK(device["capacity"]["memory"]["requestPolicy"]["default"] == "0");
}

TEST_CASE("a rack is an attribute if all GPUs of the model are there") {
  const Json devices = devices_of(pool_of({{"r1", "softgpu", 1}, {"r1", "softgpu", 2}}), true);
  CHECK(devices[0]["attributes"]["rack"]["string"] == "r1");
  CHECK_FALSE(devices[0]["attributes"].contains("zone"));
  CHECK_FALSE(devices[0]["attributes"].contains("architecture"));
}

TEST_CASE("nodes that take no leases and GPUs that are withheld are left out") {
  pool::ListNodesReply nodes = pool_of({{"", "a", 1}, {"", "b", 2}});
  nodes.mutable_nodes(0)->set_condition(pool::NodeState::DRAINED);
  nodes.mutable_nodes(1)->mutable_gpus(0)->set_withheld_because("another node reports it");
  const Json devices = devices_of(nodes, true);
  REQUIRE(devices.size() == 1);
  CHECK(devices[0]["capacity"]["compute"]["value"] == "100");
}

TEST_CASE("without consumable capacity each GPU is a device") {
  const Json devices = devices_of(pool_of({{"", "Model X", 3}}), false);
  REQUIRE(devices.size() == 3);
  CHECK(devices[2]["name"] == "model-x-gpu2");
  CHECK_FALSE(devices[0].contains("allowMultipleAllocations"));
  CHECK_FALSE(devices[0]["capacity"]["compute"].contains("requestPolicy"));
}

TEST_CASE("models whose names differ in signs only get different devices") {
  const Json devices = devices_of(pool_of({{"", "X/1", 1}, {"", "X 1", 1}}), true);
  REQUIRE(devices.size() == 2);
  CHECK(devices[0]["name"] != devices[1]["name"]);
}

TEST_CASE("slices have at most 128 devices, and say how many they are") {
  const Json devices = devices_of(pool_of({{"", "m", 300}}), false);
  const Json slices = slices_of(devices, "gpupool.dev", "gpupool", 7);
  REQUIRE(slices.size() == 3);
  CHECK(slices[2]["metadata"]["name"] == "gpupool.dev-gpupool-2");
  CHECK(slices[2]["spec"]["devices"].size() == 44);
  CHECK(slices[0]["spec"]["pool"]["resourceSliceCount"] == 3);
  CHECK(slices[0]["spec"]["pool"]["generation"] == 7);
  CHECK(slices[0]["spec"]["allNodes"] == true);
  CHECK(devices_in(slices) == devices);
  // An empty pool has one slice, so that the cluster forgets earlier devices.
  CHECK(slices_of(Json::array(), "d", "p", 1).size() == 1);
}

TEST_CASE("a probe shows whether the API server keeps that devices are shared") {
  Json probe = probe_slice("gpupool.dev", "gpupool");
  CHECK(probe["metadata"]["name"] != slice_name("gpupool.dev", "gpupool", 0));
  CHECK(probe["spec"]["devices"][0]["capacity"]["compute"].contains("requestPolicy"));
  CHECK(are_shared(devices_in(Json::array({probe}))));
  probe["spec"]["devices"][0].erase("allowMultipleAllocations");
  CHECK_FALSE(are_shared(devices_in(Json::array({probe}))));
}
