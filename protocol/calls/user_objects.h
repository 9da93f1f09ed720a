// User objects (cuUserObject...): reference counts. The thread that drops the last reference calls the
// program's destructor function. Used by the client library and softgpu. Any thread, except that a
// UserReferences is for one thread at a time.
#pragma once
#include <cstdint>
#include <map>

#include "protocol/driver/cuda_header.h"

namespace gpupool::cuda {

CUresult create_user_object(CUuserObject* handle, void* data, CUhostFn destroy, unsigned count,
                            unsigned flags);
CUresult retain_user_object(CUuserObject handle, unsigned count);
CUresult release_user_object(CUuserObject handle, unsigned count);

// The references that a graph or an executable graph holds. The graph's owner serialises threads.
class UserReferences {
 public:
  UserReferences() = default;
  UserReferences(const UserReferences& other) { add_all(other); }  // takes references of its own
  UserReferences& operator=(const UserReferences&) = delete;
  ~UserReferences();

  // `move`: takes over references of the caller instead of adding some.
  CUresult add(CUuserObject handle, unsigned count, bool move);
  CUresult remove(CUuserObject handle, unsigned count);
  void add_all(const UserReferences& other);
  void swap(UserReferences& other) { counts_.swap(other.counts_); }
  bool empty() const { return counts_.empty(); }

 private:
  std::map<CUuserObject, uint64_t> counts_;
};

}  // namespace gpupool::cuda
