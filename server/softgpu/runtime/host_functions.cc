#include "server/softgpu/runtime/host_functions.h"

#include <thread>

#include "server/softgpu/runtime/context.h"
#include "server/softgpu/runtime/runtime.h"

namespace gpupool::softgpu {

void HostOp::start() {
  runtime().host_thread().enqueue(Ref<HostOp>::share(this));
}

void StreamCallbackOp::skip() {
  runtime().host_thread().enqueue(Ref<HostOp>::share(this));
}

void StreamCallbackOp::call() {
  callback_(stream_, context() == nullptr ? CUDA_SUCCESS : context()->error(), user_);
}

void HostThread::enqueue(Ref<HostOp> op) {
  {
    std::lock_guard guard(mutex_);
    if (!started_) {
      started_ = true;
      std::thread([this] { work(); }).detach();
    }
    queue_.push_back(std::move(op));
  }
  ready_.notify_one();
}

void HostThread::work() {
  calls_forbidden = runtime().config().rules.enforces(Rule::host_functions);
  std::unique_lock guard(mutex_);
  for (;;) {
    ready_.wait(guard, [this] { return !queue_.empty(); });
    const Ref<HostOp> op = std::move(queue_.front());
    queue_.pop_front();
    guard.unlock();
    op->run();
    guard.lock();
  }
}

}  // namespace gpupool::softgpu
