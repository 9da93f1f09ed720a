// Texture and surface objects, and the resources that they are made of.
//
// An object is an entry of the executor's table (exec/texture.h) with the descriptors that the program gave.
// It is removed with its context, or once it is destroyed and all work queued before is done; kernels that
// use it afterwards fault. Immutable; any thread.
#pragma once
#include <cstdint>
#include <optional>

#include "protocol/driver/cuda_header.h"
#include "server/softgpu/exec/texture.h"
#include "server/softgpu/runtime/array.h"

namespace gpupool::softgpu {

// How a texture is sampled, whatever its resource is.
struct SamplingSettings {
  CUaddress_mode address_mode[3] = {CU_TR_ADDRESS_MODE_WRAP, CU_TR_ADDRESS_MODE_WRAP,
                                    CU_TR_ADDRESS_MODE_WRAP};
  CUfilter_mode filter = CU_TR_FILTER_MODE_POINT, level_filter = CU_TR_FILTER_MODE_POINT;
  unsigned flags = 0;  // CU_TRSF_*
  float bias = 0, min_level = 0, max_level = 0;
  float border[4] = {0, 0, 0, 0};
};

// Each fills in a part of the state, or returns CUDA_ERROR_INVALID_VALUE. set_sampling() comes last: it
// depends on the format.
CUresult set_sampling(const SamplingSettings& sampling, TextureState* state);
void set_resource(const Array& array, TextureState* state);
void set_resource(const MipmappedArray& array, TextureState* state);
CUresult set_linear_memory(CUdeviceptr address, TexelFormat format, uint64_t bytes, TextureState* state);
CUresult set_pitch_linear_memory(CUdeviceptr address, TexelFormat format, uint64_t width, uint64_t height,
                                 uint64_t pitch, TextureState* state);

class TextureObject final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::texture;
  // Makes a texture object, or a surface object if `texture` is null. `view` may be null. *value is the
  // CUtexObject or CUsurfObject, which kernels get as a parameter.
  static CUresult create(Context& context, const CUDA_RESOURCE_DESC& resource,
                         const CUDA_TEXTURE_DESC* texture, const CUDA_RESOURCE_VIEW_DESC* view,
                         uint64_t* value);
  static Ref<TextureObject> find(uint64_t value, bool surface);
  static CUresult destroy(uint64_t value, bool surface);

  const CUDA_RESOURCE_DESC& resource() const { return resource_; }
  const CUDA_TEXTURE_DESC& texture() const { return texture_; }
  const std::optional<CUDA_RESOURCE_VIEW_DESC>& view() const { return view_; }

 private:
  TextureObject(const CUDA_RESOURCE_DESC& resource, Ref<Context> context)
      : resource_(resource), context_(std::move(context)) {}
  ~TextureObject() override;

  const CUDA_RESOURCE_DESC resource_;
  CUDA_TEXTURE_DESC texture_{};
  std::optional<CUDA_RESOURCE_VIEW_DESC> view_;
  const Ref<Context> context_;
  uint64_t value_ = 0, handle_ = 0;
};

}  // namespace gpupool::softgpu
