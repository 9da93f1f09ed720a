// CUDA arrays and mipmapped arrays: texels in device memory, row after row.
//
// An array owns its memory; a level of a mipmapped array lies in the mipmapped array's memory. The memory is
// freed with the context, or earlier by destroy(), which is called once. Otherwise immutable; any thread.
#pragma once
#include <atomic>
#include <optional>
#include <vector>

#include "protocol/driver/cuda_header.h"
#include "server/softgpu/exec/texture.h"
#include "server/softgpu/runtime/context.h"
#include "server/softgpu/runtime/handles.h"

namespace gpupool::softgpu {

// Returns nullopt for unsupported formats (block-compressed, planar) and for invalid numbers of channels.
std::optional<TexelFormat> texel_format(CUarray_format format, unsigned channels);
// Checks a descriptor against CUDA's tables of extents and flags. CUDA_ERROR_NOT_SUPPORTED: block-compressed,
// planar and packed YUV formats.
CUresult check_array(const CUDA_ARRAY3D_DESCRIPTOR& wanted, bool mipmapped);

class Array final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::array;
  static CUresult create(Context& context, const CUDA_ARRAY3D_DESCRIPTOR& wanted, Ref<Array>* array);
  // `is_level`: a level of a mipmapped array, which owns the memory at `address`.
  Array(const CUDA_ARRAY3D_DESCRIPTOR& shape, uint64_t address, Ref<Context> context, bool is_level);

  const CUDA_ARRAY3D_DESCRIPTOR& shape() const { return shape_; }
  TexelFormat format() const { return format_; }
  const TextureLevel& level() const { return level_; }
  uint32_t slices() const { return slices_; }  // depth, or layers and faces
  uint64_t bytes() const { return level_.slice * slices_; }
  bool is_level() const { return is_level_; }
  bool layered() const { return (shape_.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0; }
  Context& context() const { return *context_; }
  uint64_t handle() const { return handle_; }
  bool make_handle();  // false: the handle table is full
  // Waits for the context's work, as CUDA does, then frees the memory; a level's memory stays.
  void destroy();

 private:
  const CUDA_ARRAY3D_DESCRIPTOR shape_;
  const TexelFormat format_;
  const Ref<Context> context_;
  const bool is_level_;
  uint32_t slices_ = 1;
  TextureLevel level_;
  uint64_t handle_ = 0;
};

class MipmappedArray final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::mipmapped_array;
  static CUresult create(Context& context, const CUDA_ARRAY3D_DESCRIPTOR& wanted, unsigned levels,
                         Ref<MipmappedArray>* array);

  const CUDA_ARRAY3D_DESCRIPTOR& shape() const { return shape_; }
  const std::vector<Ref<Array>>& levels() const { return levels_; }
  Context& context() const { return *context_; }
  uint64_t handle() const { return handle_; }
  uint64_t bytes() const { return bytes_; }
  void destroy();

 private:
  MipmappedArray(const CUDA_ARRAY3D_DESCRIPTOR& shape, Ref<Context> context)
      : shape_(shape), context_(std::move(context)) {}
  const CUDA_ARRAY3D_DESCRIPTOR shape_;
  const Ref<Context> context_;
  std::vector<Ref<Array>> levels_;
  uint64_t address_ = 0, bytes_ = 0;
  uint64_t handle_ = 0;
};

}  // namespace gpupool::softgpu
