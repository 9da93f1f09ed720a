// Asks the device how far a stream is, and waits for it on a wait thread. Executor's thread.
#pragma once
#include <functional>

#include "server/worker/session/contexts.h"
#include "server/worker/session/output_capture.h"
#include "server/worker/session/waits.h"

namespace gpupool::worker {

class StreamWork {
 public:
  StreamWork(const DeviceApi& api, WaitPool& waits, const OutputCapture& capture)
      : api_(api), waits_(waits), capture_(capture) {}
  StreamWork(const StreamWork&) = delete;
  StreamWork& operator=(const StreamWork&) = delete;

  // True if all work that the stream has got so far, and all work that it waits for, is done.
  bool is_idle(StreamState& stream);
  // Call for an idle stream: makes the driver print the output of its kernels.
  void fetch_output(StreamState& stream);
  // Calls `then` on a wait thread when the device has finished the stream's present work, with the stream's
  // context current and the error of that work. `purpose`: a string literal, for monitoring. Returns false if
  // no event or thread is available.
  bool when_done(StreamState& stream, const char* purpose, std::function<void(CUresult)> then);

 private:
  const DeviceApi& api_;
  WaitPool& waits_;
  const OutputCapture& capture_;
};

}  // namespace gpupool::worker
