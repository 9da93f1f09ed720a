// Maps the client's handles to the device's objects; implements codec.h's Table. This is the only place where
// a number that a client sent becomes a pointer that is passed to the driver. Executor's thread only.
//
// Handles are compared as a whole, so a stale handle (older generation or other kind) is unknown. An object
// belongs to the context in which it was created, and possibly to a module or library, and is removed with
// it: the driver would follow a dangling CUfunction without a check. destroy_all() destroys the remaining
// objects at the end of the session.
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "protocol/calls/handles.h"
#include "server/quota/session_page.h"
#include "server/worker/device/visible_devices.h"
#include "server/worker/session/contexts.h"

namespace gpupool::worker {

constexpr uint32_t kMaxHandles = 4u << 20;  // a session with a larger index ends

class HandleTable {
 public:
  using Kind = cuda::Kind;

  // Counts the objects that a quota limits in `counters` (count()).
  HandleTable(const DeviceApi& api, Contexts& contexts, quota::SessionPage& counters,
              const VisibleDevices& visible)
      : api_(api), contexts_(contexts), counters_(counters), visible_(visible) {}

  // --- codec.h's Table ---
  std::optional<void*> resolve(Kind kind, uint64_t handle);
  // A function, or a kernel that is launched in place of one. nullopt: unknown handle.
  struct Launchable {
    uint64_t handle;
    void* object;
    uint64_t owner;         // handle of its module or library
    ContextState* context;  // null: a kernel, which runs in any context
    KernelMemory* memory;   // valid until the handle is bound again or removed
  };
  std::optional<Launchable> resolve_launchable(uint64_t handle);
  // The context of the object that resolve() found last; null: it belongs to none.
  const ContextState* resolved_in() const { return resolved_in_; }
  void bind(Kind kind, uint64_t handle, void* object) { bind_owned(kind, handle, object, 0); }
  void unbind(uint64_t handle);
  std::optional<CUstream> stream(uint64_t handle) {
    StreamState* const state = use_stream(handle);
    return state ? std::optional(state->stream) : std::nullopt;
  }
  std::optional<CUdevice> device(CUdevice number) const { return visible_.find(number); }

  // Returns the state of a stream, or null if the handle is unknown or, for the legacy stream, no context is
  // current.
  StreamState* find_stream(uint64_t handle);
  StreamState* use_stream(uint64_t handle) {  // the stream is about to get work
    StreamState* const state = find_stream(handle);
    if (state) contexts_.note_use(*state);
    return state;
  }
  // `owner`: the module or library that the object is removed with; 0: none.
  void bind_owned(Kind kind, uint64_t handle, void* object, uint64_t owner);
  uint64_t owner_of(uint64_t handle) const;
  // Maps handles of this kind to new objects, by old object.
  void replace(Kind kind, const std::unordered_map<void*, void*>& objects);
  // Destroys every object of a context, users before the objects that they use.
  void drop_context(const ContextState& context) { destroy_where(&context); }
  // Destroys all remaining objects, except contexts.
  void destroy_all() { destroy_where(nullptr); }
  // Sets a function to call before the table destroys or removes a stream, which still exists then.
  void on_stream_destroy(std::function<void(StreamState&)> call) { on_stream_destroy_ = std::move(call); }
  // Sets a function to call after a module or library was removed.
  void on_code_unloaded(std::function<void(uint64_t)> unloaded) { code_unloaded_ = std::move(unloaded); }
  // Sets a predicate: true if an object whose index the client reuses must stay, because a command that names
  // it has yet to be executed.
  void keep_if(std::function<bool(uint64_t)> needed) { needed_ = std::move(needed); }
  // Sets a function to call in place of cuMemRelease.
  void release_memory_by(std::function<void(CUmemGenericAllocationHandle)> release) {
    release_memory_ = std::move(release);
  }
  // Sets a predicate: true for arrays and mipmapped arrays that resolve() must not return yet.
  void hide_arrays_if(std::function<bool(const void*)> hidden) { array_hidden_ = std::move(hidden); }
  // Sets the function that destroys arrays and mipmapped arrays.
  void destroy_array_by(std::function<void(void*)> destroy) { destroy_array_ = std::move(destroy); }
  // True after a handle was bound that gpupool's client never creates: the session must end.
  bool broken() const { return broken_; }
  size_t size() const { return size_; }

 private:
  static constexpr uint32_t kPageEntries = 1024;
  struct Entry {
    uint64_t handle = 0;  // 0: empty
    void* object = nullptr;
    ContextState* context = nullptr;  // null: belongs to no context (libraries, kernels, memory)
    StreamState* stream = nullptr;    // for a stream
    uint64_t owner = 0;
    KernelMemory memory;  // for a function or kernel
  };
  using Page = std::array<Entry, kPageEntries>;

  Entry* find(uint64_t handle) const;
  template <class F>
  void for_each_entry(F&& visit);
  void forget(Entry& entry);
  // Adds to the counter of the kind, if a quota limits it.
  void count(Kind kind, int change);
  void destroy(Kind kind, void* object);
  void destroy_where(const ContextState* context);
  void adopt_child(uint64_t owner, uint64_t handle);

  const DeviceApi& api_;
  Contexts& contexts_;
  quota::SessionPage& counters_;
  const VisibleDevices& visible_;
  std::vector<std::unique_ptr<Page>> pages_;  // up to the largest index so far; null: no entry yet
  std::unordered_map<uint64_t, Entry> kept_for_backlog_;  // objects that keep_if() has kept, by handle
  // Handles of functions, kernels and others, by module or library.
  std::unordered_map<uint64_t, std::vector<uint64_t>> children_;
  std::function<void(StreamState&)> on_stream_destroy_;
  std::function<void(uint64_t)> code_unloaded_;
  std::function<bool(uint64_t)> needed_;
  std::function<void(CUmemGenericAllocationHandle)> release_memory_;
  std::function<void(void*)> destroy_array_;
  std::function<bool(const void*)> array_hidden_;
  const ContextState* resolved_in_ = nullptr;
  size_t size_ = 0;
  bool broken_ = false;
};

}  // namespace gpupool::worker
