// Texture and surface references, the predecessors of texture and surface objects.
//
// Each reference of a module is eight bytes of the module's data segment (ReferenceInfo). Binding stores the
// executor's texture value there, and every later setting replaces it; kernels that run meanwhile see the old
// or the new one. A reference made by cuTexRefCreate belongs to no module, and no kernel can use it.
// Thread-safe.
#pragma once
#include <mutex>
#include <optional>

#include "server/softgpu/runtime/texture.h"

namespace gpupool::softgpu {

class TextureReference final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::texture_reference;
  // `place`: the reference's eight bytes in a module's data; null: no module.
  explicit TextureReference(uint64_t* place) : place_(place) {}

  struct Binding {
    enum class Kind { none, array, mipmapped_array, linear, pitch2d } kind = Kind::none;
    uint64_t handle = 0;  // of an array
    CUdeviceptr address = 0;
    uint64_t bytes = 0;  // of linear memory
    uint64_t width = 0, height = 0, pitch = 0;
  };
  struct Settings {
    Binding binding;
    CUarray_format format = CU_AD_FORMAT_FLOAT;
    int channels = 1;
    SamplingSettings sampling;
    unsigned anisotropy = 0;
  };
  Settings settings() const {
    const std::lock_guard guard(mutex_);
    return settings_;
  }
  // Applies `change` to the settings; fails, and keeps them, if the result is invalid.
  template <class Change>
  CUresult set(const Change& change) {
    const std::lock_guard guard(mutex_);
    Settings changed = settings_;
    change(changed);
    return apply(changed);
  }
  // Called when the module is unloaded: removes the texture and stops using the module's data.
  void detach_module();

  uint64_t handle = 0;
  bool of_module() const { return place_ != nullptr; }

 private:
  ~TextureReference() override { detach_module(); }
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
  void detach_module();
  uint64_t handle = 0;

 private:
  ~SurfaceReference() override { detach_module(); }
  mutable std::mutex mutex_;
  uint64_t* place_;
  uint64_t value_ = 0, array_ = 0;
};

}  // namespace gpupool::softgpu
