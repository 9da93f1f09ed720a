#include "client/session/handles.h"

namespace gpupool::client {

HandleTable::Slot* HandleTable::slot(uint32_t index) const {
  if (index >= kPages * kPageSlots) return nullptr;
  Slot* page = pages_[index / kPageSlots].load(std::memory_order_acquire);
  return page ? &page[index % kPageSlots] : nullptr;
}

uint64_t HandleTable::mint(Kind kind, std::unique_ptr<Object> object) {
  std::lock_guard lock(mutex_);
  uint32_t index = 0;
  if (!free_.empty()) {
    index = free_.back();
    free_.pop_back();
  } else {
    if (used_ >= kPages * kPageSlots) return 0;
    index = used_++;
    auto& page = pages_[index / kPageSlots];
    if (!page.load(std::memory_order_relaxed)) page.store(new Slot[kPageSlots], std::memory_order_release);
  }
  Slot& place = *slot(index);
  // Generation 0 is skipped: every minted handle has a non-zero generation.
  place.generation = place.generation % 0xfffff + 1;
  const uint64_t handle = cuda::make_handle(kind, place.generation, index);
  if (!object) object = std::make_unique<Object>();
  object->handle = handle;
  place.object.store(object.release(), std::memory_order_release);
  place.handle.store(handle, std::memory_order_release);
  return handle;
}

void HandleTable::retire(uint64_t handle) {
  // Destroyed after the lock is released, because its destructor may retire handles.
  std::unique_ptr<Object> gone;
  std::lock_guard lock(mutex_);
  Slot* place = slot(cuda::index_of(handle));
  if (!place || place->handle.load() != handle) return;
  place->handle.store(0, std::memory_order_release);
  gone.reset(place->object.exchange(nullptr));
  free_.push_back(cuda::index_of(handle));
}

Object* HandleTable::find(Kind kind, uint64_t handle) const {
  if (cuda::kind_of(handle) != kind) return nullptr;
  const Slot* place = slot(cuda::index_of(handle));
  if (!place || place->handle.load(std::memory_order_acquire) != handle) return nullptr;
  return place->object.load(std::memory_order_acquire);
}

}  // namespace gpupool::client
