// CUDA arrays and mipmapped arrays: texels in device memory, row after row.
//
// An array owns its memory unless it is a level of a mipmapped array, whose memory that owns; it is in the memory map under
// the context, which takes it away when it ends. give_back() frees it once. Immutable but for that; any thread.
#pragma once
#include <atomic>
#include <optional>
#include <vector>

#include "protocol/cuda/cuda_header.h"
#include "server/softgpu/exec/texture.h"
#include "server/softgpu/runtime/context.h"
#include "server/softgpu/runtime/handles.h"

namespace gpupool::softgpu {

// Nothing for formats that are not offered (block-compressed and planar ones) or that have no such number of channels.
std::optional<TexelFormat> texel_format(CUarray_format format, unsigned channels);
// What CUDA's tables of extents and flags allow.
CUresult check_array(const CUDA_ARRAY3D_DESCRIPTOR& wanted, bool mipmapped);

class Array final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::array;
  static CUresult create(Context& context, const CUDA_ARRAY3D_DESCRIPTOR& wanted, Ref<Array>* array);
  // A level of a mipmapped array, in its memory.
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
  bool make_handle();  // false: there are too many
  // Waits for the context's work first, as CUDA does.
  void give_back();

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
  static CUresult create(Context& context, const CUDA_ARRAY3D_DESCRIPTOR& wanted, unsigned levels, Ref<MipmappedArray>* array);

  const CUDA_ARRAY3D_DESCRIPTOR& shape() const { return shape_; }
  const std::vector<Ref<Array>>& levels() const { return levels_; }
  Context& context() const { return *context_; }
  uint64_t handle() const { return handle_; }
  uint64_t bytes() const { return bytes_; }
  void give_back();

 private:
  MipmappedArray(const CUDA_ARRAY3D_DESCRIPTOR& shape, Ref<Context> context) : shape_(shape), context_(std::move(context)) {}
  const CUDA_ARRAY3D_DESCRIPTOR shape_;
  const Ref<Context> context_;
  std::vector<Ref<Array>> levels_;
  uint64_t address_ = 0, bytes_ = 0;
  uint64_t handle_ = 0;
};

}  // namespace gpupool::softgpu
