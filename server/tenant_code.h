// Keeps what softgpu compiled for each tenant, so that its later sessions need not compile it again: one memory file per tenant,
// given to the workers of that tenant's sessions and to no others. poold's one thread.
//
// A worker writes machine code there that the tenant's next sessions execute, so tenants must never share a file, and poold
// never reads one. Files are of fixed size; memory is taken as they fill.
#pragma once
#include <cstdint>
#include <list>
#include <string>
#include <utility>

namespace gpupool::server {

class TenantCode {
 public:
  static constexpr uint64_t kMostPerTenant = 64ull << 20;  // bytes

  // `capacity` in bytes of all files together, 0: nothing is kept.
  explicit TenantCode(uint64_t capacity);
  ~TenantCode();
  TenantCode(const TenantCode&) = delete;
  TenantCode& operator=(const TenantCode&) = delete;

  // `tenant`: a tenant's name, or TENANT/LEASE of a session by lease (pool/leases.h). All leases of a tenant share a file, which a tenant of
  // that name in poold's own configuration does not: it may be somebody else.
  // The tenant's file, which stays this object's until the next call; -1: none. Where there is no room for another one, the
  // tenant's that began no session for longest goes; sessions that have it keep it.
  int file_of(const std::string& tenant);

 private:
  using Files = std::list<std::pair<std::string, int>>;
  const uint64_t bytes_per_tenant_;
  const size_t most_;
  Files files_;  // most recently used first
};

}  // namespace gpupool::server
