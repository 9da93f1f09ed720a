#include "server/softgpu/runtime/handles.h"

namespace gpupool::softgpu {
namespace {

// From the top: 8 bits of kind, 28 of generation, 24 of slot, and four zeros, like an aligned pointer.
constexpr uint32_t kGenerationMask = (1u << 28) - 1;

uint64_t encode(HandleKind kind, uint32_t generation, uint32_t index) {
  return static_cast<uint64_t>(kind) << 56 | static_cast<uint64_t>(generation) << 28 |
         static_cast<uint64_t>(index) << 4;
}
uint32_t index_of(uint64_t handle) {
  return static_cast<uint32_t>(handle >> 4) & 0xffffff;
}
uint32_t generation_of(uint64_t handle) {
  return static_cast<uint32_t>(handle >> 28) & kGenerationMask;
}

}  // namespace

HandleTable::Slot* HandleTable::slot_of(uint64_t handle) {
  if ((handle & 0xf) != 0) return nullptr;
  const uint32_t index = index_of(handle);
  Chunk* chunk = chunks_[index / kChunkSlots].load(std::memory_order_acquire);
  return chunk == nullptr ? nullptr : &(*chunk)[index % kChunkSlots];
}

uint64_t HandleTable::add(HandleKind kind, Ref<Object> object) {
  uint32_t index;
  {
    std::lock_guard guard(mutex_);
    // Reuse slots late: when a chunk's worth of them is free, or no unused slot is left.
    if (free_.size() >= kChunkSlots || (used_ == kChunkSlots * kChunks && !free_.empty())) {
      index = free_.front();
      free_.pop_front();
    } else {
      if (used_ == kChunkSlots * kChunks) return 0;
      index = used_++;
      if (index % kChunkSlots == 0) {
        chunks_[index / kChunkSlots].store(new Chunk, std::memory_order_release);
      }
    }
  }
  Slot& slot = (*chunks_[index / kChunkSlots].load(std::memory_order_acquire))[index % kChunkSlots];
  std::lock_guard guard(slot.lock);
  slot.generation = (slot.generation + 1) & kGenerationMask;
  slot.kind = kind;
  slot.object = std::move(object);
  return encode(kind, slot.generation, index);
}

Ref<Object> HandleTable::find(uint64_t handle, HandleKind kind) {
  if (kind_of(handle) != kind) return nullptr;
  Slot* slot = slot_of(handle);
  if (slot == nullptr) return nullptr;
  std::lock_guard guard(slot->lock);
  if (slot->kind != kind || slot->generation != generation_of(handle)) return nullptr;
  return slot->object;
}

Ref<Object> HandleTable::remove(uint64_t handle, HandleKind kind) {
  if (kind_of(handle) != kind) return nullptr;
  Slot* slot = slot_of(handle);
  if (slot == nullptr) return nullptr;
  Ref<Object> object;
  {
    std::lock_guard guard(slot->lock);
    if (slot->kind != kind || slot->generation != generation_of(handle)) return nullptr;
    slot->kind = HandleKind::none;
    object = std::move(slot->object);
  }
  std::lock_guard guard(mutex_);
  free_.push_back(index_of(handle));
  return object;
}

std::vector<Ref<Object>> HandleTable::all(HandleKind kind) {
  uint32_t used;
  {
    std::lock_guard guard(mutex_);
    used = used_;
  }
  std::vector<Ref<Object>> objects;
  for (uint32_t index = 0; index < used; ++index) {
    Slot& slot = (*chunks_[index / kChunkSlots].load(std::memory_order_acquire))[index % kChunkSlots];
    std::lock_guard guard(slot.lock);
    if (slot.kind == kind) objects.push_back(slot.object);
  }
  return objects;
}

}  // namespace gpupool::softgpu
