// What a ResourceClaim asks for, in the terms of a lease. Reads the API server's JSON; pure, any thread.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "client/kubernetes/api_server.h"
#include "common/result.h"
#include "protocol/scheduler/address.h"

namespace gpupool::kubernetes {

struct ClaimName {
  std::string space;  // namespace
  std::string name;
  std::string uid;
};
ClaimName name_of(const Json& claim);
std::string path_of(const ClaimName& claim);  // in the API
inline std::string text_of(const ClaimName& claim) {
  return claim.space + "/" + claim.name;
}

// A device that Kubernetes has allocated to the claim.
struct AllocatedDevice {
  std::string request;  // name of the request in the claim
  std::string pool;
  std::string device;
};

// The same share of each of `gpus` GPUs.
struct LeaseTerms {
  uint32_t gpus = 0;
  uint32_t compute_milli = 0;       // 0: as `terms` say, else whole GPUs
  uint64_t memory_bytes = 0;        // 0: as `terms` say, else in proportion to compute
  std::vector<std::string> models;  // acceptable ones; empty: any
  std::string terms;                // further ones, as in the query of a pool:// address
};

struct Allocation {
  std::vector<AllocatedDevice> devices;  // of this driver
  LeaseTerms lease;                      // without models
};

// Returns what Kubernetes has allocated to the claim. ErrorCode::invalid: no single lease is like this;
// unavailable: nothing is allocated.
Result<Allocation> read_allocation(const Json& claim, const std::string& driver);
// Returns what a claim without allocation asks for, as far as it asks for devices of this class; gpus 0:
// nothing, or alternatives.
Result<LeaseTerms> read_request(const Json& claim, const std::string& driver,
                                const std::string& device_class);

constexpr const char* kSpaceLabel = "namespace=";  // of each lease; terms cannot set it

// Returns the address with the request for such a lease. ErrorCode::invalid: the message says which term is
// wrong.
Result<pool::PoolAddress> address_for(const std::string& server, const LeaseTerms& lease);

}  // namespace gpupool::kubernetes
