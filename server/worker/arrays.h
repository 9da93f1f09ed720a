// The session's arrays, and its texture and surface objects, in which the driver would take any number for an object. An array
// counts in the tenant's memory quota from before it is made until the driver has got its memory back. Block-compressed and
// planar arrays, and those without memory of their own, are not offered. The executor's thread, but for the end of destroy().
#pragma once
#include <functional>
#include <map>
#include <mutex>
#include <unordered_map>

#include "server/worker/device_memory.h"
#include "server/worker/handle_table.h"
#include "server/worker/waits.h"

namespace gpupool::worker {

constexpr size_t kMaxArrays = 1u << 20;
constexpr size_t kMaxTextures = 1u << 20;  // and surfaces, of one session; as many as a device has

class Arrays {
 public:
  Arrays(const DeviceApi& api, Contexts& contexts, DeviceMemory& memory, Scrubber& scrubber, WaitPool& waits)
      : api_(api), contexts_(contexts), memory_(memory), scrubber_(scrubber), waits_(waits) {}

  // As the driver's functions, in the current context.
  CUresult create(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR& shape);
  CUresult create(CUmipmappedArray* array, const CUDA_ARRAY3D_DESCRIPTOR& shape, unsigned levels);
  // When what the context has got so far is done; then `done` is called, on another thread. False: no thread is to be had, and
  // it was not destroyed.
  bool destroy(void* array, std::function<void(CUresult)> done);
  // At once: nothing in the context is at work. Parts of others are left to these.
  void drop(void* array);

  // The resource's handles have been resolved. CUDA_ERROR_INVALID_VALUE: not the session's memory.
  CUresult create_texture(CUtexObject* object, const CUDA_RESOURCE_DESC& resource, const CUDA_TEXTURE_DESC* texture,
                          const CUDA_RESOURCE_VIEW_DESC* view);
  CUresult create_surface(CUsurfObject* object, const CUDA_RESOURCE_DESC& resource);
  CUresult destroy_texture(CUtexObject object);
  CUresult destroy_surface(CUsurfObject object);
  // Texture references of the program's own; false: it is none.
  void reference_made(CUtexref reference) { references_[reference] = &contexts_.current()->owner(); }
  bool forget_reference(CUtexref reference) { return references_.erase(reference) != 0; }
  bool empty() const { return made_.empty(); }
  // The context is about to end.
  void drop_objects(const ContextState& context);

 private:
  struct Made {
    ContextState* context = nullptr;
    uint64_t charged = 0;
    bool mipmapped = false;
  };
  template <class Create>
  CUresult charged(uint64_t bytes, const Create& create);
  CUresult destroy_now(void* array, const Made& made);

  using Objects = std::map<std::pair<const ContextState*, uint64_t>, bool>;  // true: a surface

  const DeviceApi& api_;
  Contexts& contexts_;
  DeviceMemory& memory_;
  Scrubber& scrubber_;
  WaitPool& waits_;
  std::unordered_map<void*, Made> made_;
  std::mutex doomed_mutex_;
  std::unordered_map<void*, Made> doomed_;  // a wait thread is to destroy them, if it comes to that
  Objects objects_;
  std::unordered_map<CUtexref, const ContextState*> references_;
};

}  // namespace gpupool::worker
