#include "server/poold/workers/tenant_code.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "server/sockets/descriptor_closer.h"

namespace gpupool::server {
namespace {

// The file has a fixed size, so that a compromised worker can fill its own tenant's file and no more.
int make_file(uint64_t bytes) {
  const int file = ::memfd_create("gpupool-code", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return -1;
  if (::ftruncate(file, static_cast<off_t>(bytes)) == 0 &&
      ::fcntl(file, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) == 0)
    return file;
  ::close(file);
  return -1;
}

}  // namespace

TenantCode::TenantCode(uint64_t capacity, std::unique_ptr<CacheFolders> folders)
    : bytes_per_tenant_(std::min(capacity, kMostPerTenant)),
      most_(capacity == 0 ? 0 : capacity / bytes_per_tenant_),
      folders_(std::move(folders)) {}

TenantCode::~TenantCode() {
  for (const Kept& kept : kept_) {
    ::close(kept.file);
    if (kept.folder.descriptor >= 0) ::close(kept.folder.descriptor);  // CacheFolders removes the folders
  }
}

int TenantCode::file_of(const std::string& tenant) {
  const Kept* const kept = kept_for(tenant);
  return kept ? kept->file : -1;
}

int TenantCode::folder_of(const std::string& tenant) {
  const Kept* const kept = folders_ ? kept_for(tenant) : nullptr;
  return kept ? kept->folder.descriptor : -1;
}

void TenantCode::session_ended(const std::string& tenant, uid_t user) {
  const auto found = std::find_if(kept_.begin(), kept_.end(),
                                  [name = owner_of(tenant)](const Kept& one) { return one.owner == name; });
  if (folders_ && found != kept_.end()) folders_->share(found->folder, user);
}

// For a lease, returns "TENANT/", which is no valid name of a tenant.
std::string TenantCode::owner_of(const std::string& tenant) {
  const size_t slash = tenant.find('/');
  return slash == std::string::npos ? tenant : tenant.substr(0, slash + 1);
}

TenantCode::Kept* TenantCode::kept_for(const std::string& tenant) {
  if (most_ == 0) return nullptr;
  const std::string name = owner_of(tenant);
  const auto found =
      std::find_if(kept_.begin(), kept_.end(), [&](const Kept& one) { return one.owner == name; });
  if (found != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, found);
    // Making it failed before.
    if (folders_ && kept_.front().folder.descriptor < 0) kept_.front().folder = folders_->make();
    return &kept_.front();
  }
  const int file = make_file(bytes_per_tenant_);
  if (file < 0) return nullptr;
  if (kept_.size() == most_) {
    close_without_blocking(kept_.back().file);  // the last close frees the file's memory
    if (folders_) folders_->remove(std::move(kept_.back().folder));
    kept_.pop_back();
  }
  kept_.push_front({name, file, folders_ ? folders_->make() : CacheFolders::Folder{}});
  return &kept_.front();
}

}  // namespace gpupool::server
