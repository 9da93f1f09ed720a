// Copies and fills of the device runtime. Each is a grid without a kernel that runs in order with the other
// child launches.
#include <algorithm>
#include <cstring>
#include <string_view>

#include "server/softgpu/exec/child_launches.h"
#include "server/softgpu/exec/device_runtime.h"
#include "server/softgpu/memory/address_space.h"

namespace gpupool::softgpu {
namespace {

constexpr uint64_t kPieceBytes = 1 << 20;              // bytes of a row that one block processes
constexpr uint64_t kMaxBytes = uint64_t{1} << 47;      // per copy: more than any address space holds
constexpr uint32_t kDeviceToDevice = 3, kDefault = 4;  // cudaMemcpyKind

struct Pitches {
  uint64_t row, slice;
};
struct Box {
  uint64_t to, from;  // from 0: a fill with `value`
  Pitches to_pitch, from_pitch;
  uint64_t width;
  uint32_t value;
};

// Runs one block. Block x is a part of a row, y the row, z the slice.
void run_block(BlockContext* block, ThreadContext* thread) {
  Box box;
  std::memcpy(&box, reinterpret_cast<const void*>(block->params), sizeof box);
  const uint64_t start = block->block_idx[0] * kPieceBytes, bytes = std::min(kPieceBytes, box.width - start);
  const auto at = [&](uint64_t base, const Pitches& pitch, bool store) {
    const uint64_t address =
        base + block->block_idx[2] * pitch.slice + block->block_idx[1] * pitch.row + start;
    if (!in_range(address, bytes) && !is_registered_host(address, bytes, store))
      softgpu_fault(thread, FaultKind::illegal_address, address);
    return reinterpret_cast<void*>(address);
  };
  void* const to = at(box.to, box.to_pitch, true);
  if (box.from == 0)
    std::memset(to, static_cast<int>(box.value), bytes);
  else
    std::memmove(to, at(box.from, box.from_pitch, false), bytes);
}

uint32_t fail(ThreadContext* thread, RuntimeError error) {
  return thread->runtime_error = static_cast<uint32_t>(error);
}

uint32_t submit(ThreadContext* thread, std::string_view name, const Box& box, uint64_t height, uint64_t depth,
                uint64_t stream) {
  if (box.width == 0 || height == 0 || depth == 0) return 0;
  const bool too_large =
      box.width > kMaxBytes || height > kMaxBytes / box.width || depth > kMaxBytes / box.width / height;
  if (box.to == 0 || too_large || height > UINT32_MAX || depth > UINT32_MAX)
    return fail(thread, RuntimeError::invalid_value);
  if (height > 1 && box.to_pitch.row < box.width) return fail(thread, RuntimeError::invalid_pitch);
  if (height > 1 && box.from != 0 && box.from_pitch.row < box.width)
    return fail(thread, RuntimeError::invalid_pitch);
  const DeviceRuntime runtime = device_runtime_of(thread);
  if (!runtime.launches) return fail(thread, RuntimeError::too_deep);
  RuntimeError error;
  {
    GridRequest request;
    request.code.loop_entry = run_block;
    request.kernel_name = name;
    request.grid_dim[0] = static_cast<uint32_t>((box.width + kPieceBytes - 1) / kPieceBytes);
    request.grid_dim[1] = static_cast<uint32_t>(height);
    request.grid_dim[2] = static_cast<uint32_t>(depth);
    request.params.resize(sizeof box);
    std::memcpy(request.params.data(), &box, sizeof box);
    error = runtime.launches->launch(std::move(request), stream);
  }
  return error == RuntimeError::success ? 0 : fail(thread, error);
}

uint32_t copy(ThreadContext* thread, std::string_view name, const Box& box, uint64_t height, uint64_t depth,
              uint32_t direction, uint64_t stream) {
  if (direction != kDeviceToDevice && direction != kDefault)
    return fail(thread, RuntimeError::invalid_direction);
  if (box.from == 0 && box.width != 0) return fail(thread, RuntimeError::invalid_value);
  return submit(thread, name, box, height, depth, stream);
}

// cudaMemcpy3DParms
struct CopyParameters {
  uint64_t from_array;
  Extent from_at;
  PitchedPointer from;
  uint64_t to_array;
  Extent to_at;
  PitchedPointer to;
  Extent extent;
  uint32_t direction;
};

uint64_t start_of(const PitchedPointer& memory, const Extent& at) {
  return memory.address + (at.depth * memory.height + at.height) * memory.pitch + at.width;
}

}  // namespace

extern "C" {

uint32_t softgpu_cudaMemcpyAsync(ThreadContext* thread, uint64_t to, uint64_t from, uint64_t bytes,
                                 uint32_t direction, uint64_t stream) {
  return copy(thread, "cudaMemcpyAsync", {to, from, {}, {}, bytes, 0}, 1, 1, direction, stream);
}

uint32_t softgpu_cudaMemcpy2DAsync(ThreadContext* thread, uint64_t to, uint64_t to_pitch, uint64_t from,
                                   uint64_t from_pitch, uint64_t width, uint64_t height, uint32_t direction,
                                   uint64_t stream) {
  return copy(thread, "cudaMemcpy2DAsync", {to, from, {to_pitch, 0}, {from_pitch, 0}, width, 0}, height, 1,
              direction, stream);
}

uint32_t softgpu_cudaMemcpy3DAsync(ThreadContext* thread, uint64_t parameters, uint64_t stream) {
  if (parameters == 0) return fail(thread, RuntimeError::invalid_value);
  for (uint64_t at = 0; at < sizeof(CopyParameters); at += 8)
    softgpu_check_access(thread, parameters + at, 8, 0);
  CopyParameters p;
  std::memcpy(&p, reinterpret_cast<const void*>(parameters), sizeof p);
  // CUDA's device runtime does not copy arrays.
  if (p.from_array != 0 || p.to_array != 0) return fail(thread, RuntimeError::invalid_value);
  if (p.from.address == 0 || p.to.address == 0) return fail(thread, RuntimeError::invalid_value);
  const Box box{start_of(p.to, p.to_at),
                start_of(p.from, p.from_at),
                {p.to.pitch, p.to.pitch * p.to.height},
                {p.from.pitch, p.from.pitch * p.from.height},
                p.extent.width,
                0};
  return copy(thread, "cudaMemcpy3DAsync", box, p.extent.height, p.extent.depth, p.direction, stream);
}

uint32_t softgpu_cudaMemsetAsync(ThreadContext* thread, uint64_t to, uint32_t value, uint64_t bytes,
                                 uint64_t stream) {
  return submit(thread, "cudaMemsetAsync", {to, 0, {}, {}, bytes, value}, 1, 1, stream);
}

uint32_t softgpu_cudaMemset2DAsync(ThreadContext* thread, uint64_t to, uint64_t pitch, uint32_t value,
                                   uint64_t width, uint64_t height, uint64_t stream) {
  return submit(thread, "cudaMemset2DAsync", {to, 0, {pitch, 0}, {}, width, value}, height, 1, stream);
}

uint32_t softgpu_cudaMemset3DAsync(ThreadContext* thread, const PitchedPointer* to, uint32_t value,
                                   const Extent* extent, uint64_t stream) {
  const Box box{to->address, 0, {to->pitch, to->pitch * to->height}, {}, extent->width, value};
  return submit(thread, "cudaMemset3DAsync", box, extent->height, extent->depth, stream);
}

}  // extern "C"
}  // namespace gpupool::softgpu
