// The session's arrays, and its texture and surface objects, in which the driver would take any number for an object. An array
// counts in the tenant's memory quota from before it is made until the driver has got its memory back. Block-compressed and
// planar arrays, and those without memory of their own, are not offered. The executor's thread, but for the end of destroy().
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "server/worker/checkpoint_image.h"
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
  CUresult level(CUarray* part, CUmipmappedArray whole, unsigned number) const;
  // When what the context has got so far is done; then `done` is called, on another thread. False: no thread is to be had, and
  // it was not destroyed.
  bool destroy(void* array, std::function<void(CUresult)> done);
  // At once: nothing in the context is at work. Parts of others are left to these.
  void drop(void* array);

  // The resource's handles have been resolved. CUDA_ERROR_INVALID_VALUE: not the session's memory.
  CUresult create_texture(CUtexObject* object, const CUDA_RESOURCE_DESC& resource, const CUDA_TEXTURE_DESC* texture,
                          const CUDA_RESOURCE_VIEW_DESC* view);
  CUresult create_surface(CUsurfObject* object, const CUDA_RESOURCE_DESC& resource);
  // In two steps. False: the current context has none of this number.
  bool forget_object(bool surface, unsigned long long number);
  CUresult destroy_object(bool surface, unsigned long long number);
  // Texture references of the program's own; false: it is none.
  void reference_made(CUtexref reference) { references_[reference] = &contexts_.current()->owner(); }
  bool forget_reference(CUtexref reference) { return references_.erase(reference) != 0; }
  // Not zeroed yet: the client must not name it.
  bool is_dirty(const void* array) const { return !dirty_.empty() && dirty_.contains(array); }
  // A texture or surface reference was made to name it, or a level of it.
  void bound(void* array);
  // The context is about to end.
  void drop_objects(const ContextState& context);

  // --- Checkpoints, in arrays_checkpoint.cc: arrays are made anew, and what the session has of them names the new ones ---
  // Null, or what cannot be made to.
  const char* stays();
  void add_pieces(CheckpointImage::Pieces& pieces, HandleTable& table);

 private:
  struct Made {
    ContextState* context = nullptr;
    uint64_t charged = 0;
    CUDA_ARRAY3D_DESCRIPTOR shape{};
    unsigned level_count = 0;     // 0: not mipmapped
    std::vector<CUarray> levels{};
    bool bound = false;
    bool away = false;            // in a checkpoint
  };
  // What an object on an array is made of again.
  struct Description {
    CUDA_RESOURCE_DESC resource{};
    CUDA_TEXTURE_DESC texture{};
    std::optional<CUDA_RESOURCE_VIEW_DESC> view;
  };
  struct Object {
    std::shared_ptr<Description> of_array;  // null: of memory
    bool away = false;
  };
  using Objects = std::map<std::tuple<ContextState*, bool, unsigned long long>, Object>;  // true: a surface
  class LeavingArray;
  class LeavingNames;

  CUresult create(const CUDA_ARRAY3D_DESCRIPTOR& shape, unsigned level_count, uint64_t bytes, void** array);
  CUresult zero(void* array, const Made& made);
  // On the device, in its context, which is current.
  CUresult make(Made& made, void** array);
  CUresult destroy_now(void* array, const Made& made);
  CUresult unmake(void* array, const Made& made);
  // All that it consists of.
  CUresult for_each_part(void* array, const Made& made, const std::function<CUresult(CUarray, const CUDA_ARRAY3D_DESCRIPTOR&)>& visit);
  CUresult create_object(Description description, bool surface, unsigned long long* number);
  CUresult make_object(const Description& description, bool surface, unsigned long long* number);
  // With this number.
  CUresult make_object_again(const Description& description, bool surface, unsigned long long number);
  std::unordered_set<const void*> all_parts() const;
  bool number_comes_again(const Description& description, bool surface);
  bool numbers_come_again();

  const DeviceApi& api_;
  Contexts& contexts_;
  DeviceMemory& memory_;
  Scrubber& scrubber_;
  WaitPool& waits_;
  std::unordered_map<void*, Made> made_;
  std::unordered_set<const void*> dirty_;   // of them
  std::mutex doomed_mutex_;
  std::unordered_map<void*, Made> doomed_;  // a wait thread is to destroy them, if it comes to that
  Objects objects_;
  std::unordered_map<CUtexref, const ContextState*> references_;
};

}  // namespace gpupool::worker
