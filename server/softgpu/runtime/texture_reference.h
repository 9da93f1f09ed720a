// Texture and surface references: what programs did before there were objects.
//
// A module's references are eight bytes each of its data segment (ReferenceInfo); binding writes there what the executor knows
// as the texture, and every later setting replaces it. Kernels that run meanwhile see the one or the other. A reference that
// cuTexRefCreate made belongs to no module, and no kernel can use it. Thread-safe.
#pragma once
#include <mutex>
#include <optional>

#include "server/softgpu/runtime/texture.h"

namespace gpupool::softgpu {

class TextureReference final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::texture_reference;
  // `place`: in a module's data; null: of no module.
  explicit TextureReference(uint64_t* place) : place_(place) {}

  struct Binding {
    enum class Kind { none, array, mipmapped_array, memory, rows } kind = Kind::none;
    uint64_t handle = 0;  // of an array
    CUdeviceptr address = 0;
    uint64_t bytes = 0;   // of memory
    uint64_t width = 0, height = 0, pitch = 0;
  };
  struct Settings {
    Binding binding;
    CUarray_format format = CU_AD_FORMAT_FLOAT;
    int channels = 1;
    TextureReading reading;
    unsigned anisotropy = 0;
  };
  Settings settings() const {
    const std::lock_guard guard(mutex_);
    return settings_;
  }
  // Changes the settings as `change` does, unless they then fit nothing.
  template <class Change>
  CUresult set(const Change& change) {
    const std::lock_guard guard(mutex_);
    Settings changed = settings_;
    change(changed);
    return apply(changed);
  }
  // The module is gone, and its data with it.
  void leave();

  uint64_t handle = 0;
  bool of_module() const { return place_ != nullptr; }

 private:
  ~TextureReference() override { leave(); }
  CUresult apply(const Settings& settings);

  mutable std::mutex mutex_;
  uint64_t* place_;
  uint64_t value_ = 0;
  Settings settings_;
};

class SurfaceReference final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::surface_reference;
  explicit SurfaceReference(uint64_t* place) : place_(place) {}
  CUresult bind(const Array& array);
  uint64_t array() const {
    const std::lock_guard guard(mutex_);
    return array_;
  }
  void leave();
  uint64_t handle = 0;

 private:
  ~SurfaceReference() override { leave(); }
  mutable std::mutex mutex_;
  uint64_t* place_;
  uint64_t value_ = 0, array_ = 0;
};

}  // namespace gpupool::softgpu
