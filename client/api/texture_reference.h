// Texture and surface references of modules: what the client stores of them. Used by
// client/api/texture_reference.cc and subjects.h. The members are guarded by the mutex.
#pragma once
#include <mutex>

#include "client/session/handles.h"

namespace gpupool::client {

struct Reference : Object {
  bool of_module = false;  // constant
  std::mutex mutex;
  uint64_t array = 0, mipmapped_array = 0;  // handles; at most one is set
  float border[4] = {0, 0, 0, 0};
};

}  // namespace gpupool::client
