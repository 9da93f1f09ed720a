// The worker's own operations on device memory. Zeroes memory before a client can read it, so that no client
// sees another client's data (not needed if DeviceApi::zeroes_memory), and copies memory that is moved.
// Executor's thread.
//
// Copies block. Zeroing runs on a stream of the worker's own. Normally the client gets access to the memory
// only when it is zero: the reply to its command is postponed while the executor continues (zero_unmapped(),
// zero()). In a session with a single context, a new mapping is used at once instead, and all streams wait
// for the zeroing (start_clear()).
#pragma once
#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "server/worker/session/contexts.h"
#include "server/worker/session/waits.h"

namespace gpupool::worker {

class Scrubber {
 public:
  // Called once with the result of zeroing. Returns the result of the command.
  using Complete = std::function<CUresult(CUresult)>;
  using Answer = std::function<void(CUresult)>;
  // Postpones the reply to the current command; calling the returned function sends it.
  using Postpone = std::function<Answer()>;

  // `wake` interrupts the executor's sleep, so that it calls settle().
  Scrubber(const DeviceApi& api, Contexts& contexts, WaitPool& waits, Postpone postpone,
           std::function<void()> wake)
      : api_(api),
        contexts_(contexts),
        waits_(waits),
        postpone_(std::move(postpone)),
        wake_(std::move(wake)) {}

  // Zeroes unmapped memory and then calls `complete`: at once, or later, in which case this postpones the
  // command's reply and returns CUDA_SUCCESS. The memory must not be freed before. On an error nothing is
  // postponed, and `complete` has been called with it.
  CUresult zero_unmapped(CUmemGenericAllocationHandle memory, uint64_t size, CUmemLocation location,
                         Complete complete);
  // The same for arrays of the current context.
  struct Part {
    CUarray array;
    CUDA_ARRAY3D_DESCRIPTOR shape;
  };
  CUresult zero(const std::vector<Part>& parts, int device, Complete complete);
  // Call between two commands: completes and answers finished jobs.
  void settle() {
    if (any_done_.load(std::memory_order_relaxed)) finish_done();
  }
  // Waits for all pending jobs and completes them.
  void finish_all();
  bool pending() const { return !jobs_.empty(); }

  // True if start_clear() may be used: the session has a single context, which is current and on the device.
  bool can_order_streams(int device) const;
  // Zeroes a new mapping without waiting; all streams wait for it (Contexts::order_all_after_clear).
  CUresult start_clear(CUdeviceptr address, uint64_t size);
  // Maps unmapped memory temporarily and calls `visit` with its address.
  CUresult visit_unmapped(CUmemGenericAllocationHandle memory, uint64_t size, CUmemLocation location,
                          const std::function<CUresult(CUdeviceptr)>& visit);
  // Copy between mapped device memory and ordinary memory.
  CUresult copy_out(std::byte* to, CUdeviceptr from, uint64_t size, int device);
  CUresult copy_in(CUdeviceptr to, const std::byte* from, uint64_t size, int device);
  // Copy between an array of the current context and cuda::array_bytes() bytes of ordinary memory.
  CUresult copy_out(std::byte* to, CUarray from, const CUDA_ARRAY3D_DESCRIPTOR& shape, int device);
  CUresult copy_in(CUarray to, const std::byte* from, const CUDA_ARRAY3D_DESCRIPTOR& shape, int device);
  // The same for a part of an array. `x` and `width` are in bytes.
  struct Box {
    uint64_t x = 0, y = 0, z = 0, width = 0, height = 0, depth = 0;
  };
  CUresult copy_out(std::byte* to, CUarray from, const Box& box, int device);
  CUresult copy_in(CUarray to, const std::byte* from, const Box& box, int device);
  // All of an array.
  static Box box_of(const CUDA_ARRAY3D_DESCRIPTOR& shape);
  // Call before the context is destroyed.
  void leave(ContextState& context);

 private:
  using Work = std::function<CUresult(CUstream)>;
  // End of a job's device work; shared with a wait thread.
  struct Mark {
    std::shared_ptr<void> event;  // returns to its pool when released
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

  // Calls `work` with a stream on the device, and waits for that stream.
  CUresult run(int device, const Work& work);
  // Calls `work` with a stream, and calls `undo` and `complete` when the stream has finished, which may be
  // later.
  CUresult run_later(int device, const Work& work, std::function<void()> undo, Complete complete);
  // Enqueues `work`. Returns null if it failed or has already finished; *result has its result then.
  std::shared_ptr<Mark> begin(ContextState& context, const Work& work, CUresult* result);
  bool passed_soon(Mark& mark, CUcontext context);
  bool await(const std::shared_ptr<Mark>& mark, CUcontext context);
  void finish_done();
  void finish(Job& job, CUresult result);
  CUresult make_stream(ContextState& context);
  CUresult map_somewhere(CUmemGenericAllocationHandle memory, uint64_t size, CUmemLocation location,
                         CUdeviceptr* place);
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
