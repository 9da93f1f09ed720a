// Tests of what ResourceClaims ask for, and of quantities and events.
#include "client/kubernetes/claim.h"

#include "client/kubernetes/device_plugin.h"
#include "client/kubernetes/events.h"
#include "client/kubernetes/quantity.h"
#include "tests/support/catch.h"
#include "tests/support/has.h"

using namespace gpupool;
using namespace gpupool::kubernetes;
using namespace gpupool::testing;

namespace {

constexpr const char* kDriver = "gpupool.dev";

Json result(const char* device, Json consumed) {
  return {{"driver", kDriver},
          {"request", "gpu"},
          {"pool", "gpupool"},
          {"device", device},
          {"consumedCapacity", std::move(consumed)}};
}

Json allocated(Json results, Json configurations = Json::array()) {
  return {{"metadata", {{"namespace", "team"}, {"name", "claim"}, {"uid", "u-1"}}},
          {"status",
           {{"allocation",
             {{"devices", {{"results", std::move(results)}, {"config", std::move(configurations)}}}}}}}};
}

Json configuration(const char* source, Json parameters) {
  return {{"source", source}, {"opaque", {{"driver", kDriver}, {"parameters", std::move(parameters)}}}};
}

std::string terms_of(Json configurations) {
  const auto read = read_allocation(
      allocated(Json::array({result("h200", Json::object())}), std::move(configurations)), kDriver);
  return read ? read->lease.terms : "error: " + read.error().message;
}

}  // namespace

TEST_CASE("quantities of Kubernetes are read exactly") {
  CHECK(*parse_milli("0") == 0);
  CHECK(*parse_milli("50") == 50'000);
  CHECK(*parse_milli("12.5") == 12'500);
  CHECK(*parse_milli("0.1") == 100);
  CHECK(*parse_milli("500m") == 500);
  CHECK(*parse_milli("1k") == 1'000'000);
  CHECK(*parse_milli("2e3") == 2'000'000);
  CHECK(*parse_milli("8Gi") == (uint64_t{8} << 30) * 1000);
  CHECK(*parse_milli("1.5Gi") == (uint64_t{3} << 29) * 1000);
  CHECK(*parse_milli("150754820096") == uint64_t{150754820096} * 1000);
  CHECK(*parse_milli("1n") == 1);  // rounded up
  for (const char* const wrong : {"", "Gi", "-1", "1.2.3", "8 Gi", "8gi", "1e", "1e99", "99999999E", "0x10"})
    CHECK_FALSE(parse_milli(wrong));
}

TEST_CASE("an allocation in shares becomes one lease with as many GPUs as devices") {
  const Json share = {{"compute", "50"}, {"memory", "8Gi"}};
  const auto read =
      read_allocation(allocated(Json::array({result("h200", share), result("h200", share)})), kDriver);
  REQUIRE(read);
  CHECK(read->devices.size() == 2);
  CHECK(read->devices[0].device == "h200");
  CHECK(read->devices[0].request == "gpu");
  CHECK(read->lease.gpus == 2);
  CHECK(read->lease.compute_milli == 500);
  CHECK(read->lease.memory_bytes == uint64_t{8} << 30);
}

TEST_CASE("capacities may have the driver's name, and a default memory of 0 follows the compute") {
  const Json share = {{"gpupool.dev/compute", "12500m"}, {"gpupool.dev/memory", "0"}};
  const auto read = read_allocation(allocated(Json::array({result("h200", share)})), kDriver);
  REQUIRE(read);
  CHECK(read->lease.compute_milli == 125);
  CHECK(read->lease.memory_bytes == 0);
}

TEST_CASE("devices of other drivers are ignored, and without an own one there is no lease") {
  Json other = result("nic", {{"compute", "90"}});
  other["driver"] = "nic.example";
  const auto both =
      read_allocation(allocated(Json::array({other, result("h200", {{"compute", "10"}})})), kDriver);
  REQUIRE(both);
  CHECK(both->lease.gpus == 1);
  CHECK(both->lease.compute_milli == 100);
  CHECK(read_allocation(allocated(Json::array({other})), kDriver).error().code == ErrorCode::unavailable);
  CHECK(read_allocation(Json::object(), kDriver).error().code == ErrorCode::unavailable);
}

TEST_CASE("a claim with different shares, or with more than a GPU's compute, is refused with the reason") {
  const auto uneven = read_allocation(
      allocated(Json::array({result("h200", {{"compute", "50"}}), result("h200", {{"compute", "20"}})})),
      kDriver);
  REQUIRE_FALSE(uneven);
  CHECK(has(uneven.error().message, "same compute and memory"));
  const auto large = read_allocation(allocated(Json::array({result("h200", {{"compute", "150"}})})), kDriver);
  REQUIRE_FALSE(large);
  CHECK(has(large.error().message, "up to 100; for more GPUs use count"));
}

TEST_CASE("terms of a claim replace those of its class") {
  const Json of_class = configuration("FromClass", {{"terms", "priority=low&label=a&label=b"}});
  const Json of_claim = configuration("FromClaim", {{"terms", "priority=high&mode=hard"}});
  CHECK(terms_of(Json::array({of_claim, of_class})) == "label=a&label=b&priority=high&mode=hard");
}

TEST_CASE("terms that Kubernetes decides, and parameters of another form, are refused") {
  for (const char* const term : {"gpus=8", "tenant=x", "insecure=1", "model=H200"}) {
    CHECK(has(terms_of(Json::array({configuration("FromClaim", {{"terms", term}})})),
              "cannot be in a claim's terms"));
  }
  CHECK(has(terms_of(Json::array({configuration("FromClaim", {{"term", "mode=hard"}})})), "parameters"));
  CHECK(has(terms_of(Json::array({configuration("FromClaim", Json::array())})), "parameters"));
}

TEST_CASE("a lease's address has the share, the models and the terms") {
  const auto address =
      address_for("pool://a:1,b:2?insecure=1", {2, 500, 1 << 30, {"NVIDIA H200"}, "mode=hard"});
  REQUIRE(address);
  CHECK(address->schedulers.size() == 2);
  CHECK(address->insecure);
  CHECK(address->request.gpus() == 2);
  CHECK(address->request.compute_milli() == 500);
  CHECK(address->request.memory_bytes() == 1 << 30);
  CHECK(address->request.models(0) == "NVIDIA H200");
  CHECK(address->request.mode() == lease::HARD);
  CHECK(has(address_for("pool://a", {1, 0, 0, {}, "compute=0"}).error().message, "compute must be"));
  CHECK(address_for("pool://a", {1, 0, 0, {}, "compute=25"})->request.compute_milli() == 250);
}

TEST_CASE("a claim cannot have the label of another namespace") {
  for (const char* const terms : {"label=namespace=other", "label=a&label=namespace%3Dother"})
    CHECK(
        has(address_for("pool://a", {1, 0, 0, {}, terms}).error().message, "'namespace' is set by gpupool"));
  CHECK(address_for("pool://a", {1, 0, 0, {}, "label=space=other"}));
}

TEST_CASE("devices that Kubernetes does not count are refused") {
  Json access = result("h200", {{"compute", "50"}});
  access["adminAccess"] = true;
  CHECK(has(read_allocation(allocated(Json::array({access})), kDriver).error().message, "adminAccess"));
  access["adminAccess"] = false;
  CHECK(read_allocation(allocated(Json::array({access})), kDriver));
}

TEST_CASE("a claim that is not allocated is read for the check") {
  const Json claim = Json::parse(R"({"spec": {"devices": {"requests": [
    {"name": "a", "exactly": {"deviceClassName": "gpupool.dev", "count": 3, "capacity": {"requests": {"compute": "40"}}}},
    {"name": "b", "exactly": {"deviceClassName": "nic.example"}}]}}})");
  const auto read = read_request(claim, kDriver, "gpupool.dev");
  REQUIRE(read);
  CHECK(read->gpus == 3);
  CHECK(read->compute_milli == 400);
  CHECK(read_request(claim, kDriver, "other")->gpus == 0);
}

