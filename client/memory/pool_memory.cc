#include "client/memory/pool_memory.h"

#include <algorithm>

#include "client/memory/idle_memory.h"
#include "client/memory/map_memory.h"
#include "client/streams/stream_marks.h"

namespace gpupool::client {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<std::shared_ptr<PoolMemory>> all;
  std::atomic<bool> any_mapped{false};  // since the start
};
Registry& registry() {
  static Registry* const only = new Registry;
  return *only;
}

std::vector<std::shared_ptr<PoolMemory>> all_pools() {
  if (!registry().any_mapped.load(std::memory_order_relaxed)) return {};
  const std::lock_guard lock(registry().mutex);
  return registry().all;
}

void forget_unused_pools() {
  const std::lock_guard lock(registry().mutex);
  std::erase_if(registry().all, [](const auto& pool) { return pool->is_unused(); });
}

// Returns spans without live blocks to the server.
void release_spans(const Device& device, const std::vector<BlockPool::Span>& spans, bool settled) {
  Session& session = *device.session;
  if (!settled) {
    // Frees take effect in order: these empty ones wait for the pending work of each stream, so the frees of
    // the spans do, too.
    for (const auto& [point, handle] : stream_order().unpassed()) {
      auto* const context = handles().find_as<Context>(Kind::context, handle);
      if (!context || context->session != &session) continue;
      (void)session.post(wire::Command::free_memory, context, wire::FreeMemory{0, 0, wire::kAllStreams});
    }
  }
  for (const BlockPool::Span& span : spans) {
    const auto gone =
        session.addresses().return_span(span.address, settled ? most_idle_bytes(session, device) : 0);
    if (gone.unmap_size == 0) continue;
    uint64_t sequence = 0;
    (void)session.post(wire::Command::free_memory, nullptr,
                       wire::FreeMemory{gone.address, gone.unmap_size, wire::kAllStreams}, &sequence);
    session.addresses().retire_after(gone, sequence);
  }
}

bool is_point_passed(const FreePoint& point) {
  return stream_order().is_passed(point);
}

// The peer bits of wire::MapMemory.
uint32_t peers_of(const std::map<int, CUmemAccess_flags>& access) {
  uint32_t bits = 0;
  for (const auto& [ordinal, flags] : access) {
    const int number = find_device(ordinal)->server_ordinal;
    if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && number < 32) bits |= 1u << number;
  }
  return bits;
}

uint64_t to_multiple(uint64_t value, uint64_t to) {
  return (value + to - 1) / to * to;
}

}  // namespace

std::shared_ptr<PoolMemory> PoolMemory::create(Device& device, uint64_t max_size) {
  auto made =
      std::make_shared<PoolMemory>(device, to_multiple(max_size, device.session->addresses().granularity()));
  const std::lock_guard lock(registry().mutex);
  registry().all.push_back(made);
  return made;
}

uint64_t PoolMemory::used() const {
  uint64_t sum = 0;
  for (const auto& [context, blocks] : blocks_) sum += blocks.used();
  return sum;
}

uint64_t PoolMemory::reserved() const {
  uint64_t sum = mapping_;
  for (const auto& [context, blocks] : blocks_) sum += blocks.reserved();
  return sum;
}

void PoolMemory::note_high_marks() {
  used_high_ = std::max(used_high_, used());
  reserved_high_ = std::max(reserved_high_, reserved());
}

std::optional<uint64_t> PoolMemory::reuse(uint64_t context, uint64_t stream, uint64_t bytes,
                                          bool own_dependency) {
  const std::lock_guard lock(mutex_);
  const bool follows = own_dependency || follow_events_ != 0;
  const auto block = blocks_[context].allocate(bytes, [&](const FreePoint& point) {
    return point.settled() || point.stream == stream || is_point_passed(point) ||
           (follows && stream_order().is_ordered_after(stream, point));
  });
  if (block) note_high_marks();
  return block;
}

std::optional<FreePoint> PoolMemory::best_fit(uint64_t context, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  return blocks_[context].best_fit(bytes);
}

