// User objects (cuUserObject...): counts of references; the program's function is called when the last one goes, by whoever gives it
// up. Any thread.
#pragma once
#include <cstdint>
#include <map>

#include "protocol/cuda/cuda_header.h"

namespace gpupool::cuda {

CUresult create_user_object(CUuserObject* handle, void* data, CUhostFn destroy, unsigned count, unsigned flags);
CUresult retain_user_object(CUuserObject handle, unsigned count);
CUresult release_user_object(CUuserObject handle, unsigned count);

// The references that a graph or an executable graph has. Its owner sees to threads.
class UserReferences {
 public:
  UserReferences() = default;
  UserReferences(const UserReferences& other) { add_all(other); }  // as many of its own
  UserReferences& operator=(const UserReferences&) = delete;
  ~UserReferences();

  // `move`: the caller's become these.
  CUresult add(CUuserObject handle, unsigned count, bool move);
  CUresult remove(CUuserObject handle, unsigned count);
  void add_all(const UserReferences& other);
  void swap(UserReferences& other) { counts_.swap(other.counts_); }
  bool empty() const { return counts_.empty(); }

 private:
  std::map<CUuserObject, uint64_t> counts_;
};

}  // namespace gpupool::cuda
