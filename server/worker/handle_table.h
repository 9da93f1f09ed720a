// The client's handles and the device's objects behind them: codec.h's Table, and the only place where a number that a
// client sent becomes a pointer that the driver gets. The executor's thread alone uses it.
//
// Handles are compared whole, so that a stale one (older generation, other kind) is unknown. Objects remember the context
// they were made in and the module or library they belong to, and vanish with it: the driver would follow a dangling
// CUfunction without a check. What is still there at the end of the session is destroyed by
// destroy_all().
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "protocol/cuda/handles.h"
#include "server/quota/session_page.h"
#include "server/worker/contexts.h"
#include "server/worker/visible_devices.h"

namespace gpupool::worker {

constexpr uint32_t kMaxHandles = 4u << 20;  // indices a client may use; above it the session ends

class HandleTable {
 public:
  using Kind = cuda::Kind;

  // Streams and modules are counted in `counters`.
  HandleTable(const DeviceApi& api, Contexts& contexts, quota::SessionPage& counters, const VisibleDevices& visible)
      : api_(api), contexts_(contexts), counters_(counters), visible_(visible), pages_(kPages) {}

  // --- codec.h's Table ---
  std::optional<void*> resolve(Kind kind, uint64_t handle);
  // A function that is launched, or a kernel in its place. nullopt: unknown.
  struct Launchable {
    uint64_t handle;
    void* object;
    uint64_t owner;        // its module or library
    ContextState* context; // null: a kernel, which is for any
    KernelMemory* memory;  // until the handle is bound again or forgotten
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

  // The same. Null: unknown, or no context is current.
  StreamState* find_stream(uint64_t handle);
  StreamState* use_stream(uint64_t handle) {  // it is about to get work
    StreamState* const state = find_stream(handle);
    if (state) contexts_.note_use(*state);
    return state;
  }
  // `owner`: the module or library that the object vanishes with; 0: none.
  void bind_owned(Kind kind, uint64_t handle, void* object, uint64_t owner);
  uint64_t owner_of(uint64_t handle) const;
  // Handles of this kind that stand for one of these objects stand for another one from now on.
  void replace(Kind kind, const std::unordered_map<void*, void*>& objects);
  // Destroys every object that was made in a context, users before what they use.
  void drop_context(const ContextState& context) { destroy_where(&context); }
  // Destroys every object that is left (contexts stay).
  void destroy_all() { destroy_where(nullptr); }
  // Called while the stream still exists, before the table destroys or forgets it.
  void on_stream_departing(std::function<void(StreamState&)> departing) { departing_ = std::move(departing); }
  // Called when a module or library is gone.
  void on_code_gone(std::function<void(uint64_t)> gone) { code_gone_ = std::move(gone); }
  // Whether an object whose place the client uses again is to stay, since a command that names it has yet to be executed.
  void keep_if(std::function<bool(uint64_t)> needed) { needed_ = std::move(needed); }
  // Called in place of cuMemRelease, which the table would call.
  void release_memory_by(std::function<void(CUmemGenericAllocationHandle)> release) { release_memory_ = std::move(release); }
  // Which arrays and mipmapped arrays cannot be resolved yet.
  void hide_arrays_if(std::function<bool(const void*)> hidden) { array_hidden_ = std::move(hidden); }
  // Called with an array or mipmapped array that the table would destroy.
  void destroy_array_by(std::function<void(void*)> destroy) { destroy_array_ = std::move(destroy); }
  // A handle that no client of ours makes was bound: the session must end.
  bool broken() const { return broken_; }
  size_t size() const { return size_; }

 private:
  static constexpr uint32_t kPageEntries = 1024;
  static constexpr uint32_t kPages = kMaxHandles / kPageEntries;
  struct Entry {
    uint64_t handle = 0;  // 0: empty
    void* object = nullptr;
    ContextState* context = nullptr;  // null: belongs to none (libraries, kernels, memory)
    StreamState* stream = nullptr;    // of a stream
    uint64_t owner = 0;
    KernelMemory memory;              // of a function or kernel
  };
  using Page = std::array<Entry, kPageEntries>;

  Entry* find(uint64_t handle) const;
  template <class F>
  void for_each_entry(F&& visit);
  void forget(Entry& entry);
  void count(Kind kind, uint32_t more);
  void destroy(Kind kind, void* object);
  void destroy_where(const ContextState* context);
  void adopt_child(uint64_t owner, uint64_t handle);

  const DeviceApi& api_;
  Contexts& contexts_;
  quota::SessionPage& counters_;
  const VisibleDevices& visible_;
  std::vector<std::unique_ptr<Page>> pages_;
  std::unordered_map<uint64_t, Entry> displaced_;  // of keep_if(), by handle
  std::unordered_map<uint64_t, std::vector<uint64_t>> children_;  // of modules and libraries
  std::function<void(StreamState&)> departing_;
  std::function<void(uint64_t)> code_gone_;
  std::function<bool(uint64_t)> needed_;
  std::function<void(CUmemGenericAllocationHandle)> release_memory_;
  std::function<void(void*)> destroy_array_;
  std::function<bool(const void*)> array_hidden_;
  const ContextState* resolved_in_ = nullptr;
  size_t size_ = 0;
  bool broken_ = false;
};

}  // namespace gpupool::worker
