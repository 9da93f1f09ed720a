// What a checkpointed session had on its GPUs: it lies in host memory and counts in no quota until it is brought back, all of it or
// nothing. The executor's thread, with nothing of the session on the device.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "server/quota/ledger.h"
#include "server/worker/offers.h"
#include "server/worker/outbox.h"

namespace gpupool::worker {

class CheckpointImage {
 public:
  // A part of it: an allocation, an array. Made by whom it belongs to (DeviceMemory, VirtualMemory, Arrays), who outlives it and leaves
  // alone what is away.
  class Piece {
   public:
    Piece(int device, uint64_t bytes, uint64_t charged) : device(device), bytes(bytes), charged(charged) {}
    virtual ~Piece() = default;
    Piece(const Piece&) = delete;
    Piece& operator=(const Piece&) = delete;

    virtual CUresult copy_out(std::byte* to) = 0;
    // What is on the device of it goes. With an error some is still there.
    virtual CUresult take_off() = 0;
    // What is not on the device of it comes back, with what copy_out() gave. With an error some has not.
    virtual CUresult bring_back(const std::byte* from) = 0;
    // The quota counts it no longer; it counts it again, or always did since the checkpoint came to nothing.
    virtual void left() {}
    virtual void is_back() {}
    // What other sessions may import, and its quota::Ledger::share() (0: none of it, and then it may become 0).
    virtual CUmemGenericAllocationHandle handle() const { return 0; }
    virtual uint64_t* shared() { return nullptr; }

    const int device;
    const uint64_t bytes;    // of the copy
    const uint64_t charged;
    std::byte* host = nullptr;
    bool borrowed = false;   // `host` belongs to somebody else until left(), and needs no copying
    Offers::Held held;       // while nobody can import it
  };
  using Pieces = std::vector<std::unique_ptr<Piece>>;

  CheckpointImage(quota::Ledger& ledger, Offers& offers, Outbox& outbox) : ledger_(ledger), offers_(offers), outbox_(outbox) {}
  ~CheckpointImage() { drop(); }
  CheckpointImage(const CheckpointImage&) = delete;
  CheckpointImage& operator=(const CheckpointImage&) = delete;

  // Host memory and copies of at most `most` bytes, then off the device in this order. With an error all is as it was.
  // CUDA_ERROR_NOT_PERMITTED: another session has fetched some of it.
  CUresult check_out(Pieces pieces, uint64_t most);
  // In the opposite order. CUDA_ERROR_OUT_OF_MEMORY: the quota or a device is full. With an error all is as it was, and it can be tried again.
  CUresult check_in();
  // The session ends without it.
  void drop();

 private:
  CUresult copy_all(uint64_t most);
  CUresult reserve();
  void settle(Piece& piece, bool was_out);
  static void release_host(Piece& piece);

  quota::Ledger& ledger_;
  Offers& offers_;
  Outbox& outbox_;
  Pieces pieces_;
  bool out_ = false;
};

}  // namespace gpupool::worker
