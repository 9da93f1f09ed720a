// Keeps what softgpu or NVIDIA's driver compiled for each tenant, so that its later sessions need not compile it again: for softgpu one
// memory file per tenant, for NVIDIA's driver one folder (cache_folders.h), given to the workers of that tenant's sessions and to no
// others. poold's one thread.
//
// A worker writes machine code there that the tenant's next sessions execute, so tenants must never share a file or a folder, and poold
// never reads one. Files are of fixed size; memory is taken as they fill.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <list>
#include <memory>
#include <string>

#include "server/cache_folders.h"

namespace gpupool::server {

class TenantCode {
 public:
  static constexpr uint64_t kMostPerTenant = 64ull << 20;  // bytes

  // `capacity` in bytes of all files together, 0: nothing is kept. Without `folders` tenants have none.
  explicit TenantCode(uint64_t capacity, std::unique_ptr<CacheFolders> folders = nullptr);
  ~TenantCode();
  TenantCode(const TenantCode&) = delete;
  TenantCode& operator=(const TenantCode&) = delete;

  // `tenant`: a tenant's name, or TENANT/LEASE of a session by lease (pool/leases.h). All leases of a tenant share a file, which a tenant of
  // that name in poold's own configuration does not: it may be somebody else.
  // The tenant's file, which stays this object's until the next call; -1: none. Where there is no room for another one, the
  // tenant's that began no session for longest goes; sessions that have it keep it.
  int file_of(const std::string& tenant);
  // Likewise the tenant's folder, open as a descriptor.
  int folder_of(const std::string& tenant);
  // Lets the tenant's sessions use what one of them, which had `user` to itself, left in the folder.
  void session_ended(const std::string& tenant, uid_t user);
  // The folder with all tenants' folders; empty: there are none.
  std::string folders() const { return folders_ && most_ != 0 ? folders_->root() : ""; }
  uint64_t bytes_per_tenant() const { return bytes_per_tenant_; }

 private:
  struct Kept {
    std::string owner;
    int file = -1;
    CacheFolders::Folder folder;
  };
  static std::string owner_of(const std::string& tenant);
  Kept* kept_for(const std::string& tenant);

  const uint64_t bytes_per_tenant_;
  const size_t most_;
  const std::unique_ptr<CacheFolders> folders_;
  std::list<Kept> kept_;  // most recently used first
};

}  // namespace gpupool::server
