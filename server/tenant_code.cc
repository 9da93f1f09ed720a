#include "server/tenant_code.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

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

TenantCode::TenantCode(uint64_t capacity)
    : bytes_per_tenant_(std::min(capacity, kMostPerTenant)), most_(capacity == 0 ? 0 : capacity / bytes_per_tenant_) {}

TenantCode::~TenantCode() {
  for (const auto& [tenant, file] : files_) ::close(file);
}

int TenantCode::file_of(const std::string& tenant) {
  if (most_ == 0) return -1;
  const std::string owner = tenant.substr(0, tenant.find('/') + 1);  // "TENANT/", which is no tenant's name; empty: no lease
  const std::string& name = owner.empty() ? tenant : owner;
  const auto found = std::find_if(files_.begin(), files_.end(), [&](const auto& one) { return one.first == name; });
  if (found != files_.end()) {
    files_.splice(files_.begin(), files_, found);
    return files_.front().second;
  }
  const int file = make_file(bytes_per_tenant_);
  if (file < 0) return -1;
  if (files_.size() == most_) {
    ::close(files_.back().second);
    files_.pop_back();
  }
  files_.emplace_front(name, file);
  return file;
}

}  // namespace gpupool::server
