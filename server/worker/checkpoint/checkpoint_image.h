// Contents of a checkpointed session's GPU memory. They are kept in host memory and count in no memory quota
// until all of them are restored; a failed restore restores nothing. Executor's thread; nothing of the
// session may run on the device.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "server/quota/ledger.h"
#include "server/worker/session/outbox.h"
#include "server/worker/sharing/exported_handles.h"

namespace gpupool::worker {

class CheckpointImage {
 public:
  // One allocation or array. Created by the component that owns it (DeviceMemory, VirtualMemory, Arrays),
  // which outlives the piece and does not touch the object while it is off the device.
  class Piece {
   public:
    Piece(int device, uint64_t bytes, uint64_t charged) : device(device), bytes(bytes), charged(charged) {}
    virtual ~Piece() = default;
    Piece(const Piece&) = delete;
    Piece& operator=(const Piece&) = delete;

    virtual CUresult copy_out(std::byte* to) = 0;
    // Frees the object's device memory. After an error some of it may remain.
    virtual CUresult leave_device() = 0;
    // Allocates the object's missing device memory and fills it with the data from copy_out(). After an error
    // some of it may be missing.
    virtual CUresult restore_to_device(const std::byte* from) = 0;
    // on_uncharged(): the quota no longer counts the memory. on_charged(): the quota counts it again, or
    // still does because the checkpoint failed.
    virtual void on_uncharged() {}
    virtual void on_charged() {}
    // For memory that other sessions may import: its handle, and the id for quota::Ledger::share(). Null or
    // 0: not shared. restore() sets the id to 0 if the memory cannot be shared again.
    virtual CUmemGenericAllocationHandle handle() const { return 0; }
    virtual uint64_t* shared() { return nullptr; }

    const int device;
    const uint64_t bytes;  // size of the copy in host memory
    const uint64_t charged;
    std::byte* host = nullptr;
    bool borrowed = false;  // until on_uncharged(), `host` is owned elsewhere and already holds the data
    ExportedHandles::Suspended suspended;  // keeps other sessions from importing the memory
  };
  using Pieces = std::vector<std::unique_ptr<Piece>>;

  CheckpointImage(quota::Ledger& ledger, ExportedHandles& exported_handles, Outbox& outbox)
      : ledger_(ledger), exported_handles_(exported_handles), outbox_(outbox) {}
  ~CheckpointImage() { drop(); }
  CheckpointImage(const CheckpointImage&) = delete;
  CheckpointImage& operator=(const CheckpointImage&) = delete;

  // Copies all pieces to host memory, then takes them off the device in the given order. On an error the
  // state is as before. CUDA_ERROR_OUT_OF_MEMORY: more than `most` bytes, or no host memory.
  // CUDA_ERROR_NOT_PERMITTED: another session has imported some of the memory.
  CUresult save_and_free(Pieces pieces, uint64_t most);
  // Brings all pieces back, in the opposite order. CUDA_ERROR_OUT_OF_MEMORY: the quota or a device is full.
  // On an error the state is as before, and the call can be repeated.
  CUresult restore();
  // Frees the copies in host memory; for the end of the session.
  void drop();

 private:
  CUresult copy_all(uint64_t most);
  CUresult reserve();
  void settle(Piece& piece, bool was_out);
  static void release_host(Piece& piece);

  quota::Ledger& ledger_;
  ExportedHandles& exported_handles_;
  Outbox& outbox_;
  Pieces pieces_;
  bool out_ = false;
};

}  // namespace gpupool::worker
