// Host functions and callbacks on streams, and the thread that runs them.
//
// They run one at a time, in the order in which they became ready, on a thread that may block and holds no
// lock of the runtime. The thread starts with the first of them and serves all contexts. Thread-safe.
#pragma once
#include <condition_variable>
#include <deque>
#include <mutex>

#include "protocol/driver/cuda_header.h"
#include "server/softgpu/runtime/op.h"

namespace gpupool::softgpu {

class HostOp : public Op {
 public:
  // Calls the function, then completes the operation. On the host thread.
  void run() {
    call();
    complete();
  }

 private:
  virtual void call() = 0;
  bool holds_queue() const final { return true; }
  void start() final;
};

// cuLaunchHostFunc: the function is not called if the context has failed.
class HostFunctionOp final : public HostOp {
 public:
  HostFunctionOp(CUhostFn function, void* user) : function_(function), user_(user) {}
  Ref<Op> clone() const override { return make_ref<HostFunctionOp>(function_, user_); }
  CUhostFn function() const { return function_; }
  void* user() const { return user_; }

 private:
  void call() override { function_(user_); }
  const CUhostFn function_;
  void* const user_;
};

// cuStreamAddCallback: the callback is always called, with the context's error.
class StreamCallbackOp final : public HostOp {
 public:
  StreamCallbackOp(CUstreamCallback callback, CUstream stream, void* user)
      : callback_(callback), stream_(stream), user_(user) {}

 private:
  void call() override;
  void skip() override;
  const CUstreamCallback callback_;
  const CUstream stream_;
  void* const user_;
};

// True on the host thread if rule host_functions is on: CUDA calls then return CUDA_ERROR_NOT_PERMITTED.
__attribute__((tls_model("initial-exec"))) inline constinit thread_local bool calls_forbidden = false;

class HostThread {
 public:
  void enqueue(Ref<HostOp> op);

 private:
  void work();
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Ref<HostOp>> queue_;
  bool started_ = false;
};

}  // namespace gpupool::softgpu
