// Arrays and mipmapped arrays (client/memory/array.h).
#include "client/memory/array.h"

#include <algorithm>

#include "client/api/destroy.h"
#include "client/memory/idle_memory.h"
#include "protocol/driver/exports.h"
#include "protocol/wire/commands.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

// Creates an object on the server under a new handle. If the device is out of memory, returns idle memory and
// tries once more.
template <class Known, class Write>
CUresult create(Kind kind, uint16_t id, std::unique_ptr<Known> known, const Write& write, uint64_t* handle) {
  Session* session = nullptr;
  Context* context = nullptr;
  if (const CUresult result = require_context(&session, &context); result != CUDA_SUCCESS) return result;
  known->context = context->handle;
  const uint64_t minted = session->mint(kind, std::move(known));
  if (minted == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto ask = [&] {
    wire::Buffer reply;
    return session->call(
        id, context,
        [&](wire::Writer& writer) {
          writer.put(minted);
          write(writer);
        },
        reply);
  };
  CUresult result = ask();
  if (result == CUDA_ERROR_OUT_OF_MEMORY && give_back_idle(*session, *context->device)) result = ask();
  if (result == CUDA_SUCCESS)
    *handle = minted;
  else
    handles().retire(minted);
  return result;
}

CUresult create(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR& shape) {
  return guarded([&]() -> CUresult {
    auto known = std::make_unique<Array>();
    known->shape = shape;
    uint64_t handle = 0;
    const CUresult result = create(
        Kind::array, rows::cuArray3DCreate_v2::kId, std::move(known),
        [&](wire::Writer& writer) {
          writer.put<uint8_t>(1);
          writer.put(shape);
        },
        &handle);
    if (result == CUDA_SUCCESS) *array = cuda::handle_from_bits<CUarray>(handle);
    return result;
  });
}

template <class Descriptor>
CUresult create_as(CUarray* array, const Descriptor* given) {
  if (!given || !array)
    return guarded([]() -> CUresult {
      Session* session = nullptr;
      Context* context = nullptr;
      const CUresult result = require_context(&session, &context);
      return result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : result;
    });
  CUDA_ARRAY3D_DESCRIPTOR shape{};
  shape.Width = given->Width;
  shape.Height = given->Height;
  shape.Format = given->Format;
  shape.NumChannels = given->NumChannels;
  if constexpr (requires { given->Flags; }) {
    shape.Depth = given->Depth;
    shape.Flags = given->Flags;
  }
  return create(array, shape);
}

// Finds the object and redirects `target` to its server; null: it is not alive.
template <class Known>
Known* find(Kind kind, uint64_t handle, CallTarget& target) {
  auto* const known = handles().find_as<Known>(kind, handle);
  if (known) redirect(*known, target);
  return known;
}

CUresult destroy(CallTarget& target, uint64_t handle) {
  if (!target.context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  wire::Buffer reply;
  handles().retire(handle);
  return target.session->call(wire::Command::destroy_array, target.context, wire::DestroyArray{handle},
                              reply);
}

CUresult make_part(CallTarget& target, uint64_t whole, unsigned number, const CUDA_ARRAY3D_DESCRIPTOR& shape,
                   uint64_t* handle) {
  if (!target.context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  auto known = std::make_unique<Array>();
  known->shape = shape;
  known->is_part = true;
  known->context = target.context->handle;
  const uint64_t minted = target.session->mint(Kind::array, std::move(known));
  if (minted == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  wire::Buffer reply;
  const CUresult result = target.session->call(wire::Command::array_part, target.context,
                                               wire::ArrayPart{minted, whole, number, 0}, reply);
  if (result == CUDA_SUCCESS)
    *handle = minted;
  else
    handles().retire(minted);
  return result;
}

}  // namespace

CUDA_EXPORT CUresult cuArrayCreate_v2(CUarray* array, const CUDA_ARRAY_DESCRIPTOR* shape) {
  return create_as(array, shape);
}
CUDA_EXPORT CUresult cuArray3DCreate_v2(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* shape) {
  return create_as(array, shape);
}

// cuArrayDestroy and cuMipmappedArrayDestroy need no current context.
CUDA_EXPORT CUresult cuArrayDestroy(CUarray array) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    const Object* const object = handles().find(Kind::array, cuda::handle_bits(array));
    const BorrowedContext borrowed(object ? object->context : 0);
    CallTarget target;
    if (const CUresult result = require_context(&target.session, &target.context); result != CUDA_SUCCESS)
      return result;
    const auto* const known = find<Array>(Kind::array, cuda::handle_bits(array), target);
    if (!known || known->is_part) return CUDA_ERROR_INVALID_HANDLE;
    return destroy(target, cuda::handle_bits(array));
  });
}