TEST_CASE("an event names its claim") {
  const Json event = event_of({"team", "claim", "u-1"}, EventType::warning, "Waiting", "for a\nGPU",
                              "gpupool.dev", "2026-01-02T03:04:05Z");
  CHECK(event["involvedObject"]["uid"] == "u-1");
  CHECK(event["metadata"]["namespace"] == "team");
  CHECK(event["type"] == "Warning");
  CHECK(event["message"] == "for a?GPU");
}

TEST_CASE("events of a claim with one reason have one name, which is valid for a long claim") {
  const auto name = [](const ClaimName& claim, const char* reason) {
    return event_of(claim, EventType::warning, reason, "text", "d",
                    "2026-01-02T03:04:05Z")["metadata"]["name"]
        .get<std::string>();
  };
  CHECK(name({"team", "claim", "u-1"}, "Waiting") == name({"team", "claim", "u-1"}, "Waiting"));
  CHECK(name({"team", "claim", "u-1"}, "Waiting") != name({"team", "claim", "u-1"}, "Refused"));
  CHECK(name({"team", "claim", "u-1"}, "Waiting") != name({"team", "claim", "u-2"}, "Waiting"));
  const std::string cut = std::string(199, 'a') + "-" + std::string(50, 'b');
  CHECK_FALSE(has(name({"team", cut, "u-1"}, "Waiting"), "-."));
}

TEST_CASE("resources of the device plugin have a name and terms") {
  CHECK(parse_resource("gpupool.dev/gpu")->terms.empty());
  CHECK(parse_resource("gpupool.dev/half:compute=50&memory=4GiB")->terms == "compute=50&memory=4GiB");
  for (const char* const wrong :
       {"gpu", "/gpu", "gpupool.dev/", "a/b/c", "a b/c", "a/b:compute=0", "a/b:gpus=2"})
    CHECK_FALSE(parse_resource(wrong));
}
