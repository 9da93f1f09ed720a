// Folders in which NVIDIA's driver keeps machine code that it compiled from PTX (CUDA_CACHE_PATH): one for each tenant, given to the
// workers of that tenant's sessions by descriptor and to no others. poold's one thread.
//
// All lie in one root folder in /dev/shm, which goes with this object, or, what a worker has made too much of to remove it in a moment, when the next
// poold of the same user starts. Nobody can list it and the names are random, so a worker that has been taken over does not find other tenants' folders. Nothing but the driver itself bounds what a
// folder takes.
#pragma once
#include <sys/types.h>

#include <memory>
#include <string>

#include "protocol/wire/result.h"

namespace gpupool::server {

class CacheFolders {
 public:
  struct Folder {
    std::string name;
    int descriptor = -1;  // -1: it could not be made
  };

  // `worker_users`: those that workers become when poold is root.
  static Result<std::unique_ptr<CacheFolders>> open(const std::string& worker_users);
  ~CacheFolders();
  CacheFolders(const CacheFolders&) = delete;
  CacheFolders& operator=(const CacheFolders&) = delete;

  const std::string& root() const { return path_; }
  Folder make();
  // Where each session has a user of its own: lets the other sessions of the tenant read and change what `user`'s has made, which has ended. Returns at
  // once; a thread of its own does it. They have what it is for by the folder's descriptor, so the modes keep nobody else from it or let them in.
  void share(const Folder& folder, uid_t user);
  // Workers that have it go on without. Returns at once; a thread of its own empties the folder, however much a worker put into it.
  void remove(Folder folder);

 private:
  struct Root;

  CacheFolders(std::string path, std::shared_ptr<const Root> root) : path_(std::move(path)), root_(std::move(root)) {}

  const std::string path_;
  const std::shared_ptr<const Root> root_;
};

}  // namespace gpupool::server