CUDA_EXPORT CUresult cuArrayGetPlane(CUarray* plane, CUarray array, unsigned int number) {
  return guarded([&]() -> CUresult {
    CallTarget target;
    if (const CUresult result = require_context(&target.session, &target.context); result != CUDA_SUCCESS)
      return result;
    if (!plane) return CUDA_ERROR_INVALID_VALUE;
    const auto* const known = find<Array>(Kind::array, cuda::handle_bits(array), target);
    if (!known) return CUDA_ERROR_INVALID_HANDLE;
    uint64_t handle = 0;
    const CUresult result = make_part(target, cuda::handle_bits(array), number, known->shape, &handle);
    if (result == CUDA_SUCCESS) *plane = cuda::handle_from_bits<CUarray>(handle);
    return result;
  });
}

CUDA_EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray* array, const CUDA_ARRAY3D_DESCRIPTOR* shape,
                                            unsigned int levels) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    if (!array || !shape) return CUDA_ERROR_INVALID_VALUE;
    auto known = std::make_unique<MipmappedArray>();
    known->shape = *shape;
    uint64_t handle = 0;
    const CUresult result = create(
        Kind::mipmapped_array, rows::cuMipmappedArrayCreate::kId, std::move(known),
        [&](wire::Writer& writer) {
          writer.put<uint8_t>(1);
          writer.put(*shape);
          writer.put(levels);
        },
        &handle);
    if (result == CUDA_SUCCESS) *array = cuda::handle_from_bits<CUmipmappedArray>(handle);
    return result;
  });
}

CUDA_EXPORT CUresult cuMipmappedArrayGetLevel(CUarray* level, CUmipmappedArray array, unsigned int number) {
  return guarded([&]() -> CUresult {
    CallTarget target;
    if (const CUresult result = require_context(&target.session, &target.context); result != CUDA_SUCCESS)
      return result;
    if (!level) return CUDA_ERROR_INVALID_VALUE;
    auto* const known = find<MipmappedArray>(Kind::mipmapped_array, cuda::handle_bits(array), target);
    if (!known) return CUDA_ERROR_INVALID_HANDLE;
    constexpr unsigned kMostLevels = 32;
    if (number >= kMostLevels) return CUDA_ERROR_INVALID_VALUE;
    const std::lock_guard lock(known->mutex);
    if (known->levels.size() <= number) known->levels.resize(number + 1);
    uint64_t& handle = known->levels[number];
    if (handle == 0) {
      const auto halve = [number](size_t size) {
        return size == 0 ? 0 : std::max<size_t>(size >> number, 1);
      };
      CUDA_ARRAY3D_DESCRIPTOR shape = known->shape;
      shape.Width = halve(shape.Width);
      shape.Height = halve(shape.Height);
      if ((shape.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) == 0)
        shape.Depth = halve(shape.Depth);
      const CUresult result = make_part(target, cuda::handle_bits(array), number, shape, &handle);
      if (result != CUDA_SUCCESS) return result;
    }
    *level = cuda::handle_from_bits<CUarray>(handle);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    const Object* const object = handles().find(Kind::mipmapped_array, cuda::handle_bits(array));
    const BorrowedContext borrowed(object ? object->context : 0);
    CallTarget target;
    if (const CUresult result = require_context(&target.session, &target.context); result != CUDA_SUCCESS)
      return result;
    auto* const known = find<MipmappedArray>(Kind::mipmapped_array, cuda::handle_bits(array), target);
    if (!known) return CUDA_ERROR_INVALID_HANDLE;
    for (const uint64_t level : known->levels) {
      if (level != 0) handles().retire(level);
    }
    return destroy(target, cuda::handle_bits(array));
  });
}
