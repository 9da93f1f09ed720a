// The worker's own work on device memory. It zeroes memory before a client can read it, since what another client left there
// must not be seen (nothing to do where the device does so itself: DeviceApi::zeroes_memory), and copies memory that is moved.
// The executor's thread.
//
// Copies are waited for. Zeroing is done on a stream of the worker's own; as a rule the client gets no name for the memory before that is done, and the
// command is answered then, while the executor goes on (zero_unmapped(), zero()). A new mapping of a session's only context is mapped at once instead,
// and every stream waits (start_clear()).
#pragma once
#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "server/worker/contexts.h"
#include "server/worker/waits.h"

namespace gpupool::worker {

class Scrubber {
 public:
  // Called once: the memory is zero now, or why not. Returns the result of the command.
  using Complete = std::function<CUresult(CUresult)>;
  using Answer = std::function<void(CUresult)>;
  // Says that the command at work is answered later, by what it returns.
  using Postpone = std::function<Answer()>;

  // `wake` ends the executor's sleep, so that it calls settle().
  Scrubber(const DeviceApi& api, Contexts& contexts, WaitPool& waits, Postpone postpone, std::function<void()> wake)
      : api_(api), contexts_(contexts), waits_(waits), postpone_(std::move(postpone)), wake_(std::move(wake)) {}

  // Zeroes memory that is mapped nowhere, and then calls `complete`: at once, or later, where this postpones the command and returns CUDA_SUCCESS.
  // The memory must not be freed before. An error means that nothing is postponed, and `complete` has been told.
  CUresult zero_unmapped(CUmemGenericAllocationHandle memory, uint64_t size, CUmemLocation location, Complete complete);
  // The same for arrays of the current context.
  struct Part {
    CUarray array;
    CUDA_ARRAY3D_DESCRIPTOR shape;
  };
  CUresult zero(const std::vector<Part>& parts, int device, Complete complete);
  // Completes and answers what has been zeroed. Between two commands.
  void settle() {
    if (any_done_.load(std::memory_order_relaxed)) finish_done();
  }
  // Waits for all that is being zeroed, and completes it.
  void finish_all();
  bool pending() const { return !jobs_.empty(); }

  // Whether start_clear() may be called for the device: it is that of the session's only context, which is current.
  bool can_order_streams(int device) const;
  // Zeroes a new mapping, without waiting: every stream waits for it (Contexts::order_all_after_clear).
  CUresult start_clear(CUdeviceptr address, uint64_t size);
  // Memory that is mapped nowhere is mapped somewhere for as long as `visit` takes, which gets the address.
  CUresult visit_unmapped(CUmemGenericAllocationHandle memory, uint64_t size, CUmemLocation location,
                          const std::function<CUresult(CUdeviceptr)>& visit);
  // Between device memory that is mapped there and ordinary memory.
  CUresult copy_out(std::byte* to, CUdeviceptr from, uint64_t size, int device);
  CUresult copy_in(CUdeviceptr to, const std::byte* from, uint64_t size, int device);
  // Between an array, of the current context, and cuda::array_bytes() of ordinary memory.
  CUresult copy_out(std::byte* to, CUarray from, const CUDA_ARRAY3D_DESCRIPTOR& shape, int device);
  CUresult copy_in(CUarray to, const std::byte* from, const CUDA_ARRAY3D_DESCRIPTOR& shape, int device);
  // The context is about to be destroyed.
  void leave(ContextState& context);

 private:
  using Work = std::function<CUresult(CUstream)>;
  // Shared with a wait thread.
  struct Mark {
    std::shared_ptr<void> event;  // goes back to its pool
    CUresult result = CUDA_SUCCESS;
    std::atomic<bool> passed{false};
  };
  struct Job {
    std::shared_ptr<Mark> mark;
    CUcontext context = nullptr;
    std::function<void()> undo;
    Complete complete;
    Answer answer;
  };

  // `work` with a stream of a context of the device, which it waits for.
  CUresult run(int device, const Work& work);
  // `work` likewise, without waiting; then `undo` and `complete`.
  CUresult run_later(int device, const Work& work, std::function<void()> undo, Complete complete);
  // Null: nothing marks the end of `work`, which is over; *result.
  std::shared_ptr<Mark> begin(ContextState& context, const Work& work, CUresult* result);
  bool passed_soon(Mark& mark, CUcontext context);
  bool await(const std::shared_ptr<Mark>& mark, CUcontext context);
  void finish_done();
  void finish(Job& job, CUresult result);
  CUresult make_stream(ContextState& context);
  CUresult map_somewhere(CUmemGenericAllocationHandle memory, uint64_t size, CUmemLocation location, CUdeviceptr* place);
  void unmap_there(CUdeviceptr place, uint64_t size);
  const void* zeros(int device);

  const DeviceApi& api_;
  Contexts& contexts_;
  WaitPool& waits_;
  const Postpone postpone_;
  const std::function<void()> wake_;
  std::list<Job> jobs_;
  std::atomic<bool> any_done_{false};
};

}  // namespace gpupool::worker
