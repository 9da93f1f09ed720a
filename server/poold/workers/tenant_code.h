// Keeps each tenant's compiled code, so that its later sessions need not compile it again: a memory file for
// softgpu, a folder for NVIDIA's driver (cache_folders.h). Both are passed to the workers of that tenant's
// sessions only. WorkerPool uses it on poold's thread.
//
// Later sessions execute the machine code that a worker wrote, so tenants must never share a file or a
// folder. poold never reads one. Files have a fixed size and take memory as they fill.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <list>
#include <memory>
#include <string>

#include "server/poold/workers/cache_folders.h"

namespace gpupool::server {

class TenantCode {
 public:
  static constexpr uint64_t kMostPerTenant = 64ull << 20;  // bytes

  // `capacity`: bytes of all files together; 0: keeps nothing. Without `folders` there are only files.
  explicit TenantCode(uint64_t capacity, std::unique_ptr<CacheFolders> folders = nullptr);
  ~TenantCode();
  TenantCode(const TenantCode&) = delete;
  TenantCode& operator=(const TenantCode&) = delete;

  // Returns the tenant's file, which this object owns and which is valid until the next call; -1: none. If
  // there is no room for another file, the least recently used one is closed; sessions that have it open keep
  // it.
  //
  // `tenant` is a tenant's name, or TENANT/LEASE of a session by lease (../node/leases.h). All leases of a
  // tenant share a file, but not with a tenant of that name in poold's own configuration, which may be a
  // different one.
  int file_of(const std::string& tenant);
  // Like file_of(), for the tenant's folder as an open descriptor.
  int folder_of(const std::string& tenant);
  // Lets the tenant's other sessions use files that an ended session, with `user` of its own, left in the
  // folder.
  void session_ended(const std::string& tenant, uid_t user);
  // Path of the root folder of all tenants' folders; empty: none.
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
