// Creates a scheduler's signing key and leases signed with it, for tests of poold and clients without a
// scheduler.
#pragma once
#include <string>
#include <vector>

#include "protocol/lease/token.h"
#include "tests/support/processes.h"

namespace gpupool::testing {

std::chrono::milliseconds time_now();  // wall clock, since 1970

class LeaseMaker {
 public:
  explicit LeaseMaker(std::string node = "gpu-1");

  const std::string& node() const { return node_; }
  const lease::PublicKey& public_key() const { return key_.public_key(); }
  std::string public_key_file() const { return folder_.path() / "public.pem"; }
  // Returns a new lease of tenant "physics", valid for ten minutes, with the same share of each GPU.
  lease::Lease lease(const std::vector<std::string>& gpus, uint32_t compute_milli = 500,
                     uint64_t memory_bytes = 64u << 20);
  std::string token(const lease::Lease& lease) const;
  // Returns the options for a poold that accepts these leases.
  std::vector<std::string> options() const {
    return {"--pool-name", node_, "--pool-public-key", public_key_file()};
  }

 private:
  TemporaryFolder folder_;
  const std::string node_;
  const lease::SigningKey key_;
  uint64_t made_ = 0;
};

}  // namespace gpupool::testing
