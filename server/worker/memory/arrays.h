// The session's CUDA arrays, texture objects and surface objects. Validates handles and object numbers,
// because the driver would use any number as an object. An array is charged to the tenant's memory quota
// from before its creation until the driver has freed it. Rejects block-compressed, planar, sparse and
// deferred-mapping arrays with CUDA_ERROR_NOT_SUPPORTED. Executor's thread only, except for the completion of
// destroy(), which runs on a wait thread.
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

#include "server/worker/checkpoint/checkpoint_image.h"
#include "server/worker/memory/device_memory.h"
#include "server/worker/session/handle_table.h"
#include "server/worker/session/waits.h"

namespace gpupool::worker {

constexpr size_t kMaxArrays = 1u << 20;
// Limit of texture and surface objects per session; as many as a device supports.
constexpr size_t kMaxTextures = 1u << 20;
// Most objects that are made to get one with the number that another worker's driver has assigned.
constexpr size_t kMostOtherTextures = 1u << 12;

class Arrays {
 public:
  Arrays(const DeviceApi& api, Contexts& contexts, DeviceMemory& memory, Scrubber& scrubber, WaitPool& waits)
      : api_(api), contexts_(contexts), memory_(memory), scrubber_(scrubber), waits_(waits) {}

  // Like the driver's functions of the same purpose; the array belongs to the current context.
  CUresult create(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR& shape);
  CUresult create(CUmipmappedArray* array, const CUDA_ARRAY3D_DESCRIPTOR& shape, unsigned levels);
  CUresult level(CUarray* part, CUmipmappedArray whole, unsigned number) const;
  // Destroys the array on a wait thread once all earlier work in its context is done, then calls `done` on
  // that thread. Returns false, and destroys nothing, if the array is unknown or no thread is available.
  bool destroy(void* array, std::function<void(CUresult)> done);
  // Destroys the array immediately; nothing may be running in its context. Ignores levels of mipmapped
  // arrays, which are destroyed with the whole array.
  void drop(void* array);

  // The caller has replaced the handles in `resource` by device pointers. CUDA_ERROR_INVALID_VALUE: linear or
  // pitched memory that the session does not own.
  CUresult create_texture(CUtexObject* object, const CUDA_RESOURCE_DESC& resource,
                          const CUDA_TEXTURE_DESC* texture, const CUDA_RESOURCE_VIEW_DESC* view);
  CUresult create_surface(CUsurfObject* object, const CUDA_RESOURCE_DESC& resource);
  // Sets the number that the next texture or surface object is to have; it gets another one if the driver
  // does not assign this one. nullopt: any.
  void expect_object(std::optional<unsigned long long> number) { expected_object_ = number; }
  // Destroying an object takes two steps: forget_object() removes it from the table and returns false if the
  // current context has no object with this number; destroy_object() then calls the driver.
  bool forget_object(bool surface, unsigned long long number);
  CUresult destroy_object(bool surface, unsigned long long number);
  // Texture references that the program has created (cuTexRefCreate). forget_reference() returns false for an
  // unknown one.
  void reference_made(CUtexref reference) { references_[reference] = &contexts_.current()->owner(); }
  bool forget_reference(CUtexref reference) { return references_.erase(reference) != 0; }
  // True until the new array has been zeroed; the client must not use it before.
  bool is_dirty(const void* array) const { return !dirty_.empty() && dirty_.contains(array); }
  // Records that a texture or surface reference names the array or one of its levels; such an array cannot be
  // checkpointed.
  void mark_named_by_reference(void* array);
  struct Level {
    CUarray array;
    CUDA_ARRAY3D_DESCRIPTOR shape;
    ContextState* context;
  };
  // The array itself, or the levels of a mipmapped array. Empty: unknown.
  std::vector<Level> levels_of(void* array);
  // Destroys all objects of a context that is about to be destroyed.
  void drop_objects(const ContextState& context);

  // --- Checkpoints (arrays_checkpoint.cc): arrays are created again, and the session's handles and objects
  // then name the new ones ---
  // Returns null if all arrays can leave the device, else a description of the obstacle for the log.
  const char* checkpoint_obstacle();
  void add_pieces(CheckpointImage::Pieces& pieces, HandleTable& table);

 private:
  struct ArrayState {
    ContextState* context = nullptr;
    uint64_t charged = 0;
    CUDA_ARRAY3D_DESCRIPTOR shape{};
    unsigned level_count = 0;  // 0: not mipmapped
    std::vector<CUarray> levels{};
    bool named_by_reference = false;
    bool away = false;  // removed from the device by a checkpoint
  };
  // Arguments with which an object on an array was created, to create it again after a checkpoint.
  struct Description {
    CUDA_RESOURCE_DESC resource{};
    CUDA_TEXTURE_DESC texture{};
    std::optional<CUDA_RESOURCE_VIEW_DESC> view;
  };
  struct Object {
    std::shared_ptr<Description> of_array;  // null: the object is on linear or pitched memory
    bool away = false;
  };
  // bool: true for a surface object
  using Objects = std::map<std::tuple<ContextState*, bool, unsigned long long>, Object>;
  class CheckpointedArray;
  class CheckpointedObjects;

  CUresult create(const CUDA_ARRAY3D_DESCRIPTOR& shape, unsigned level_count, uint64_t bytes, void** array);
  CUresult zero(void* array, const ArrayState& made);
  // Calls the driver to create the array on the device; made.context must be current.
  CUresult make(ArrayState& made, void** array);
  CUresult destroy_now(void* array, const ArrayState& made);
  CUresult unmake(void* array, const ArrayState& made);
  // Visits the array itself, or each level of a mipmapped array.
  CUresult for_each_part(void* array, const ArrayState& made,
                         const std::function<CUresult(CUarray, const CUDA_ARRAY3D_DESCRIPTOR&)>& visit);
  CUresult create_object(Description description, bool surface, unsigned long long* number);
  CUresult make_object(const Description& description, bool surface, unsigned long long* number);
  // Creates the object and ensures that the driver assigns the given number, after at most `most_others`
  // other ones.
  CUresult make_object_again(const Description& description, bool surface, unsigned long long number,
                             size_t most_others = kMaxTextures);
  std::unordered_set<const void*> all_parts() const;
  bool driver_reuses_handle(const Description& description, bool surface);
  bool driver_reuses_handles();

  const DeviceApi& api_;
  Contexts& contexts_;
  DeviceMemory& memory_;
  Scrubber& scrubber_;
  WaitPool& waits_;
  std::unordered_map<void*, ArrayState> states_;
  std::unordered_set<const void*> dirty_;  // subset of states_ that is not zeroed yet
  std::mutex pending_destruction_mutex_;
  // Arrays that a wait thread will destroy, unless their context is destroyed first.
  std::unordered_map<void*, ArrayState> pending_destruction_;
  Objects objects_;
  std::unordered_map<CUtexref, const ContextState*> references_;
  std::optional<unsigned long long> expected_object_;
};

}  // namespace gpupool::worker
