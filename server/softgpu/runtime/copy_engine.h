// The threads that carry out asynchronous transfers too long for the thread that makes them ready.
//
// Transfers take turns in pieces of 4 MiB, so that a short one never waits for the whole of a long one. Two
// to four threads start with the first transfer and live as long as the process. Thread-safe.
#pragma once
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>

#include "server/softgpu/runtime/op.h"
#include "server/softgpu/runtime/transfer.h"

namespace gpupool::softgpu {

class TransferOp final : public Op {
 public:
  // `staged`: a buffer that the transfer reads and the operation keeps, or null.
  explicit TransferOp(const Transfer& transfer, std::shared_ptr<const std::byte[]> staged = nullptr)
      : transfer_(transfer), staged_(std::move(staged)) {}
  Ref<Op> clone() const override { return make_ref<TransferOp>(transfer_, staged_); }
  const Transfer& transfer() const { return transfer_; }
  Cost cost() const override { return transfer_.is_fill() ? Cost::enqueue : Cost::copy; }

  // The thread that makes a transfer ready carries it out up to this size.
  static constexpr uint64_t kInlineBytes = 16 << 10;

 private:
  friend class CopyEngine;
  void start() override;
  // Transfers at most `limit` bytes. True if the operation is complete.
  bool advance(uint64_t limit);

  const Transfer transfer_;
  const std::shared_ptr<const std::byte[]> staged_;
  TransferCursor cursor_;
};

class CopyEngine {
 public:
  void enqueue(Ref<TransferOp> transfer);

 private:
  void start_threads();
  void work();

  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Ref<TransferOp>> queue_;
  bool started_ = false;
};

}  // namespace gpupool::softgpu
