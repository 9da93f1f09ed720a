// Folders for the NVIDIA driver's cache of code compiled from PTX (CUDA_CACHE_PATH): one for each tenant,
// passed by descriptor to the workers of that tenant's sessions only. TenantCode uses it on poold's thread;
// detached threads change and remove files.
//
// All folders lie in one root folder in /dev/shm. The destructor removes it; files that are left after 2 s
// are removed when the next poold of the same user starts. The root cannot be listed and names are random, so
// a compromised worker cannot find other tenants' folders. Only the driver itself limits the size of a
// folder.
#pragma once
#include <sys/types.h>

#include <memory>
#include <string>

#include "common/result.h"

namespace gpupool::server {

class CacheFolders {
 public:
  struct Folder {
    std::string name;
    int descriptor = -1;  // -1: it could not be made
  };

  // Makes the root folder. `worker_users`: users of the workers if poold is root (WorkerUsers).
  // ErrorCode::unavailable: it cannot be made, or workers would be root.
  static Result<std::unique_ptr<CacheFolders>> open(const std::string& worker_users);
  ~CacheFolders();
  CacheFolders(const CacheFolders&) = delete;
  CacheFolders& operator=(const CacheFolders&) = delete;

  const std::string& root() const { return path_; }
  Folder make();
  // For sessions that each have a user of their own: lets the tenant's other sessions read and change files
  // that an ended session's `user` made. Returns at once; a detached thread does it. File modes may be open
  // to all, because access requires the folder's descriptor.
  void share(const Folder& folder, uid_t user);
  // Removes a folder; workers that have it open continue without it. Returns at once; a detached thread does
  // it.
  void remove(Folder folder);

 private:
  struct Root;

  CacheFolders(std::string path, std::shared_ptr<const Root> root)
      : path_(std::move(path)), root_(std::move(root)) {}

  const std::string path_;
  const std::shared_ptr<const Root> root_;
};

}  // namespace gpupool::server
