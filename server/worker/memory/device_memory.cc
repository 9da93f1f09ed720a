#include "server/worker/memory/device_memory.h"

#include <sys/random.h>
#include <time.h>

#include <algorithm>

namespace gpupool::worker {
namespace {

// Memory that the client has freed counts as free, because CUDA's cuMemFree would have waited. So an
// allocation waits for pending frees, but for a limited time: they may depend on something that the client
// has yet to send.
constexpr std::chrono::seconds kLongestSettle{10};
constexpr timespec kPollEvery{0, 100'000};  // polling interval; event waits have no timeout
// Per call of reserve_addresses(), because a driver may ignore every address hint.
constexpr int kMostReservations = 64;
constexpr uint64_t kSmallestAvoided = 1u << 30;

}  // namespace

void DeviceMemory::take_range(uint64_t base, uint64_t size) {
  base_ = base;
  size_ = size;
}

CUresult DeviceMemory::move(uint64_t preferred, uint64_t size) {
  if (!api_.cuMemAddressReserve || !api_.cuMemAddressFree) return CUDA_ERROR_NOT_SUPPORTED;
  collect();
  if (!mappings_.empty() || pending() || size == 0) return CUDA_ERROR_INVALID_VALUE;
  CUdeviceptr got = 0;
  const CUresult result = api_.cuMemAddressReserve(&got, size, 0, preferred, 0);
  if (result != CUDA_SUCCESS) return result;
  release_range();
  take_range(got, size);
  return CUDA_SUCCESS;
}

void DeviceMemory::reserve_addresses(uint64_t base, uint64_t size) {
  if (!api_.cuMemAddressReserve || !api_.cuMemAddressFree) return;
  std::deque<std::pair<uint64_t, uint64_t>> wanted{{base, size}};
  for (int attempt = 0; attempt < kMostReservations && !wanted.empty() && avoided_.size() < kMaxAvoided;
       ++attempt) {
    const auto [at, bytes] = wanted.front();
    wanted.pop_front();
    if (bytes == 0) continue;
    CUdeviceptr got = 0;
    const CUresult result = api_.cuMemAddressReserve(&got, bytes, 0, at, 0);
    if (result == CUDA_SUCCESS && got == at) {
      avoided_.emplace_back(at, bytes);
      continue;
    }
    if (result == CUDA_SUCCESS) api_.cuMemAddressFree(got, bytes);
    const uint64_t half = bytes / 2 / kSmallestAvoided * kSmallestAvoided;
    if (half == 0) continue;
    wanted.emplace_back(at, half);
    wanted.emplace_back(at + half, bytes - half);
  }
}

void DeviceMemory::release_avoided() {
  for (const auto& [base, size] : avoided_) api_.cuMemAddressFree(base, size);
  avoided_.clear();
}

void DeviceMemory::release_range() {
  if (size_ != 0 && api_.cuMemAddressFree) api_.cuMemAddressFree(base_, size_);
  take_range(0, 0);
}

bool DeviceMemory::is_mapped(uint64_t address, uint64_t size) const {
  const auto next = mappings_.lower_bound(address);
  if (next != mappings_.end() && next->first < address + size) return true;
  return next != mappings_.begin() && std::prev(next)->first + std::prev(next)->second.size > address;
}

CUresult DeviceMemory::map(uint64_t address, uint64_t size, int device, uint64_t granularity,
                           uint32_t peers) {
  if (!api_.cuMemCreate || !api_.cuMemMap || !api_.cuMemSetAccess || !api_.cuMemUnmap || !api_.cuMemRelease) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (granularity == 0) return CUDA_ERROR_NOT_SUPPORTED;
  if (size == 0 || address % granularity != 0 || size % granularity != 0 || !in_range(address, size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (mappings_.size() >= kMaxMappings) return CUDA_ERROR_OUT_OF_MEMORY;
  if (is_mapped(address, size)) return CUDA_ERROR_INVALID_VALUE;
  const CUmemAllocationProp wanted = properties_of(device);
  ContextState* const current = contexts_.current();
  Mapping mapping{size, 0, current ? &current->owner() : nullptr, device};
  mapping.peers = peers;
  CUresult result = charge(device, size);
  if (result != CUDA_SUCCESS) return result;
  result = create(&mapping.memory, size, wanted, 0);
  if (result != CUDA_SUCCESS) return give_back_new(mapping), result;
  if (scrubber_.can_order_streams(device)) return add_new(address, mapping, true);
  return scrubber_.zero_unmapped(mapping.memory, size, wanted.location,
                                 [this, address, mapping](CUresult zeroed) {
                                   if (zeroed == CUDA_SUCCESS) return add_new(address, mapping, false);
                                   give_back_new(mapping);
                                   return zeroed;
                                 });
}

// If the memory was zeroed first, the client may by now have mapped something else at this address or have
// another range.
CUresult DeviceMemory::add_new(uint64_t address, const Mapping& mapping, bool to_be_zeroed) {
  CUresult result = in_range(address, mapping.size) && !is_mapped(address, mapping.size)
                        ? map_at(address, mapping)
                        : CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS && to_be_zeroed) {
    result = scrubber_.start_clear(address, mapping.size);
    if (result != CUDA_SUCCESS) api_.cuMemUnmap(address, mapping.size);
  }
  if (result != CUDA_SUCCESS) return give_back_new(mapping), result;
  mappings_.emplace(address, mapping);
  ledger_.note_movable(mapping.device, static_cast<int64_t>(mapping.size));
  return CUDA_SUCCESS;
}

void DeviceMemory::give_back_new(const Mapping& mapping) {
  uncharge(mapping.device, mapping.size);
  // Memory that the device allocated counts in the peak. By now other charges may have raised the peak
  // further.
  if (mapping.memory == 0) return undo_peak(mapping.device);
  api_.cuMemRelease(mapping.memory);
}

CUmemAllocationProp DeviceMemory::properties_of(int device) const {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  wanted.allocFlags.gpuDirectRDMACapable = supports_gpudirect(device) ? 1 : 0;
  // Any allocation may be shared by cuIpcGetMemHandle later.
  if (shareable(device)) wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return wanted;
}

bool DeviceMemory::shareable(int device) const {
  int yes = 0;
  return api_.cuMemExportToShareableHandle && api_.cuDeviceGetAttribute &&
         api_.cuDeviceGetAttribute(&yes, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                                   device) == CUDA_SUCCESS &&
         yes != 0;
}

CUresult DeviceMemory::share_charge(int device, uint64_t bytes, uint64_t* charge) {
  if (*charge != 0) return CUDA_SUCCESS;
  uint64_t id = 0;
  while (id == 0) {
    if (::getrandom(&id, sizeof id, 0) != sizeof id) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (!ledger_.share(device, bytes, id)) return CUDA_ERROR_OUT_OF_MEMORY;
  *charge = id;
  return CUDA_SUCCESS;
}

CUresult DeviceMemory::join_charge(int device, uint64_t bytes, uint64_t charge) {
  const auto stop = std::chrono::steady_clock::now() + kLongestSettle;
  while (!ledger_.join(device, bytes, charge)) {
    if (wait_for_free(stop)) continue;
    ledger_.note_refusal(device, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return CUDA_SUCCESS;
}

CUresult DeviceMemory::share(uint64_t address, ExportedHandles::Memory* memory, uint64_t* offset) {
  auto found = mappings_.upper_bound(address);
  if (found == mappings_.begin()) return CUDA_ERROR_INVALID_VALUE;
  --found;
  Mapping& mapping = found->second;
  if (address - found->first >= mapping.size) return CUDA_ERROR_INVALID_VALUE;
  if (!shareable(mapping.device) || mapping.moved) return CUDA_ERROR_NOT_SUPPORTED;
  if (const CUresult result = contexts_.await_clears(); result != CUDA_SUCCESS) return result;
  if (mapping.charge == 0) {
    if (const CUresult result = share_charge(mapping.device, mapping.size, &mapping.charge);
        result != CUDA_SUCCESS)
      return result;
    ledger_.note_movable(mapping.device, -static_cast<int64_t>(mapping.size));
    // The device may relocate the memory to share it.
    if (windows_) windows_->drop(found->first, mapping.size);
  }
  *memory = {mapping.memory, mapping.size, mapping.device, CU_MEM_HANDLE_TYPE_NONE, mapping.charge};
  *offset = address - found->first;
  return CUDA_SUCCESS;
}

// The memory may still hold another tenant's data: it must be zeroed before the client can access it.
CUresult DeviceMemory::map_at(uint64_t address, const Mapping& mapping) {
  CUresult result = api_.cuMemMap(address, mapping.size, 0, mapping.memory, 0);
  if (result != CUDA_SUCCESS) return result;
  result = set_access(address, mapping);
  if (result != CUDA_SUCCESS) api_.cuMemUnmap(address, mapping.size);
  return result;
}

// True if new memory should be created for direct access by network cards (GPUDirect RDMA).
bool DeviceMemory::supports_gpudirect(int device) const {
  int yes = 0;
  return windows_ && api_.cuDeviceGetAttribute &&
         api_.cuDeviceGetAttribute(&yes, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
                                   device) == CUDA_SUCCESS &&
         yes != 0;
}

bool DeviceMemory::is_cpu_accessible(uint64_t address, uint64_t size) const {
  if (!cpu_can_access_ || !in_range(address, size)) return false;
  auto mapping = mapping_of(address);
  for (uint64_t covered = address; covered < address + size; ++mapping) {
    if (mapping == mappings_.end() || mapping->first > covered) return false;
    covered = mapping->first + mapping->second.size;
  }
  return true;
}

bool DeviceMemory::register_for_rdma(uint64_t address, uint64_t size, std::vector<DeviceSpan>* spans) {
  if (!windows_ || !in_range(address, size)) return false;
  auto mapping = mapping_of(address);
  for (uint64_t at = address; at < address + size;) {
    if (mapping == mappings_.end() || mapping->first > at) return false;
    const uint64_t end = mapping->first + mapping->second.size;
    const uint64_t window = at / kWindowBytes * kWindowBytes;
    const uint64_t first = std::max(window, mapping->first), last = std::min(window + kWindowBytes, end);
    DeviceSpan& span = spans->emplace_back();
    if (!windows_->use(first, last - first, cpu_can_access_, &span)) return false;
    span.end = std::min(last, address + size);
    at = last;
    if (at == end) ++mapping;
  }
  return true;
}

// Returns the mapping that contains the address, or end().
std::map<uint64_t, DeviceMemory::Mapping>::const_iterator DeviceMemory::mapping_of(uint64_t address) const {
  auto mapping = mappings_.upper_bound(address);
  if (mapping == mappings_.begin()) return mappings_.end();
  --mapping;
  return address - mapping->first < mapping->second.size ? mapping : mappings_.end();
}

CUresult DeviceMemory::charge(int device, uint64_t bytes) {
  if (bytes == 0) return CUDA_SUCCESS;
  const auto stop = std::chrono::steady_clock::now() + kLongestSettle;
  while (!ledger_.reserve(device, bytes)) {
    if (wait_for_free(stop)) continue;
    ledger_.note_refusal(device, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return CUDA_SUCCESS;
}

CUresult DeviceMemory::create(CUmemGenericAllocationHandle* memory, uint64_t size,
                              const CUmemAllocationProp& properties, unsigned long long flags) {
  FullDeviceWaiter::Wait wait{.device = properties.location.id, .bytes = size};
  return create(memory, size, properties, flags, wait);
}

CUresult DeviceMemory::create(CUmemGenericAllocationHandle* memory, uint64_t size,
                              const CUmemAllocationProp& properties, unsigned long long flags,
                              FullDeviceWaiter::Wait& wait) {
  if (!api_.cuMemCreate) return CUDA_ERROR_NOT_SUPPORTED;
  return with_room(wait, [&] { return api_.cuMemCreate(memory, size, &properties, flags); });
}

CUresult DeviceMemory::with_room(int device, uint64_t bytes, const std::function<CUresult()>& attempt) {
  FullDeviceWaiter::Wait wait{.device = device, .bytes = bytes};
  return with_room(wait, attempt);
}

CUresult DeviceMemory::with_room(FullDeviceWaiter::Wait& wait, const std::function<CUresult()>& attempt) {
  const auto stop = std::chrono::steady_clock::now() + kLongestSettle;
  while (true) {
    const CUresult result = attempt();
    if (result != CUDA_ERROR_OUT_OF_MEMORY) return result;
    if (!wait_for_free(stop) && (!full_device_waiter_ || !full_device_waiter_->await(wait))) return result;
  }
}

void DeviceMemory::unmap(const Piece& piece) {
  if (piece.mapping.away) return;
  if (piece.mapping.moved) {
    release_host(piece.mapping);
    return uncharge(piece.mapping.device, piece.mapping.size);
  }
  if (windows_) windows_->drop(piece.address, piece.mapping.size);
  api_.cuMemUnmap(piece.address, piece.mapping.size);
  api_.cuMemRelease(piece.mapping.memory);
  if (piece.mapping.charge != 0)
    return leave_charge(piece.mapping.device, piece.mapping.size, piece.mapping.charge);
  ledger_.note_movable(piece.mapping.device, -static_cast<int64_t>(piece.mapping.size));
  uncharge(piece.mapping.device, piece.mapping.size);
}

CUresult DeviceMemory::free(uint64_t address, uint64_t size, uint64_t sequence, ContextState* context,
                            std::span<StreamState* const> streams, std::vector<CUevent> events) {
  const auto refuse = [&](CUresult why) {
    for (const CUevent event : events) context->events->give(event);
    return why;
  };
  // Only whole, adjacent mappings can be freed.
  const auto first = mappings_.find(address);
  auto last = first;
  uint64_t covered = 0;
  while (size != 0 && covered < size) {
    if (last == mappings_.end() || last->first != address + covered) return refuse(CUDA_ERROR_INVALID_VALUE);
    covered += last->second.size;
    ++last;
  }
  if (covered != size) return refuse(CUDA_ERROR_INVALID_VALUE);
  if (pending_.load(std::memory_order_relaxed) >= kMaxPendingFrees) return refuse(CUDA_ERROR_OUT_OF_MEMORY);
  Free free{sequence, {}};
  for (auto mapping = first; size != 0 && mapping != last; ++mapping) {
    free.pieces.push_back({mapping->first, mapping->second});
    if (mapping->second.charge != 0) releasing(mapping->second.memory);
    moved_ -= mapping->second.moved != nullptr;
  }
  if (size != 0) mappings_.erase(first, last);

  // The memory may still be in the process of being zeroed: wait for that, too.
  ContextState* const clearing = size != 0 ? contexts_.clearing() : nullptr;
  if (!context) context = clearing;
  const CUcontext before = current_context();
  if (clearing) make_current(api_, clearing->object);
  Group group;
  if (context) {
    group.context = context->object;
    group.pool = context->events;
    group.events = std::move(events);
    const auto wait_for = [&](CUstream stream) {
      const CUevent event = group.pool->take();
      if (event && api_.cuEventRecord(event, stream) == CUDA_SUCCESS) return group.events.push_back(event);
      // No event available, or the context is broken; then this returns at once.
      if (event) group.pool->give(event);
      api_.cuStreamSynchronize(stream);
    };
    for (StreamState* const stream : streams) wait_for(stream->stream);
    if (clearing) wait_for(clearing->scrubbing);
  }
  if (clearing) make_current(api_, before);
  {
    const std::lock_guard lock(mutex_);
    if (group.events.empty() && !groups_.empty()) {
      groups_.back().frees.push_back(std::move(free));
    } else {
      group.frees.push_back(std::move(free));
      groups_.push_back(std::move(group));
    }
    pending_.fetch_add(1, std::memory_order_release);
  }
  collect();
  return CUDA_SUCCESS;
}

void DeviceMemory::expect_late(uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  late_.insert(sequence);
}

bool DeviceMemory::passed(Group& group) {
  while (!group.events.empty()) {
    if (group.context != current_context()) make_current(api_, group.context);
    // Any other error means that the context is broken and none of its work runs any more.
    if (api_.cuEventQuery(group.events.back()) == CUDA_ERROR_NOT_READY) return false;
    group.pool->give(group.events.back());
    group.events.pop_back();
  }
  return true;
}

void DeviceMemory::finish(Group& group) {
  for (const Free& free : group.frees) {
    for (const Piece& piece : free.pieces) unmap(piece);
    late_.erase(free.sequence);
    retired_ = std::max(retired_, free.sequence);
  }
  outbox_.set_retired(late_.empty() ? retired_ : std::min(retired_, *late_.begin() - 1));
  pending_.fetch_sub(group.frees.size(), std::memory_order_release);
}

void DeviceMemory::collect() {
  if (!pending()) return;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return;  // another thread is collecting
  const CUcontext before = current_context();
  while (!groups_.empty() && passed(groups_.front())) {
    finish(groups_.front());
    groups_.pop_front();
  }
  make_current(api_, before);
}

bool DeviceMemory::wait_for_free(std::chrono::steady_clock::time_point stop) {
  const Waiting waiting("memory that is being freed");
  const size_t before = pending_.load(std::memory_order_acquire);
  while (true) {
    collect();
    const size_t now = pending_.load(std::memory_order_acquire);
    if (now < before) return true;
    if (now == 0 || std::chrono::steady_clock::now() >= stop) return false;
    ::nanosleep(&kPollEvery, nullptr);
  }
}

void DeviceMemory::settle() {
  const auto stop = std::chrono::steady_clock::now() + kLongestSettle;
  while (wait_for_free(stop)) {
  }
}

void DeviceMemory::drop_context(ContextState& context, bool gone) {
  const auto peers = peers_;
  for (const auto& [accessing, accessed] : peers) {
    if (accessing == &context || accessed == &context) forbid_access(*accessing, *accessed);
  }
  {
    const std::lock_guard lock(mutex_);
    for (Group& group : groups_) {
      if (group.context != context.object || group.events.empty()) continue;
      if (!gone) {
        for (const CUevent event : group.events) group.pool->give(event);
      }
      group.events.clear();
    }
  }
  collect();
  for (auto mapping = mappings_.begin(); mapping != mappings_.end();) {
    if (mapping->second.context != &context) {
      ++mapping;
      continue;
    }
    moved_ -= mapping->second.moved != nullptr;
    if (mapping->second.charge != 0) releasing(mapping->second.memory);
    unmap({mapping->first, mapping->second});
    mapping = mappings_.erase(mapping);
  }
}

void DeviceMemory::drop_all() {
  const std::lock_guard lock(mutex_);
  for (Group& group : groups_) finish(group);
  groups_.clear();
  for (const auto& [address, mapping] : mappings_) {
    if (mapping.charge != 0) releasing(mapping.memory);
    unmap({address, mapping});
  }
  mappings_.clear();
  moved_ = 0;
  variables_.clear();
}

bool DeviceMemory::add_variable(uint64_t owner, uint64_t address, uint64_t size) {
  const auto [first, last] = variables_.equal_range(address);
  for (auto known = first; known != last; ++known) {
    if (known->second.first >= size) return true;
  }
  if (variables_.size() >= kMaxMappings) return false;
  variables_.emplace(address, std::pair(size, owner));
  return true;
}

bool DeviceMemory::owns(uint64_t address, uint64_t size) const {
  if (in_range(address, size)) return true;
  auto after = variables_.upper_bound(address);
  while (after != variables_.begin()) {
    --after;
    const auto& [known, owner] = after->second;
    if (address - after->first <= known && size <= known - (address - after->first)) return true;
    if (address != after->first) break;
  }
  return false;
}

}  // namespace gpupool::worker