CUresult PoolMemory::allocate(Context& context, CUstream stream, uint64_t bytes, Allocation about,
                              CUdeviceptr* address) {
  Session& session = *context.session;
  if (const CUresult result = session.before_call(&context); result != CUDA_SUCCESS) return result;
  if (!address || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (device_.session != &session) return CUDA_ERROR_NOT_SUPPORTED;
  about.context = context.owner().handle;
  about.device = &device_;
  about.pool_memory = this;
  about.size = bytes;
  auto block = reuse(about.context, order_key(context, stream), bytes);
  if (!block) {
    const CUresult result = grow(context, stream, bytes, about, &block);
    if (result != CUDA_SUCCESS) return result;
  }
  about.address = *address = *block;
  session.addresses().add_pooled(about);
  return CUDA_SUCCESS;
}

// Called when no free block is usable. Tries the alternatives in the order of the CUDA programming guide:
// opportunistic reuse, new memory, reuse with an internal dependency.
CUresult PoolMemory::grow(Context& context, CUstream stream, uint64_t bytes, const Allocation& about,
                          std::optional<uint64_t>* block) {
  const uint64_t key = order_key(context, stream);
  const auto reused = [&](bool own_dependency = false) {
    return (*block = reuse(about.context, key, bytes, own_dependency)).has_value();
  };
  if (const auto point = opportunistic_ != 0 ? best_fit(about.context, bytes) : std::nullopt) {
    if (const CUresult result = ask_passed(*point); result != CUDA_SUCCESS) return result;
    if (reused()) return CUDA_SUCCESS;
  }
  CUresult result = map_span(context, bytes, about, block);
  if (result != CUDA_ERROR_OUT_OF_MEMORY) return result;
  if (give_back_idle(*context.session, device_, false)) {
    result = map_span(context, bytes, about, block);
    if (result != CUDA_ERROR_OUT_OF_MEMORY) return result;
  }
  if (const auto point = internal_dependencies_ != 0 ? best_fit(about.context, bytes) : std::nullopt) {
    if (wait_for_point(context, stream, *point) && reused(true)) {
      quota_refusals().forget();
      return CUDA_SUCCESS;
    }
  }
  return give_back_idle(*context.session, device_, true) ? map_span(context, bytes, about, block) : result;
}

CUresult PoolMemory::map_span(Context& context, uint64_t bytes, const Allocation& about,
                              std::optional<uint64_t>* block) {
  AddressSpace& addresses = context.session->addresses();
  const uint64_t size = to_multiple(bytes, addresses.granularity());
  std::map<int, CUmemAccess_flags> access;
  {
    const std::lock_guard lock(mutex_);
    if (size < bytes || (max_size_ != 0 && (size > max_size_ || reserved() > max_size_ - size)))
      return CUDA_ERROR_OUT_OF_MEMORY;
    mapping_ += size;
    access = access_;
  }
  bool mapped = true;
  CUresult result = CUDA_SUCCESS;
  const auto place = addresses.reserve_span(size, about);
  if (!place) {
    result = CUDA_ERROR_OUT_OF_MEMORY;
  } else if (place->map_size == 0) {
    for (const auto& [ordinal, flags] : access)
      post_access(place->address, size, *find_device(ordinal), flags);
  } else {
    result = map_memory(*context.session, context, device_, *place, peers_of(access), &mapped);
    if (mapped)
      addresses.mapped(*place);
    else
      addresses.abandon_span(place->address);
  }
  const std::lock_guard lock(mutex_);
  mapping_ -= size;
  if (!place || !mapped) return result;
  registry().any_mapped.store(true, std::memory_order_relaxed);
  blocks_[about.context].add_span({place->address, size}, result == CUDA_SUCCESS ? bytes : 0);
  note_high_marks();
  if (result == CUDA_SUCCESS) *block = place->address;
  return result;
}

void PoolMemory::free(const Allocation& freed, const FreePoint& point) {
  const auto self = shared_from_this();  // the last allocation of an abandoned pool keeps it alive
  bool abandoned = false;
  {
    const std::lock_guard lock(mutex_);
    const auto blocks = blocks_.find(freed.context);
    if (blocks != blocks_.end()) blocks->second.free(freed.address, point);
    abandoned = abandoned_;
  }
  if (abandoned) abandon();
}

bool PoolMemory::trim(uint64_t keep, bool include_unsettled) {
  std::vector<BlockPool::Span> spans;
  {
    const std::lock_guard lock(mutex_);
    uint64_t excess = reserved() - std::min(reserved(), keep);
    for (auto& [context, blocks] : blocks_) {
      blocks.settle(is_point_passed);
      for (const auto& span :
           excess != 0 ? blocks.take_free_spans(excess, include_unsettled) : std::vector<BlockPool::Span>()) {
        excess -= std::min(excess, span.size);
        spans.push_back(span);
      }
    }
  }
  release_spans(device_, spans, !include_unsettled);
  return !spans.empty();
}

void PoolMemory::trim_to_threshold() {
  uint64_t keep = 0;
  {
    const std::lock_guard lock(mutex_);
    keep = release_threshold_;
  }
  trim(keep);
}

void PoolMemory::abandon() {
  const auto self = shared_from_this();  // the registry may hold the last reference
  {
    const std::lock_guard lock(mutex_);
    abandoned_ = true;
    release_threshold_ = 0;
  }
  trim(0);
  trim(0, true);
  forget_unused_pools();
}

bool PoolMemory::is_unused() const {
  const std::lock_guard lock(mutex_);
  return abandoned_ && reserved() == 0;
}

void PoolMemory::forget_context(uint64_t context) {
  const std::lock_guard lock(mutex_);
  blocks_.erase(context);
}

CUresult PoolMemory::get(CUmemPool_attribute attribute, void* value) const {
  const std::lock_guard lock(mutex_);
  const auto give = [value](auto number) {
    std::memcpy(value, &number, sizeof number);
    return CUDA_SUCCESS;
  };
  switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: return give(release_threshold_);
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES: return give(follow_events_);
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC: return give(opportunistic_);
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: return give(internal_dependencies_);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: return give(reserved());
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: return give(reserved_high_);
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: return give(used());
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: return give(used_high_);
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult PoolMemory::set(CUmemPool_attribute attribute, const void* value) {
  const std::lock_guard lock(mutex_);
  const auto take = [value](auto* number) {
    std::memcpy(number, value, sizeof *number);
    return CUDA_SUCCESS;
  };
  uint64_t mark = 0;  // high-water marks can only be reset
  switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: return take(&release_threshold_);
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES: return take(&follow_events_);
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC: return take(&opportunistic_);
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: return take(&internal_dependencies_);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      if (take(&mark); mark != 0) return CUDA_ERROR_INVALID_VALUE;
      reserved_high_ = reserved();
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      if (take(&mark); mark != 0) return CUDA_ERROR_INVALID_VALUE;
      used_high_ = used();
      return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

void PoolMemory::post_access(uint64_t address, uint64_t size, const Device& device, CUmemAccess_flags flags) {
  CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, device.server_ordinal}, flags};
  (void)rows::cuMemSetAccess::at({device_.session, nullptr}, {address, size, &access, 1});
}

void PoolMemory::set_access(const Device& device, CUmemAccess_flags flags) {
  if (&device == &device_) return;
  std::vector<BlockPool::Span> spans;
  {
    const std::lock_guard lock(mutex_);
    access_[device.ordinal] = flags;
    for (const auto& [context, blocks] : blocks_) {
      for (const auto& span : blocks.spans()) spans.push_back(span);
    }
  }
  for (const auto& span : spans) post_access(span.address, span.size, device, flags);
}

CUmemAccess_flags PoolMemory::access(int device) const {
  const std::lock_guard lock(mutex_);
  const auto found = access_.find(device);
  const auto otherwise =
      device == device_.ordinal ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return found == access_.end() ? otherwise : found->second;
}

FreePoint freed_in(const Context& context, CUstream stream) {
  const Context& own = stream_context(context, stream);
  return stream_order().freed(order_key(own, stream), own.handle, own.owner().handle);
}

void after_wait(const StreamOrder::Points& points) {
  const auto pools = all_pools();
  if (pools.empty()) return;
  stream_order().passed(points);
  destroy_stale_marks();
  for (const auto& pool : pools) pool->trim_to_threshold();
}

void forget_pool_memory_of(uint64_t context) {
  stream_order().context_destroyed(context);
  forget_marks_of(context);
  for (const auto& pool : all_pools()) pool->forget_context(context);
  forget_unused_pools();
}

bool trim_pools(const Device& device, bool include_unsettled) {
  bool any = false;
  for (const auto& pool : all_pools()) {
    if (&pool->device() == &device) any = pool->trim(0, include_unsettled) || any;
  }
  return any;
}

}  // namespace gpupool::client
