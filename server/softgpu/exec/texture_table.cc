// The table of textures and surfaces, and the texture queries.
#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "server/softgpu/exec/texture.h"
#include "server/softgpu/memory/address_space.h"

namespace gpupool::softgpu {
namespace {

// A handle is tag (8 bits) | generation (24) | index (32), and never an address of the reserved range.
constexpr uint64_t kTag = 0x54ull << 56;
constexpr uint32_t kGenerations = 1u << 24;
constexpr uint32_t kSlots = 65536, kChunkSlots = 256;
constexpr size_t kReuseDelay = 4096;  // number of free slots kept before one is reused

struct Slot {
  std::atomic<uint64_t> handle{0};
  uint32_t generation = 0;
  TextureState state;
};
using Chunk = std::array<Slot, kChunkSlots>;

struct Table {
  std::array<std::atomic<Chunk*>, kSlots / kChunkSlots> chunks{};
  std::mutex mutex;  // guards the members below; held for all changes
  uint32_t used = 0;
  std::deque<uint32_t> free;
};

thread_local uint64_t wished = 0;

Table& table() {
  static Table* const only = new Table;  // never destroyed: programs call the driver from exit handlers
  return *only;
}

Slot* slot_of(uint64_t handle) {
  const auto index = static_cast<uint32_t>(handle);
  if (handle >> 56 != kTag >> 56 || index >= kSlots) return nullptr;
  Chunk* const chunk = table().chunks[index / kChunkSlots].load(std::memory_order_acquire);
  return chunk ? &(*chunk)[index % kChunkSlots] : nullptr;
}

// Returns the slot, which no object has.
Slot& slot_at(Table& all, uint32_t index) {
  std::atomic<Chunk*>& chunk = all.chunks[index / kChunkSlots];
  if (!chunk.load(std::memory_order_relaxed)) chunk.store(new Chunk, std::memory_order_release);
  return (*chunk.load(std::memory_order_relaxed))[index % kChunkSlots];
}

// Takes the slot of a new object that is to have this handle. Null: it is no handle, or the slot is in use.
Slot* take_wished(Table& all, uint64_t handle) {
  const auto index = static_cast<uint32_t>(handle);
  if (handle >> 56 != kTag >> 56 || index >= kSlots) return nullptr;
  while (all.used <= index) all.free.push_back(all.used++);
  if (std::erase(all.free, index) == 0) return nullptr;
  Slot& slot = slot_at(all, index);
  const auto generation = static_cast<uint32_t>(handle >> 32) % kGenerations;
  slot.generation = std::max(slot.generation, generation);  // later objects must not get the handle
  return &slot;
}

}  // namespace

void set_next_texture(uint64_t handle) {
  wished = handle;
}

uint64_t add_texture(const TextureState& state) {
  Table& all = table();
  const std::lock_guard guard(all.mutex);
  uint64_t handle = std::exchange(wished, 0);
  Slot* slot = take_wished(all, handle);
  if (!slot) {
    uint32_t index;
    if (all.free.size() >= kReuseDelay || (all.used == kSlots && !all.free.empty())) {
      index = all.free.front();
      all.free.pop_front();
    } else {
      if (all.used == kSlots) return 0;
      index = all.used++;
    }
    slot = &slot_at(all, index);
    slot->generation = (slot->generation + 1) % kGenerations;
    handle = kTag | uint64_t{slot->generation} << 32 | index;
  }
  slot->state = state;
  slot->handle.store(handle, std::memory_order_release);
  return handle;
}

bool remove_texture(uint64_t handle) {
  Table& all = table();
  const std::lock_guard guard(all.mutex);
  Slot* const slot = slot_of(handle);
  if (!slot || slot->handle.load(std::memory_order_relaxed) != handle) return false;
  slot->handle.store(0, std::memory_order_release);
  all.free.push_back(static_cast<uint32_t>(handle));
  return true;
}

const TextureState* find_texture(uint64_t handle, bool surface) {
  const Slot* const slot = slot_of(handle);
  if (!slot || slot->handle.load(std::memory_order_acquire) != handle || slot->state.is_surface != surface)
    return nullptr;
  return &slot->state;
}

}  // namespace gpupool::softgpu

using namespace gpupool::softgpu;

extern "C" {

uint32_t softgpu_is_texture(ThreadContext*, uint64_t value, uint32_t surface) {
  if (in_range(value, 8) && value % 8 == 0) value = *reinterpret_cast<const uint64_t*>(value);  // a reference
  return find_texture(value, surface != 0) != nullptr;
}

uint32_t softgpu_texture_query(ThreadContext* thread, uint64_t handle, uint32_t query, uint32_t level,
                               uint32_t surface) {
  if (in_range(handle, 8) && handle % 8 == 0) handle = *reinterpret_cast<const uint64_t*>(handle);
  const TextureState* const t = find_texture(handle, surface != 0);
  if (!t) softgpu_fault(thread, FaultKind::illegal_address, handle);
  const TextureLevel& l = t->levels[level < t->level_count ? level : t->level_count - 1];
  switch (static_cast<TextureQuery>(query)) {
    case TextureQuery::width: return l.width;
    case TextureQuery::height: return l.height;
    case TextureQuery::depth: return l.depth;
    case TextureQuery::channel_data_type: {  // values of OpenCL, as the PTX ISA specifies
      const uint32_t bits = t->format.bits, step = bits == 8 ? 0 : bits == 16 ? 1 : 2;
      switch (t->format.kind) {
        case TexelKind::signed_normalized: return 0x10d0 + step;
        case TexelKind::unsigned_normalized: return bits == 10 ? 0x10e0 : 0x10d2 + step;
        case TexelKind::signed_integer: return 0x10d7 + step;
        case TexelKind::unsigned_integer: return 0x10da + step;
        case TexelKind::floating: return bits == 16 ? 0x10dd : 0x10de;
      }
      return 0;
    }
    case TextureQuery::channel_order:
      return t->format.channels == 1 ? 0x10b0 : t->format.channels == 2 ? 0x10b2 : 0x10b5;
    case TextureQuery::normalized_coords: return t->normalized;
    case TextureQuery::force_unnormalized_coords: return 0;
    case TextureQuery::filter_mode: return t->filter_linear;
    case TextureQuery::addr_mode_0: return static_cast<uint32_t>(t->address_mode[0]);
    case TextureQuery::addr_mode_1: return static_cast<uint32_t>(t->address_mode[1]);
    case TextureQuery::addr_mode_2: return static_cast<uint32_t>(t->address_mode[2]);
    case TextureQuery::array_size: return t->layers;
    case TextureQuery::num_mipmap_levels: return t->level_count;
    case TextureQuery::num_samples: return 1;
    case TextureQuery::memory_layout: return 0;
  }
  return 0;
}

}  // extern "C"
