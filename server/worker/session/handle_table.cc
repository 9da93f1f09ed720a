#include "server/worker/session/handle_table.h"

#include <algorithm>

namespace gpupool::worker {
namespace {

constexpr uint64_t kHandleBits = 0x7fff'ffff'ffff'fff0;  // the other bits of make_handle()'s layout are zero

bool belongs_to_context(cuda::Kind kind) {
  using cuda::Kind;
  return kind != Kind::context && kind != Kind::library && kind != Kind::kernel && kind != Kind::memory &&
         kind != Kind::memory_pool && kind != Kind::upload && kind != Kind::linker &&
         kind != Kind::resource_description;
}

}  // namespace

HandleTable::Entry* HandleTable::find(uint64_t handle) const {
  const uint32_t index = cuda::index_of(handle);
  if (index / kPageEntries >= pages_.size() || handle == 0) return nullptr;
  Page* const page = pages_[index / kPageEntries].get();
  if (!page) return nullptr;
  Entry& entry = (*page)[index % kPageEntries];
  if (entry.handle == handle) return &entry;
  if (kept_for_backlog_.empty()) return nullptr;
  const auto found = kept_for_backlog_.find(handle);
  return found == kept_for_backlog_.end() ? nullptr : const_cast<Entry*>(&found->second);
}

std::optional<void*> HandleTable::resolve(Kind kind, uint64_t handle) {
  const Kind actual = cuda::kind_of(handle);
  // The driver accepts a CUkernel in place of a CUfunction, and cudart relies on that.
  if (actual != kind && !(kind == Kind::function && actual == Kind::kernel)) return std::nullopt;
  const Entry* const entry = find(handle);
  if (!entry) return std::nullopt;
  if ((kind == Kind::array || kind == Kind::mipmapped_array) && array_hidden_ && array_hidden_(entry->object))
    return std::nullopt;
  resolved_in_ = entry->context;
  if (actual == Kind::stream) contexts_.current_command().uses(handle);
  return entry->object;
}

std::optional<HandleTable::Launchable> HandleTable::resolve_launchable(uint64_t handle) {
  const Kind kind = cuda::kind_of(handle);
  // The driver accepts a CUkernel in place of a CUfunction, and cudart relies on that.
  if (kind != Kind::function && kind != Kind::kernel) return std::nullopt;
  Entry* const entry = find(handle);
  if (!entry) return std::nullopt;
  return Launchable{handle, entry->object, entry->owner, entry->context, &entry->memory};
}

StreamState* HandleTable::find_stream(uint64_t handle) {
  StreamState* state = nullptr;
  // 0 and CU_STREAM_LEGACY; the client creates an ordinary stream for each per-thread stream (2)
  if (handle <= 1) {
    if (ContextState* const context = contexts_.current()) state = &context->legacy;
  } else if (cuda::kind_of(handle) == Kind::stream) {
    if (Entry* const entry = find(handle)) state = entry->stream;
  }
  if (state) contexts_.current_command().uses(state->handle);
  return state;
}

void HandleTable::bind_owned(Kind kind, uint64_t handle, void* object, uint64_t owner) {
  const uint32_t index = cuda::index_of(handle);
  if (index >= kMaxHandles || (handle & ~kHandleBits) != 0 || cuda::kind_of(handle) != kind) {
    destroy(kind, object);
    broken_ = true;
    return;
  }
  if (index / kPageEntries >= pages_.size()) pages_.resize(index / kPageEntries + 1);
  auto& page = pages_[index / kPageEntries];
  if (!page) page = std::make_unique<Page>();
  Entry& entry = (*page)[index % kPageEntries];
  if (entry.handle != 0 && needed_ && needed_(entry.handle)) {
    kept_for_backlog_.emplace(entry.handle, entry);
    entry = {};
  }
  if (entry.handle != 0) {
    // The client reuses the index because it takes the object for destroyed, but destroying it has failed.
    void* const old = entry.object;
    const Kind old_kind = cuda::kind_of(entry.handle);
    if (old_kind == Kind::context) {
      destroy(kind, object);
      broken_ = true;
      return;
    }
    if (entry.stream && on_stream_destroy_) on_stream_destroy_(*entry.stream);
    destroy(old_kind, old);
    forget(entry);
    if (owner != 0 && !find(owner)) {  // the index was the owner's, and the object is gone with it
      broken_ = true;
      return;
    }
  }
  entry.handle = handle;
  entry.object = object;
  ContextState* const current = contexts_.current();
  entry.context = !belongs_to_context(kind) || !current ? nullptr
                  : kind == Kind::stream                ? current
                                                        : &current->owner();
  entry.owner = owner;
  if (owner != 0) {
    // The object belongs to its module's context, whichever context is current.
    if (const Entry* const code = find(owner); code && code->context) entry.context = code->context;
    adopt_child(owner, handle);
  }
  if (kind == Kind::stream && entry.context) {
    auto state = std::make_unique<StreamState>();
    state->context = entry.context;
    state->stream = static_cast<CUstream>(object);
    state->handle = handle;
    entry.stream = state.get();
    entry.context->streams[state->stream] = std::move(state);
  }
  ++size_;
  count(kind, 1);
}

void HandleTable::count(Kind kind, int change) {
  const auto amount = static_cast<uint32_t>(change);  // unsigned addition also subtracts
  if (kind == Kind::stream) counters_.streams.fetch_add(amount, std::memory_order_relaxed);
  if (kind == Kind::module || kind == Kind::library)
    counters_.modules.fetch_add(amount, std::memory_order_relaxed);
}

void HandleTable::adopt_child(uint64_t owner, uint64_t handle) {
  auto& children = children_[owner];
  // A client may bind the same index repeatedly; keep the list proportional to the number of live objects.
  if (children.size() > 2 * size_ + kPageEntries) {
    std::sort(children.begin(), children.end());
    children.erase(std::unique(children.begin(), children.end()), children.end());
    std::erase_if(children, [this](uint64_t child) { return !find(child); });
  }
  children.push_back(handle);
}

void HandleTable::forget(Entry& entry) {
  if (entry.stream) {
    auto& context = *entry.stream->context;
    if (entry.stream->used) std::erase(context.used, entry.stream);
    context.streams.erase(entry.stream->stream);
  }
  const Kind kind = cuda::kind_of(entry.handle);
  if ((kind == Kind::module || kind == Kind::library) && code_unloaded_) code_unloaded_(entry.handle);
  const uint64_t handle = std::exchange(entry, {}).handle;
  kept_for_backlog_.erase(handle);
  --size_;
  count(kind, -1);
}

void HandleTable::unbind(uint64_t handle) {
  Entry* const entry = find(handle);
  if (!entry) return;
  forget(*entry);
  if (auto children = children_.extract(handle)) {
    for (const uint64_t child : children.mapped()) unbind(child);
  }
}

uint64_t HandleTable::owner_of(uint64_t handle) const {
  const Entry* const entry = find(handle);
  return entry ? entry->owner : 0;
}

// `visit` may remove the entry.
template <class F>
void HandleTable::for_each_entry(F&& visit) {
  for (auto& page : pages_) {
    if (!page) continue;
    for (Entry& entry : *page) {
      if (entry.handle != 0) visit(entry);
    }
  }
  for (auto at = kept_for_backlog_.begin(); at != kept_for_backlog_.end();) visit((at++)->second);
}

void HandleTable::replace(Kind kind, const std::unordered_map<void*, void*>& objects) {
  for_each_entry([&](Entry& entry) {
    if (cuda::kind_of(entry.handle) != kind) return;
    if (const auto found = objects.find(entry.object); found != objects.end()) entry.object = found->second;
  });
}

void HandleTable::destroy(Kind kind, void* object) {
  switch (kind) {
    case Kind::stream: api_.cuStreamDestroy_v2(static_cast<CUstream>(object)); break;
    case Kind::event: api_.cuEventDestroy_v2(static_cast<CUevent>(object)); break;
    case Kind::module: api_.cuModuleUnload(static_cast<CUmodule>(object)); break;
#if CUDA_VERSION >= 12000
    case Kind::library:
      if (api_.cuLibraryUnload) api_.cuLibraryUnload(static_cast<CUlibrary>(object));
      break;
#else
    case Kind::library: break;
#endif
    case Kind::memory:
      if (release_memory_) {
        release_memory_(static_cast<CUmemGenericAllocationHandle>(reinterpret_cast<uintptr_t>(object)));
      }
      break;
    case Kind::memory_pool:
      if (api_.cuMemPoolDestroy) api_.cuMemPoolDestroy(static_cast<CUmemoryPool>(object));
      break;
    case Kind::graph:
      if (api_.cuGraphDestroy) api_.cuGraphDestroy(static_cast<CUgraph>(object));
      break;
    case Kind::graph_exec:
      if (api_.cuGraphExecDestroy) api_.cuGraphExecDestroy(static_cast<CUgraphExec>(object));
      break;
    case Kind::array:
    case Kind::mipmapped_array:
      if (destroy_array_) destroy_array_(object);
      break;
    case Kind::linker:  // owned by Linkers
    case Kind::green_context:
    case Kind::resource_description:  // the driver has no call to destroy it
    case Kind::none:
    case Kind::context:  // owned by Contexts
    case Kind::function:
    case Kind::kernel:
    case Kind::graph_node:
    case Kind::graph_condition:
    case Kind::upload:
    case Kind::texture_reference:  // owned by their module or context
    case Kind::surface_reference: break;
  }
}

void HandleTable::destroy_where(const ContextState* context) {
  constexpr Kind kOrder[] = {Kind::graph_node,
                             Kind::graph_exec,
                             Kind::graph,
                             Kind::stream,
                             Kind::event,
                             Kind::function,
                             Kind::texture_reference,
                             Kind::surface_reference,
                             Kind::module,
                             Kind::library,
                             Kind::array,
                             Kind::mipmapped_array,
                             Kind::memory,
                             Kind::memory_pool};
  for (const Kind kind : kOrder) {
    for_each_entry([&](Entry& entry) {
      if (cuda::kind_of(entry.handle) != kind || (context && entry.context != context)) return;
      void* const object = entry.object;
      if (entry.context) contexts_.enter(entry.context);
      children_.erase(entry.handle);
      destroy(kind, object);
      forget(entry);
    });
  }
}

}  // namespace gpupool::worker
