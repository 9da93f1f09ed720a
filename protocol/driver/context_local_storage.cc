#include "protocol/driver/context_local_storage.h"

#include <new>
#include <type_traits>

namespace gpupool::cuda {

static_assert(std::is_trivially_destructible_v<ContextLocalStorage>);

namespace {

constexpr size_t kFirstSize = 64;

size_t hash(CUcontext context, void* key) {
  uint64_t mixed = reinterpret_cast<uintptr_t>(context) * 0x9E3779B97F4A7C15u;
  mixed ^= reinterpret_cast<uintptr_t>(key) * 0xC2B2AE3D27D4EB4Fu;
  return static_cast<size_t>(mixed ^ (mixed >> 29));
}

}  // namespace

// Holds the mutex and keeps the sequence odd. It stores with release order, so a reader that has seen any of
// its stores also sees the odd number, or a later one.
struct ContextLocalStorage::Writer {
  explicit Writer(ContextLocalStorage& owner) : storage(owner), lock(owner.mutex_) {
    storage.sequence_.fetch_add(1, std::memory_order_relaxed);
  }
  ~Writer() { storage.sequence_.fetch_add(1, std::memory_order_release); }
  ContextLocalStorage& storage;
  std::lock_guard<std::mutex> lock;
};

ContextLocalStorage::Slot* ContextLocalStorage::find(const Table* table, CUcontext context, void* key) {
  if (table == nullptr) return nullptr;
  // At least a quarter of the slots is empty; the bound is for readers that probe while a writer moves
  // values.
  size_t at = hash(context, key);
  for (size_t probes = 0; probes < table->size; ++probes, ++at) {
    Slot& slot = table->slots[at & (table->size - 1)];
    const State state = slot.state.load(std::memory_order_acquire);
    if (state == State::empty) return nullptr;
    if (state == State::used && slot.context.load(std::memory_order_acquire) == context &&
        slot.key.load(std::memory_order_acquire) == key) {
      return &slot;
    }
  }
  return nullptr;
}

bool ContextLocalStorage::get(CUcontext context, void* key, void** value) const {
  const uint64_t before = sequence_.load(std::memory_order_acquire);
  if ((before & 1) == 0) {
    const Slot* slot = find(table_.load(std::memory_order_acquire), context, key);
    void* found = slot != nullptr ? slot->value.load(std::memory_order_acquire) : nullptr;
    if (sequence_.load(std::memory_order_relaxed) == before) {
      if (slot != nullptr) *value = found;
      return slot != nullptr;
    }
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  const Slot* slot = find(table_.load(std::memory_order_relaxed), context, key);
  if (slot == nullptr) return false;
  *value = slot->value.load(std::memory_order_relaxed);
  return true;
}

// Makes room for one more value; called under a Writer. False: out of memory.
bool ContextLocalStorage::make_room() {
  Table* old = table_.load(std::memory_order_relaxed);
  if (old != nullptr && filled_ + 1 <= old->size / 4 * 3) return true;

  size_t used = 0;
  for (size_t i = 0; old != nullptr && i < old->size; ++i) {
    used += old->slots[i].state.load(std::memory_order_relaxed) == State::used ? 1 : 0;
  }
  // The size stays the same if many slots hold removed values: a table is at least twice as large as its
  // contents when it is made.
  const size_t size = old == nullptr ? kFirstSize : used + 1 > old->size / 2 ? old->size * 2 : old->size;
  Table* table = nullptr;
  // An outgrown table of the right size is reused. Readers that still probe it see the sequence change.
  for (Table** link = old != nullptr ? &old->outgrown : nullptr; link != nullptr && *link != nullptr;
       link = &(*link)->outgrown) {
    if ((*link)->size == size) {
      table = *link;
      *link = table->outgrown;
      for (size_t i = 0; i < size; ++i) table->slots[i].state.store(State::empty, std::memory_order_release);
      break;
    }
  }
  if (table == nullptr) {
    table = new (std::nothrow) Table;
    if (table == nullptr) return false;
    table->slots = new (std::nothrow) Slot[size];
    table->size = size;
    if (table->slots == nullptr) {
      delete table;
      return false;
    }
  }
  filled_ = used;
  for (size_t i = 0; old != nullptr && i < old->size; ++i) {
    const Slot& from = old->slots[i];
    if (from.state.load(std::memory_order_relaxed) != State::used) continue;
    const CUcontext context = from.context.load(std::memory_order_relaxed);
    void* key = from.key.load(std::memory_order_relaxed);
    size_t at = hash(context, key);
    while (table->slots[at & (size - 1)].state.load(std::memory_order_relaxed) != State::empty) ++at;
    Slot& to = table->slots[at & (size - 1)];
    to.context.store(context, std::memory_order_release);
    to.key.store(key, std::memory_order_release);
    to.value.store(from.value.load(std::memory_order_relaxed), std::memory_order_release);
    to.destructor.store(from.destructor.load(std::memory_order_relaxed), std::memory_order_release);
    to.state.store(State::used, std::memory_order_release);
  }
  table->outgrown = old;
  table_.store(table, std::memory_order_release);
  return true;
}

bool ContextLocalStorage::put(CUcontext context, void* key, void* value, Destructor destructor) {
  const Writer writer(*this);
  Slot* slot = find(table_.load(std::memory_order_relaxed), context, key);
  if (slot == nullptr) {
    if (!make_room()) return false;
    Table* table = table_.load(std::memory_order_relaxed);
    size_t at = hash(context, key);
    while (table->slots[at & (table->size - 1)].state.load(std::memory_order_relaxed) == State::used) ++at;
    slot = &table->slots[at & (table->size - 1)];
    if (slot->state.load(std::memory_order_relaxed) == State::empty) ++filled_;
  }
  slot->context.store(context, std::memory_order_release);
  slot->key.store(key, std::memory_order_release);
  slot->value.store(value, std::memory_order_release);
  slot->destructor.store(destructor, std::memory_order_release);
  slot->state.store(State::used, std::memory_order_release);
  return true;
}

bool ContextLocalStorage::remove(CUcontext context, void* key) {
  const Writer writer(*this);
  Slot* slot = find(table_.load(std::memory_order_relaxed), context, key);
  if (slot != nullptr) slot->state.store(State::removed, std::memory_order_release);
  return slot != nullptr;
}

void ContextLocalStorage::destroy_context(CUcontext context) {
  // One value at a time, because a destructor may call put(), remove() or destroy_context(). Values that
  // destructors put are destroyed too, up to a limit.
  size_t start = 0;
  for (int rounds = 0; rounds < 4096; ++rounds) {
    void* key = nullptr;
    void* value = nullptr;
    Destructor destructor = nullptr;
    bool found = false;
    {
      const Writer writer(*this);
      Table* table = table_.load(std::memory_order_relaxed);
      const size_t size = table != nullptr ? table->size : 0;
      for (size_t i = 0; i < size && !found; ++i) {
        Slot& slot = table->slots[(start + i) & (size - 1)];
        if (slot.state.load(std::memory_order_relaxed) != State::used ||
            slot.context.load(std::memory_order_relaxed) != context) {
          continue;
        }
        key = slot.key.load(std::memory_order_relaxed);
        value = slot.value.load(std::memory_order_relaxed);
        destructor = slot.destructor.load(std::memory_order_relaxed);
        slot.state.store(State::removed, std::memory_order_release);
        start = (start + i) & (size - 1);
        found = true;
      }
    }
    if (!found) return;
    if (destructor != nullptr) destructor(context, key, value);
  }
}

}  // namespace gpupool::cuda
