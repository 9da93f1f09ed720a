// Checkpoints of the session's mappings: their contents leave the device, and a restore brings them back to
// the same addresses.
#include <utility>

#include "server/worker/memory/device_memory.h"

namespace gpupool::worker {

class DeviceMemory::CheckpointedMapping final : public CheckpointImage::Piece {
 public:
  CheckpointedMapping(DeviceMemory& memory, uint64_t address, Mapping& mapping)
      : Piece(mapping.device, mapping.size, mapping.size),
        memory_(memory),
        address_(address),
        mapping_(mapping) {
    host = mapping.moved;
    borrowed = mapping.moved != nullptr;
  }

  CUresult copy_out(std::byte* to) override {
    return memory_.scrubber_.copy_out(to, address_, bytes, device);
  }
  CUresult leave_device() override {
    mapping_.away = true;
    if (mapping_.memory == 0) return CUDA_SUCCESS;
    if (memory_.windows_) memory_.windows_->drop(address_, bytes);
    memory_.unmapping(address_, bytes);
    const CUresult result = memory_.api_.cuMemUnmap(address_, bytes);
    if (result == CUDA_SUCCESS) memory_.api_.cuMemRelease(std::exchange(mapping_.memory, 0));
    return result;
  }
  CUresult restore_to_device(const std::byte* from) override {
    if (mapping_.memory != 0 || mapping_.moved) return CUDA_SUCCESS;
    CUresult result = memory_.create(&mapping_.memory, bytes, memory_.properties_of(device), 0);
    if (result != CUDA_SUCCESS) return result;
    result = memory_.fill(address_, mapping_, from);
    if (result != CUDA_SUCCESS) memory_.api_.cuMemRelease(std::exchange(mapping_.memory, 0));
    return result;
  }
  void on_uncharged() override {
    counts_ = false;
    if (std::exchange(mapping_.moved, nullptr)) {
      --memory_.moved_;
      memory_.ledger_.note_in_host(device, -static_cast<int64_t>(bytes));
    } else if (mapping_.charge == 0) {
      memory_.ledger_.note_movable(device, -static_cast<int64_t>(bytes));
    }
  }
  void on_charged() override {
    mapping_.away = false;
    if (!counts_ && mapping_.charge == 0) memory_.ledger_.note_movable(device, static_cast<int64_t>(bytes));
  }
  CUmemGenericAllocationHandle handle() const override { return mapping_.memory; }
  uint64_t* shared() override { return &mapping_.charge; }

 private:
  DeviceMemory& memory_;
  const uint64_t address_;
  Mapping& mapping_;
  bool counts_ = true;  // the ledger counts the memory as movable or as in host memory
};

void DeviceMemory::add_pieces(CheckpointImage::Pieces& pieces) {
  for (auto& [address, mapping] : mappings_)
    pieces.push_back(std::make_unique<CheckpointedMapping>(*this, address, mapping));
}

}  // namespace gpupool::worker
