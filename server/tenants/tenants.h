// The tenants that poold knows, and the one place where a tenant's quota changes. poold's one thread.
//
// A configuration may name GPUs by UUID before poold knows which it has: these limits hold from know_gpus() on, which comes before
// the first session.
//
// Without configured tenants there is one, kDefaultTenant, without limits and without credentials, unless leases alone are
// served.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "protocol/wire/result.h"
#include "server/quota/partitions.h"
#include "server/tenants/tenant.h"

namespace gpupool::server {

class Tenants {
 public:
  using Changed = std::function<void(const Tenant&)>;
  enum class Without { anybody, nobody };  // credentials: who is served

  Tenants();
  // check_tenants() must have passed.
  explicit Tenants(std::vector<Tenant> configured, Without without_credentials = Without::anybody);
  Tenants(const Tenants&) = delete;
  Tenants& operator=(const Tenants&) = delete;

  // Null: there is none of that name. Valid until the next replace().
  const Tenant* find(const std::string& name) const;
  const std::map<std::string, Tenant>& all() const { return tenants_; }
  // Somebody must show who they are.
  bool has_credentials() const;
  bool serves_anybody() const { return without_ == Without::anybody && !has_credentials(); }

  // From now on, for running sessions too, until the next replace(). ErrorCode::unavailable: no such tenant; invalid: no
  // quota that makes sense.
  Result<void> set_quota(const std::string& name, const quota::Quota& quota);
  // What the configuration says now. Listeners hear of tenants that are new or whose quota is another; what set_quota() had
  // changed is overwritten, and logged. A tenant that is gone gets no new sessions; its running ones keep their limits.
  void replace(std::vector<Tenant> configured);

  // The host's, in their order, as nvidia-smi prints them. Limits of others are logged and hold for none.
  void know_gpus(std::vector<std::string> uuids);

  // A lease's tenant, with its name, quota and GPUs; replace() leaves it alone. New, or with another quota than before.
  void put_lease(Tenant tenant);
  void remove_lease(const std::string& name);

  // `changed` is called for every tenant at once, and whenever a tenant's quota has changed. For this object's whole life.
  void on_change(Changed changed);
  // `removed` is called when a lease's tenant is gone: it has no sessions any more. For this object's whole life.
  void on_removal(std::function<void(const std::string& name)> removed) { removal_listeners_.push_back(std::move(removed)); }

 private:
  std::map<std::string, Tenant> by_name(std::vector<Tenant> configured) const;
  void tell(const Tenant& tenant) const;
  void find_gpus(Tenant& tenant) const;

  const Without without_;
  std::vector<std::string> gpus_;                    // UUIDs; none: not known yet
  std::map<std::string, quota::Quota> configured_;   // what set_quota() has changed since, as it was
  std::map<std::string, Tenant> tenants_;            // by name; after what by_name() reads
  std::vector<Changed> listeners_;
  std::vector<std::function<void(const std::string&)>> removal_listeners_;
};

// Why this makes no sense, if it does not.
Result<void> check_share(const quota::GpuShare& share);
Result<void> check_quota(const quota::Quota& quota);
// "GPU-" and 36 characters, with small letters; empty: the text is no UUID.
std::string gpu_uuid(std::string_view text);
// The tenants with SM partitions, and how much of each GPU they have.
std::map<std::string, quota::Partitions::Wish> partitions_of(const std::map<std::string, Tenant>& tenants);
// Names that can be logged and typed, none twice; quotas; no token, certificate or user twice; all tenants have some, or none has.
Result<void> check_tenants(const std::vector<Tenant>& tenants);

}  // namespace gpupool::server
