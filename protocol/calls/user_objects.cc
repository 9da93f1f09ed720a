#include "protocol/calls/user_objects.h"

#include <climits>
#include <mutex>

namespace gpupool::cuda {
namespace {

struct UserObject {
  void* data;
  CUhostFn destroy;
  uint64_t references;
};

struct Objects {
  std::mutex mutex;
  std::map<CUuserObject, UserObject> alive;
  uint64_t next = 1;
};
// Never destroyed: exit handlers may call the driver.
Objects& objects() {
  static Objects* const only = new Objects;
  return *only;
}

bool valid(unsigned count) {
  return count != 0 && count <= INT_MAX;
}

CUresult retain(CUuserObject handle, uint64_t count) {
  const std::lock_guard lock(objects().mutex);
  const auto found = objects().alive.find(handle);
  if (found == objects().alive.end()) return CUDA_ERROR_INVALID_VALUE;
  found->second.references += count;
  return CUDA_SUCCESS;
}

CUresult release(CUuserObject handle, uint64_t count) {
  UserObject gone{};
  {
    const std::lock_guard lock(objects().mutex);
    const auto found = objects().alive.find(handle);
    if (found == objects().alive.end() || found->second.references < count) return CUDA_ERROR_INVALID_VALUE;
    if ((found->second.references -= count) != 0) return CUDA_SUCCESS;
    gone = found->second;
    objects().alive.erase(found);
  }
  gone.destroy(gone.data);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult create_user_object(CUuserObject* handle, void* data, CUhostFn destroy, unsigned count,
                            unsigned flags) {
  if (!handle || !destroy || !valid(count) || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
    return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(objects().mutex);
  // The handle's kind differs from all others (handles.h), and its number is never reused.
  *handle =
      reinterpret_cast<CUuserObject>(static_cast<uintptr_t>(uint64_t{0x70} << 56 | objects().next++ << 4));
  objects().alive[*handle] = {data, destroy, count};
  return CUDA_SUCCESS;
}

CUresult retain_user_object(CUuserObject handle, unsigned count) {
  return valid(count) ? retain(handle, count) : CUDA_ERROR_INVALID_VALUE;
}
CUresult release_user_object(CUuserObject handle, unsigned count) {
  return valid(count) ? release(handle, count) : CUDA_ERROR_INVALID_VALUE;
}

UserReferences::~UserReferences() {
  for (const auto& [handle, count] : counts_) release(handle, count);
}

CUresult UserReferences::add(CUuserObject handle, unsigned count, bool move) {
  if (!valid(count)) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = retain(handle, move ? 0 : count); result != CUDA_SUCCESS) return result;
  counts_[handle] += count;
  return CUDA_SUCCESS;
}

CUresult UserReferences::remove(CUuserObject handle, unsigned count) {
  const auto found = counts_.find(handle);
  if (!valid(count) || found == counts_.end() || found->second < count) return CUDA_ERROR_INVALID_VALUE;
  if ((found->second -= count) == 0) counts_.erase(found);
  return release(handle, count);
}

void UserReferences::add_all(const UserReferences& other) {
  for (const auto& [handle, count] : other.counts_) {
    if (retain(handle, count) == CUDA_SUCCESS) counts_[handle] += count;
  }
}

}  // namespace gpupool::cuda
