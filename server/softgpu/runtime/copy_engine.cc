#include "server/softgpu/runtime/copy_engine.h"

#include <algorithm>
#include <thread>

#include "server/softgpu/runtime/context.h"
#include "server/softgpu/runtime/runtime.h"

namespace gpupool::softgpu {
namespace {

constexpr uint64_t kPieceBytes = 4 << 20;

}  // namespace

bool TransferOp::advance(uint64_t limit) {
  const TransferStep step = cursor_.advance(transfer_, runtime().memory(), limit);
  if (step == TransferStep::more) return false;
  if (step == TransferStep::bad_address && context() != nullptr) context()->fail(CUDA_ERROR_ILLEGAL_ADDRESS);
  complete();
  return true;
}

void TransferOp::start() {
  if (transfer_.bytes() <= kInlineBytes) {
    advance(kInlineBytes);
  } else {
    runtime().copy_engine().enqueue(Ref<TransferOp>::share(this));
  }
}

void CopyEngine::enqueue(Ref<TransferOp> transfer) {
  {
    std::lock_guard guard(mutex_);
    if (!started_) start_threads();
    queue_.push_back(std::move(transfer));
  }
  ready_.notify_one();
}

void CopyEngine::start_threads() {
  started_ = true;
  const unsigned count = std::clamp(std::thread::hardware_concurrency() / 4, 2u, 4u);
  for (unsigned i = 0; i < count; ++i) std::thread([this] { work(); }).detach();
}

void CopyEngine::work() {
  std::unique_lock guard(mutex_);
  for (;;) {
    ready_.wait(guard, [this] { return !queue_.empty(); });
    Ref<TransferOp> transfer = std::move(queue_.front());
    queue_.pop_front();
    guard.unlock();
    const bool finished = transfer->advance(kPieceBytes);
    guard.lock();
    if (!finished) queue_.push_back(std::move(transfer));
  }
}

}  // namespace gpupool::softgpu
