// Stateless credentials of lease clients: the secret of a lease, and the ticket that preserves a request's
// arrival time. Both are HMAC-SHA256 with a key derived from the signing key, so every scheduler with that
// key can verify them. Immutable; any thread.
#pragma once
#include <optional>
#include <string>

#include "protocol/control/pool.pb.h"
#include "protocol/lease/key.h"
#include "scheduler/core/types.h"

namespace gpupool::scheduler {

class LeaseCredentials {
 public:
  explicit LeaseCredentials(const lease::SigningKey& key);

  std::string lease_secret(const LeaseId& lease) const;  // 32 bytes
  bool is_lease_secret(const LeaseId& lease, const std::string& secret) const;
  // The ticket is valid only for this request of this tenant.
  std::string ticket(const std::string& tenant, const pool::Request& request, Time arrived) const;
  // Returns the arrival time in the request's ticket; null if the ticket is not valid.
  std::optional<Time> arrival(const std::string& tenant, const pool::Request& request) const;

 private:
  std::string mac(const std::string& purpose, const std::string& message) const;
  std::string key_;
};

}  // namespace gpupool::scheduler
