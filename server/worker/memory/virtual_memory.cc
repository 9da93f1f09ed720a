#include "server/worker/memory/virtual_memory.h"

#include <algorithm>
#include <utility>

namespace gpupool::worker {

VirtualMemory::Allocation::~Allocation() {
  if (away) return;
#if CUDA_VERSION >= 12010
  for (const Bound& one : bound) api_.cuMulticastUnbind(handle, one.memory->device, one.offset, one.size);
#endif
  if (is_multicast()) {
    if (handle != 0) api_.cuMemRelease(handle);
    if (multicasts) --*multicasts;
    return;
  }
  if (handle != 0) api_.cuMemRelease(handle);
  if (shared != 0)
    memory_.leave_charge(device, bytes, shared);
  else
    memory_.uncharge(device, bytes);
}

CUmemGenericAllocationHandle VirtualMemory::add(std::shared_ptr<Allocation> allocation) {
  created_[++last_] = std::move(allocation);
  return last_;
}

CUresult VirtualMemory::create(CUmemGenericAllocationHandle* handle, size_t size,
                               const CUmemAllocationProp& properties, unsigned long long flags) {
  if (!api_.cuMemRelease) return CUDA_ERROR_NOT_SUPPORTED;
  if (size == 0) return CUDA_ERROR_INVALID_VALUE;
  const int device = properties.location.id;
  if (const CUresult result = memory_.charge(device, size); result != CUDA_SUCCESS) return result;
  auto made = std::make_shared<Allocation>(api_, memory_, device, size, properties.requestedHandleTypes);
  made->properties = properties;
  made->flags = flags;
  // Workers pass memory on as descriptors, whatever kind of handle the client requests.
  if (properties.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE) {
    if (!memory_.shareable(device)) {
      memory_.undo_peak(device);
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    made->properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  }
  const CUresult result = memory_.create(&made->handle, size, made->properties, flags);
  if (result != CUDA_SUCCESS) memory_.undo_peak(device);
  if (result != CUDA_SUCCESS) return result;
  // The handle is unknown until the memory is zero.
  const CUmemGenericAllocationHandle number = *handle = ++last_;
  const CUmemGenericAllocationHandle memory = made->handle;
  return scrubber_.zero_unmapped(memory, size, properties.location,
                                 [this, number, made = std::move(made)](CUresult zeroed) {
                                   if (zeroed == CUDA_SUCCESS) created_[number] = made;
                                   return zeroed;
                                 });
}

CUresult VirtualMemory::release(CUmemGenericAllocationHandle handle) {
  // For a client that did not wait for the reply to cuMemCreate.
  if (!created_.contains(handle)) scrubber_.finish_all();
  const auto known = created_.find(handle);
  if (known == created_.end()) return CUDA_ERROR_INVALID_VALUE;
  Allocation& allocation = *known->second;
  if ((allocation.shared != 0 || allocation.is_multicast()) && !allocation.away)
    allocation.of_others |= memory_.releasing(allocation.handle);
  created_.erase(known);
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::map(CUdeviceptr address, size_t size, size_t offset,
                            CUmemGenericAllocationHandle handle, unsigned long long flags) {
  const auto known = created_.find(handle);
  if (known == created_.end()) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = api_.cuMemMap(address, size, offset, known->second->handle, flags);
  if (result == CUDA_SUCCESS) mapped_[address] = {known->second, size, offset, {}};
  return result;
}

CUresult VirtualMemory::unmap(CUdeviceptr address, size_t size) {
  memory_.unmapping(address, size);
  const CUresult result = api_.cuMemUnmap(address, size);
  if (result == CUDA_SUCCESS)
    mapped_.erase(mapped_.lower_bound(address), mapped_.lower_bound(address + size));
  return result;
}

bool VirtualMemory::own_device_may_write(const Mapping& mapping) {
  return std::any_of(mapping.access.begin(), mapping.access.end(), [&](const CUmemAccessDesc& one) {
    return one.location.id == mapping.allocation->device && one.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  });
}

std::vector<VirtualMemory::Name> VirtualMemory::hidden() const {
  std::map<const Allocation*, Name> names;
  std::map<const Allocation*, std::map<uint64_t, uint64_t>>
      readable;  // ends of mapped parts, by their starts
  for (const auto& [address, mapping] : mapped_) {
    names[mapping.allocation.get()].address = address;
    if (!own_device_may_write(mapping)) continue;
    uint64_t& end = readable[mapping.allocation.get()][mapping.offset];
    end = std::max(end, mapping.offset + mapping.size);
  }
  for (const auto& [handle, allocation] : created_) names[allocation.get()] = {handle, 0};
  std::vector<Name> found;
  for (const auto& [allocation, name] : names) {
    uint64_t covered = 0;
    for (const auto& [start, end] : readable[allocation]) {
      if (start <= covered) covered = std::max(covered, end);
    }
    if (covered < allocation->bytes) found.push_back(name);
  }
  return found;
}

std::shared_ptr<VirtualMemory::Allocation> VirtualMemory::find(const Name& name) const {
  if (name.handle != 0) {
    const auto known = created_.find(name.handle);
    return known == created_.end() ? nullptr : known->second;
  }
  const auto mapping = mapped_.find(name.address);
  return mapping == mapped_.end() ? nullptr : mapping->second.allocation;
}

CUresult VirtualMemory::visit(const Name& name,
                              const std::function<CUresult(CUdeviceptr, uint64_t, int)>& visit) {
  const auto found = find(name);
  if (!found || found->is_multicast() || found->away) return CUDA_ERROR_INVALID_VALUE;
  return scrubber_.visit_unmapped(
      found->handle, found->bytes, found->properties.location,
      [&](CUdeviceptr place) { return visit(place, found->bytes, found->device); });
}

void VirtualMemory::for_each_mapping(const std::function<void(uint64_t, uint64_t, int)>& visit) const {
  for (const auto& [address, mapping] : mapped_) {
    if (own_device_may_write(mapping)) visit(address, mapping.size, mapping.allocation->device);
  }
}

CUresult VirtualMemory::set_access(CUdeviceptr address, size_t size,
                                   const std::vector<CUmemAccessDesc>& access) {
  if (!api_.cuMemSetAccess) return CUDA_ERROR_NOT_SUPPORTED;
  memory_.unmapping(address, size);
  const CUresult result = api_.cuMemSetAccess(address, size, access.data(), access.size());
  if (result != CUDA_SUCCESS) return result;
  for (auto mapping = mapped_.lower_bound(address);
       mapping != mapped_.end() && mapping->first - address < size; ++mapping) {
    auto& known = mapping->second.access;
    for (const CUmemAccessDesc& one : access) {
      const auto same = std::find_if(known.begin(), known.end(), [&](const CUmemAccessDesc& other) {
        return other.location.type == one.location.type && other.location.id == one.location.id;
      });
      if (same != known.end())
        same->flags = one.flags;
      else
        known.push_back(one);
    }
  }
  return result;
}

CUresult VirtualMemory::map_at(CUdeviceptr address, const Mapping& mapping) {
  CUresult result = api_.cuMemMap(address, mapping.size, mapping.offset, mapping.allocation->handle, 0);
  if (result != CUDA_SUCCESS || mapping.access.empty()) return result;
  result = api_.cuMemSetAccess(address, mapping.size, mapping.access.data(), mapping.access.size());
  if (result != CUDA_SUCCESS) api_.cuMemUnmap(address, mapping.size);
  return result;
}

CUresult VirtualMemory::share(CUmemGenericAllocationHandle handle, ExportedHandles::Memory* memory) {
  const auto known = created_.find(handle);
  if (known == created_.end() || known->second->handle_types == CU_MEM_HANDLE_TYPE_NONE)
    return CUDA_ERROR_INVALID_VALUE;
  Allocation& allocation = *known->second;
  const CUresult result = allocation.is_multicast()
                              ? CUDA_SUCCESS
                              : memory_.share_charge(allocation.device, allocation.bytes, &allocation.shared);
  if (result != CUDA_SUCCESS) return result;
  *memory = {allocation.handle, allocation.bytes, allocation.device, allocation.handle_types,
             allocation.shared};
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::import(int descriptor, const ExportedHandles::Memory& memory,
                               CUmemGenericAllocationHandle* handle) {
  if (!api_.cuMemImportFromShareableHandle || !api_.cuMemRelease) return CUDA_ERROR_NOT_SUPPORTED;
  if (memory.is_multicast() && multicasts_ >= kMaxMulticasts) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult charged =
      memory.is_multicast() ? CUDA_SUCCESS : memory_.join_charge(memory.device, memory.size, memory.charge);
  if (charged != CUDA_SUCCESS) return charged;
  auto imported = std::make_shared<Allocation>(api_, memory_, memory.device, memory.size, memory.handle_types,
                                               memory.charge);
  imported->of_others = true;
  if (memory.is_multicast()) {
    imported->multicasts = &multicasts_;
    ++multicasts_;
  }
  const CUresult result = api_.cuMemImportFromShareableHandle(
      &imported->handle, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (result == CUDA_SUCCESS) *handle = add(std::move(imported));
  return result;
}

void VirtualMemory::drop_all() {
  for (const auto& [address, mapping] : mapped_) {
    if (!mapping.allocation->away) api_.cuMemUnmap(address, mapping.size);
  }
  mapped_.clear();
}

bool VirtualMemory::shares() const {
  return std::any_of(created_.begin(), created_.end(),
                     [](const auto& known) { return known.second->of_others; }) ||
         std::any_of(mapped_.begin(), mapped_.end(),
                     [](const auto& known) { return known.second.allocation->of_others; });
}

// --- Checkpoints ---

// An allocation with its mappings. Its contents are copied through a temporary mapping, because the client
// may have mapped only part of it, without access rights, or not at all.
class VirtualMemory::CheckpointedMemory final : public CheckpointImage::Piece {
 public:
  CheckpointedMemory(VirtualMemory& memory, std::shared_ptr<Allocation> allocation)
      : Piece(allocation->device, allocation->bytes, allocation->bytes),
        memory_(memory),
        allocation_(std::move(allocation)) {}
  void add(CUdeviceptr address, const Mapping& mapping) {
    mappings_.emplace_back(address, &mapping);
    mapped_ = mappings_.size();
  }

  CUresult copy_out(std::byte* to) override {
    return memory_.scrubber_.visit_unmapped(
        allocation_->handle, bytes, allocation_->properties.location,
        [&](CUdeviceptr place) { return memory_.scrubber_.copy_out(to, place, bytes, device); });
  }
  CUresult leave_device() override {
    allocation_->away = true;
    for (; mapped_ > 0; --mapped_) {
      const auto& [address, mapping] = mappings_[mapped_ - 1];
      memory_.memory_.unmapping(address, mapping->size);
      if (const CUresult result = memory_.api_.cuMemUnmap(address, mapping->size); result != CUDA_SUCCESS)
        return result;
    }
    if (allocation_->handle != 0) memory_.api_.cuMemRelease(std::exchange(allocation_->handle, 0));
    return CUDA_SUCCESS;
  }
  CUresult restore_to_device(const std::byte* from) override {
    if (allocation_->handle == 0) {
      CUresult result =
          memory_.memory_.create(&allocation_->handle, bytes, allocation_->properties, allocation_->flags);
      if (result != CUDA_SUCCESS) return result;
      result = memory_.scrubber_.visit_unmapped(
          allocation_->handle, bytes, allocation_->properties.location,
          [&](CUdeviceptr place) { return memory_.scrubber_.copy_in(place, from, bytes, device); });
      if (result != CUDA_SUCCESS) return result;
    }
    for (; mapped_ < mappings_.size(); ++mapped_) {
      const auto& [address, mapping] = mappings_[mapped_];
      if (const CUresult result = memory_.map_at(address, *mapping); result != CUDA_SUCCESS) return result;
    }
    return CUDA_SUCCESS;
  }
  void on_charged() override { allocation_->away = false; }
  CUmemGenericAllocationHandle handle() const override { return allocation_->handle; }
  uint64_t* shared() override { return &allocation_->shared; }

 private:
  VirtualMemory& memory_;
  const std::shared_ptr<Allocation> allocation_;
  std::vector<std::pair<CUdeviceptr, const Mapping*>> mappings_;
  size_t mapped_ = 0;  // number of entries of mappings_ that are mapped
};

void VirtualMemory::add_pieces(CheckpointImage::Pieces& pieces) {
  std::map<const Allocation*, CheckpointedMemory*> known;
  const auto piece_of = [&](const std::shared_ptr<Allocation>& allocation) -> CheckpointedMemory& {
    CheckpointedMemory*& piece = known[allocation.get()];
    if (!piece) {
      auto made = std::make_unique<CheckpointedMemory>(*this, allocation);
      piece = made.get();
      pieces.push_back(std::move(made));
    }
    return *piece;
  };
  for (const auto& [handle, allocation] : created_) piece_of(allocation);
  for (const auto& [address, mapping] : mapped_) piece_of(mapping.allocation).add(address, mapping);
}

}  // namespace gpupool::worker
