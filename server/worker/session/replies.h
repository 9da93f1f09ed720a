// Replies to the client, and the errors of commands that have none.
//
// The first error of a command without a reply is kept, and the next reply carries it. answer() and
// publish(): any thread that has a context current. The rest: executor's thread.
#pragma once
#include <atomic>
#include <cstdint>
#include <span>

#include "protocol/driver/cuda_header.h"
#include "protocol/wire/writer.h"
#include "server/quota/session_page.h"

namespace gpupool::worker {

class DeviceMemory;
class Outbox;
class OutputCapture;
class SmallCopies;

class Replies {
 public:
  Replies(Outbox& outbox, OutputCapture& capture, SmallCopies& small_copies, DeviceMemory& memory,
          quota::SessionPage& counters)
      : outbox_(outbox),
        capture_(capture),
        small_copies_(small_copies),
        memory_(memory),
        counters_(counters) {}
  Replies(const Replies&) = delete;
  Replies& operator=(const Replies&) = delete;

  wire::Buffer body;  // of the reply to the current command

  // Sends a delayed reply, after everything that must precede it (publish()).
  void answer(uint64_t sequence, CUresult result, std::span<const std::byte> body = {});
  // Sends output of device code and finished copies, which must reach the client before it is told that
  // device work has completed.
  void publish();
  // Returns the error of an earlier command without a reply, and clears it.
  CUresult take_deferred() {
    const CUresult result = deferred();
    if (result != CUDA_SUCCESS) deferred_.store(CUDA_SUCCESS, std::memory_order_relaxed);
    return result;
  }
  CUresult deferred() const { return deferred_.load(std::memory_order_relaxed); }  // any thread
  // Records an error of a command without a reply. Only the first is reported to the client; later ones are
  // counted.
  void defer(CUresult result) {
    if (deferred() == CUDA_SUCCESS)
      deferred_.store(result, std::memory_order_relaxed);
    else if (result != CUDA_SUCCESS)
      counters_.errors.fetch_add(1, std::memory_order_relaxed);
  }

 private:
  Outbox& outbox_;
  OutputCapture& capture_;
  SmallCopies& small_copies_;
  DeviceMemory& memory_;
  quota::SessionPage& counters_;
  std::atomic<CUresult> deferred_{CUDA_SUCCESS};  // written by the executor's thread only
};

}  // namespace gpupool::worker
