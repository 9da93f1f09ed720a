#include "server/worker/migration/array_contents.h"

#include <algorithm>
#include <vector>

#include "protocol/calls/array_bytes.h"
#include "protocol/calls/handles.h"
#include "server/worker/migration/block_hash.h"
#include "server/worker/migration/target_stream.h"
#include "server/worker/session/session.h"

namespace gpupool::worker {
namespace {

using cuda::Kind;

uint64_t bytes_of(const Scrubber::Box& box) {
  return box.width * box.height * box.depth;
}

wire::FillArray name_part(uint64_t array, uint32_t level, const Scrubber::Box& box) {
  const auto number = [](uint64_t value) { return static_cast<uint32_t>(value); };
  return {.array = array,
          .level = level,
          .reserved = 0,
          .x = number(box.x),
          .y = number(box.y),
          .z = number(box.z),
          .width = number(box.width),
          .height = number(box.height),
          .depth = number(box.depth)};
}

Result<void> send_level(Session& session, TargetStream& target, const Arrays::Level& level, uint64_t array,
                        uint32_t number, uint64_t* sent) {
  std::vector<std::byte> staged;
  return for_each_box(level.shape, wire::kBulkChunkBytes, [&](const Scrubber::Box& box) -> Result<void> {
    staged.resize(bytes_of(box));
    const CUresult result = session.scrubber.copy_out(staged.data(), level.array, box, level.context->device);
    if (result != CUDA_SUCCESS)
      return Error{ErrorCode::unavailable, "reading an array: " + error_text(result)};
    if (is_all_zero(staged)) return {};
    *sent += staged.size();
    return target.send(wire::Command::fill_array, level.context->handle, name_part(array, number, box),
                       staged);
  });
}

bool fits(uint64_t first, uint64_t count, uint64_t all) {
  return count != 0 && first <= all && count <= all - first;
}

}  // namespace

Result<void> for_each_box(const CUDA_ARRAY3D_DESCRIPTOR& shape, uint64_t most,
                          const std::function<Result<void>(const Scrubber::Box&)>& visit) {
  const Scrubber::Box all = Scrubber::box_of(shape);
  const uint64_t texel = cuda::texel_bytes(shape.Format, shape.NumChannels);
  const uint64_t width = std::clamp(most / texel * texel, texel, all.width);
  const uint64_t height = width < all.width ? 1 : std::clamp<uint64_t>(most / width, 1, all.height);
  const uint64_t depth =
      height < all.height ? 1 : std::clamp<uint64_t>(most / (width * height), 1, all.depth);
  for (uint64_t z = 0; z < all.depth; z += depth) {
    for (uint64_t y = 0; y < all.height; y += height) {
      for (uint64_t x = 0; x < all.width; x += width) {
        auto visited = visit({x, y, z, std::min(width, all.width - x), std::min(height, all.height - y),
                              std::min(depth, all.depth - z)});
        if (!visited) return visited;
      }
    }
  }
  return {};
}

Result<void> send_arrays(Session& session, TargetStream& target, uint64_t* sent) {
  Result<void> status;
  session.history.for_each([&](const History::Entry& entry) {
    if (entry.effect.makes.empty() || entry.header.id >= wire::kFirstCommand) return;  // parts of arrays
    const uint64_t handle = entry.effect.makes.front();
    const Kind kind = cuda::kind_of(handle);
    if ((kind != Kind::array && kind != Kind::mipmapped_array) || !session.history.exists(handle)) return;
    const auto array = session.table.resolve(kind, handle);
    if (!array) return;  // zeroing it has failed, so nobody can read it
    uint32_t number = 0;
    for (const Arrays::Level& level : session.arrays.levels_of(*array)) {
      if (!status) return;
      if (session.contexts.enter(level.context) != CUDA_SUCCESS)
        status = Error{ErrorCode::unavailable, "a context of the session has failed"};
      else
        status = send_level(session, target, level, handle, number++, sent);
    }
  });
  return status;
}

CUresult write_part(Session& session, const wire::FillArray& part, std::span<const std::byte> bytes) {
  const Kind kind = cuda::kind_of(part.array);
  if (kind != Kind::array && kind != Kind::mipmapped_array) return CUDA_ERROR_INVALID_HANDLE;
  const auto array = session.table.resolve(kind, part.array);
  if (!array) return CUDA_ERROR_INVALID_HANDLE;
  const auto levels = session.arrays.levels_of(*array);
  if (part.level >= levels.size()) return CUDA_ERROR_INVALID_VALUE;
  const Arrays::Level& level = levels[part.level];
  const Scrubber::Box all = Scrubber::box_of(level.shape);
  const uint64_t texel = cuda::texel_bytes(level.shape.Format, level.shape.NumChannels);
  const Scrubber::Box box{part.x, part.y, part.z, part.width, part.height, part.depth};
  if (!fits(box.x, box.width, all.width) || !fits(box.y, box.height, all.height) ||
      !fits(box.z, box.depth, all.depth) || box.x % texel != 0 || box.width % texel != 0 ||
      bytes.size() != bytes_of(box))
    return CUDA_ERROR_INVALID_VALUE;
  if (session.contexts.enter(level.context) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_CONTEXT;
  return session.scrubber.copy_in(level.array, bytes.data(), box, level.context->device);
}

}  // namespace gpupool::worker
