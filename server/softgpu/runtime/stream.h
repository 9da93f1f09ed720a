// Streams: the order in which a context's operations follow each other. Events: points in that order.
//
// A stream only stores its last operation; each new one follows it (see Context::enqueue, which also
// implements the legacy default stream's rules). Streams and events hold a reference to their context. A
// destroyed one stays alive, without effect, until the last call that uses it returns. Thread-safe, except
// where a lock is named.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "protocol/calls/graph_edges.h"
#include "server/softgpu/memory/shared_event.h"
#include "server/softgpu/runtime/handles.h"
#include "server/softgpu/runtime/op.h"

namespace gpupool::softgpu {

class Capture;
class Context;
class GraphNode;
class HardwareQueue;
using CapturedDependency = cuda::CapturedDependency<GraphNode>;

class Stream final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::stream;
  Stream(Ref<Context> context, HardwareQueue& queue, unsigned flags, int priority, bool legacy, uint64_t id);
  ~Stream() override;

  Context& context() const { return *context_; }
  unsigned flags() const { return flags_; }  // CU_STREAM_*
  int priority() const { return priority_.load(std::memory_order_relaxed); }
  bool legacy() const { return legacy_; }
  // True if the stream synchronises with the legacy default stream.
  bool blocking() const { return blocking_; }
  uint64_t id() const { return id_; }
  uint64_t handle = 0;  // set before the stream is published; 0: a default stream

  // --- Attributes (stream_attributes.cc): stored and returned, without effect ---
  CUresult attribute(CUstreamAttrID attribute, CUstreamAttrValue* value) const;
  CUresult set_attribute(CUstreamAttrID attribute, const CUstreamAttrValue& value);
  void copy_attributes(const Stream& source);

  // --- Stream capture ---
  bool capturing() const { return capturing_.load(std::memory_order_acquire); }
  // Both with graph_mutex() held. Null: the stream is not being captured.
  Ref<Capture> capture() const;
  void set_capture(Ref<Capture> capture);

 private:
  friend class Context;
  const Ref<Context> context_;
  struct Attributes {
    CUaccessPolicyWindow window{};
    CUsynchronizationPolicy synchronization = CU_SYNC_POLICY_AUTO;
    uint8_t default_domain = 0, remote_domain = 0;  // CUlaunchMemSyncDomainMap
    int domain = 0;
  };
  const unsigned flags_;
  std::atomic<int> priority_;
  mutable std::mutex attributes_mutex_;
  Attributes attributes_;
  const bool legacy_;
  const bool blocking_;
  const uint64_t id_;
  HardwareQueue& queue_;
  Ref<Op> last_;  // guarded by the context's lock
  std::atomic<bool> capturing_{false};
  Ref<Capture> capture_;  // guarded by graph_mutex(); set while the stream is being captured
};

// Records an event: stores the time at which it completes, and publishes the record of an interprocess event.
class EventOp final : public Op {
 public:
  explicit EventOp(std::shared_ptr<SharedEvent> shared = nullptr, bool timed = false)
      : shared_(std::move(shared)), number_(shared_ ? shared_->record() : 0), timed_(timed) {}
  ~EventOp() override {
    publish_completion();
  }  // completed() must follow record(), also if the operation was never queued
  Cost cost() const override { return timed_ ? Cost::event_record_timed : Cost::event_record; }
  uint64_t number() const { return number_; }
  // CLOCK_MONOTONIC in nanoseconds; 0 until complete.
  uint64_t completed_at() const { return completed_at_.load(std::memory_order_acquire); }

 private:
  void start() override;
  void skip() override { start(); }
  void publish_completion() const {
    if (shared_) shared_->completed(number_);
  }
  const std::shared_ptr<SharedEvent> shared_;
  const uint64_t number_;
  const bool timed_;
  std::atomic<uint64_t> completed_at_{0};  // monotonic nanoseconds
};

class Event final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::event;
  // `shared`: the state of an interprocess event, else null.
  Event(Ref<Context> context, unsigned flags, std::shared_ptr<SharedEvent> shared = nullptr);
  ~Event() override;

  Context& context() const { return *context_; }
  bool timed() const;          // without CU_EVENT_DISABLE_TIMING
  bool blocking_sync() const;  // CU_EVENT_BLOCKING_SYNC
  const std::shared_ptr<SharedEvent>& shared() const { return shared_; }
  // Makes a record, which the caller enqueues and then passes to set_record().
  Ref<EventOp> make_record() const { return make_ref<EventOp>(shared_, timed()); }
  // The latest record of this process, or null.
  Ref<EventOp> record() const;
  // Returns an operation that completes when the latest record does, whichever process made it. Null: there
  // is nothing to wait for.
  Ref<Op> wait_operation() const;
  bool pending() const;
  void set_record(Ref<EventOp> record);

  // True if the event was last recorded in a stream capture.
  bool captured() const { return captured_.load(std::memory_order_acquire); }
  // The capture in which the event was last recorded, or null, and the nodes that the event stands for. With
  // graph_mutex() held.
  Ref<Capture> capture() const;
  const std::vector<CapturedDependency>& captured_nodes() const { return captured_nodes_; }
  void set_capture(Ref<Capture> capture, std::vector<CapturedDependency> nodes);

 private:
  const Ref<Context> context_;
  // The number of the latest record if another process made it, else 0.
  uint64_t latest_foreign_record() const;

  const unsigned flags_;
  const std::shared_ptr<SharedEvent> shared_;
  mutable SpinLock lock_;  // guards record_
  Ref<EventOp> record_;
  std::atomic<bool> captured_{false};
  Ref<Capture> capture_;  // guarded by graph_mutex(), like captured_nodes_
  std::vector<CapturedDependency> captured_nodes_;
};

}  // namespace gpupool::softgpu
