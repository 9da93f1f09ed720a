// Streams: the order in which a context's operations follow each other. Events: points in that order.
//
// A stream only remembers its last operation; each new one comes after it (see Context::enqueue, which also
// keeps the rules of the legacy default stream). Both belong to a context and refer to it; a destroyed stream
// or event stays alive, without effect, until the last call using it returns.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>

#include "server/softgpu/runtime/handles.h"
#include "server/softgpu/runtime/op.h"

namespace gpupool::softgpu {

class Context;

class Stream final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::stream;
  Stream(Ref<Context> context, unsigned flags, int priority, bool legacy, uint64_t id);
  ~Stream() override;

  Context& context() const { return *context_; }
  unsigned flags() const { return flags_; }  // CU_STREAM_*
  int priority() const { return priority_; }
  bool legacy() const { return legacy_; }
  // Synchronises with the legacy default stream.
  bool blocking() const { return blocking_; }
  uint64_t id() const { return id_; }
  uint64_t handle = 0;  // set once, before the stream is shown to anyone; 0: a default stream

 private:
  friend class Context;
  const Ref<Context> context_;
  const unsigned flags_;
  const int priority_;
  const bool legacy_;
  const bool blocking_;
  const uint64_t id_;
  Ref<Op> last_;  // guarded by the context's order lock
};

// Records when it completes.
class EventOp final : public Op {
 public:
  // 0 until complete.
  uint64_t completed_at() const { return completed_at_.load(std::memory_order_acquire); }

 private:
  void start() override;
  std::atomic<uint64_t> completed_at_{0};  // monotonic nanoseconds
};

class Event final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::event;
  Event(Ref<Context> context, unsigned flags);
  ~Event() override;

  Context& context() const { return *context_; }
  bool timed() const;          // without CU_EVENT_DISABLE_TIMING
  bool blocking_sync() const;  // CU_EVENT_BLOCKING_SYNC
  // The latest record, or null when there was none.
  Ref<EventOp> record() const;
  void set_record(Ref<EventOp> record);

 private:
  const Ref<Context> context_;
  const unsigned flags_;
  mutable SpinLock lock_;  // guards record_
  Ref<EventOp> record_;
};

}  // namespace gpupool::softgpu
