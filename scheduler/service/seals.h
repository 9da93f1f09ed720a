// What the scheduler hands to holders so that it need not remember it: the secret of a lease, and the ticket of a place in the queue. Both
// come from its signing key, so that every scheduler with that key knows them. Immutable; any thread.
#pragma once
#include <optional>
#include <string>

#include "protocol/control/pool.pb.h"
#include "protocol/lease/key.h"
#include "scheduler/core/types.h"

namespace gpupool::scheduler {

class Seals {
 public:
  explicit Seals(const lease::SigningKey& key);

  std::string lease_secret(const LeaseId& lease) const;  // 32 bytes
  bool is_lease_secret(const LeaseId& lease, const std::string& secret) const;
  // For this request of this tenant alone.
  std::string ticket(const std::string& tenant, const pool::Request& request, Time arrived) const;
  std::optional<Time> arrival(const std::string& tenant, const pool::Request& request) const;  // of its ticket, if it is good

 private:
  std::string mac(const std::string& purpose, const std::string& message) const;
  std::string key_;
};

}  // namespace gpupool::scheduler
