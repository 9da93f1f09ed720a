// Texture and surface objects as the program described them. Used by client/api/texture.cc and subjects.h.
// Thread-safe under the mutex.
#pragma once
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "protocol/driver/cuda_header.h"

namespace gpupool::client {

struct Texture {
  bool surface = false;
  CUDA_RESOURCE_DESC resource{};
  CUDA_TEXTURE_DESC reading{};
  std::optional<CUDA_RESOURCE_VIEW_DESC> view;
};

// All objects of the process, by context (each device numbers its own) and object; never destroyed.
struct Textures {
  std::mutex mutex;
  std::map<std::pair<uint64_t, uint64_t>, Texture> all;
};
inline Textures& textures() {
  static Textures* const only = new Textures;
  return *only;
}

}  // namespace gpupool::client
