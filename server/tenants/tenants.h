// The tenants known to poold; all changes of quotas go through it. The daemon owns it, on poold's thread.
//
// A configuration may name GPUs by UUID before poold knows its GPUs. These limits apply from set_gpu_uuids()
// on, which comes before the first session.
//
// Without configured tenants there is one, kDefaultTenant, without limits and credentials, unless only leases
// are served.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/result.h"
#include "server/quota/partitions.h"
#include "server/tenants/tenant.h"

namespace gpupool::server {

class Tenants {
 public:
  using Changed = std::function<void(const Tenant&)>;
  enum class Anonymous { served, refused };  // whether clients are served if no tenant has credentials

  Tenants();
  // Requires that check_tenants() has passed.
  explicit Tenants(std::vector<Tenant> configured, Anonymous anonymous = Anonymous::served);
  Tenants(const Tenants&) = delete;
  Tenants& operator=(const Tenants&) = delete;

  // Returns null if no tenant has this name. Valid until the next replace(), or remove_lease() of this
  // tenant.
  const Tenant* find(const std::string& name) const;
  const std::map<std::string, Tenant>& all() const { return tenants_; }
  // True if clients must authenticate.
  bool has_credentials() const;
  bool serves_anonymous() const { return anonymous_ == Anonymous::served && !has_credentials(); }

  // Changes a quota until the next replace(), for running sessions too. ErrorCode::unavailable: there is no
  // such tenant; invalid: the quota is not valid.
  Result<void> set_quota(const std::string& name, const quota::Quota& quota);
  // The names of tenants whose configured quotas set_quota() has changed.
  std::vector<std::string> changed() const;
  // Replaces the tenants by those of the configuration. Calls listeners for new tenants and changed quotas.
  // Changes by set_quota() are overwritten, which is logged. A removed tenant gets no new sessions; its
  // running ones keep their limits.
  void replace(std::vector<Tenant> configured);

  // Sets the UUIDs of the host's GPUs, in their order, as nvidia-smi prints them. Limits for other GPUs are
  // logged and ignored.
  void set_gpu_uuids(std::vector<std::string> uuids);

  // Adds a lease's tenant, with its name, quota and GPUs, or changes its quota. replace() leaves it alone.
  void put_lease(Tenant tenant);
  void remove_lease(const std::string& name);

  // Calls `changed` for every tenant now, and whenever a tenant's quota has changed, for this object's whole
  // life.
  void on_change(Changed changed);
  // Calls `removed` when a lease's tenant was removed, which has no sessions then, for this object's whole
  // life.
  void on_removal(std::function<void(const std::string& name)> removed) {
    removal_listeners_.push_back(std::move(removed));
  }

 private:
  std::map<std::string, Tenant> by_name(std::vector<Tenant> configured) const;
  void tell(const Tenant& tenant) const;
  void find_gpus(Tenant& tenant) const;

  const Anonymous anonymous_;
  std::vector<std::string> gpus_;                   // UUIDs; empty: not known yet
  std::map<std::string, quota::Quota> configured_;  // configured quotas that set_quota() has changed
  std::map<std::string, Tenant> tenants_;  // by name; declared after the members that by_name() reads
  std::vector<Changed> listeners_;
  std::vector<std::function<void(const std::string&)>> removal_listeners_;
};

// Return ErrorCode::invalid, with the reason, if the limits are not valid.
Result<void> check_share(const quota::GpuShare& share);
Result<void> check_quota(const quota::Quota& quota);
// Returns "GPU-" and 36 characters in lower case, or an empty text if `text` is no UUID.
std::string gpu_uuid(std::string_view text);
// Returns the tenants with partitions, and their part of each GPU.
std::map<std::string, quota::Partitions::Shares> partitions_of(const std::map<std::string, Tenant>& tenants);
// Checks that names are valid and unique, that quotas are valid, that no token, certificate or user occurs
// twice, and that either all tenants have credentials or none has.
Result<void> check_tenants(const std::vector<Tenant>& tenants);

}  // namespace gpupool::server
