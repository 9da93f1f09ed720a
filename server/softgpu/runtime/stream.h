// Streams: the order in which a context's operations follow each other. Events: points in that order.
//
// A stream only remembers its last operation; each new one comes after it (see Context::enqueue, which also
// keeps the rules of the legacy default stream). Both belong to a context and refer to it; a destroyed stream
// or event stays alive, without effect, until the last call using it returns.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "protocol/cuda/graph_edges.h"
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
  // Synchronises with the legacy default stream.
  bool blocking() const { return blocking_; }
  uint64_t id() const { return id_; }
  uint64_t handle = 0;  // set once, before the stream is shown to anyone; 0: a default stream

  // --- Attributes (stream_attributes.cc): kept and given back; nothing here acts on them ---
  CUresult attribute(CUstreamAttrID attribute, CUstreamAttrValue* value) const;
  CUresult set_attribute(CUstreamAttrID attribute, const CUstreamAttrValue& value);
  void copy_attributes(const Stream& source);

  // --- Stream capture ---
  bool capturing() const { return capturing_.load(std::memory_order_acquire); }
  // With graph_mutex() held. Null when the stream is not being captured.
  Ref<Capture> capture() const;
  void set_capture(Ref<Capture> capture);

 private:
  friend class Context;
  const Ref<Context> context_;
  struct Attributes {
    CUaccessPolicyWindow window{};
    CUsynchronizationPolicy synchronization = CU_SYNC_POLICY_AUTO;
    uint8_t default_domain = 0, remote_domain = 0;  // where their memory operations are ordered
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
  Ref<Op> last_;  // guarded by the context's order lock
  std::atomic<bool> capturing_{false};
  Ref<Capture> capture_;  // guarded by graph_mutex(); set while the stream is being captured
};

// Records when it completes. Of a shared event: other processes see it, too.
class EventOp final : public Op {
 public:
  explicit EventOp(std::shared_ptr<SharedEvent> shared = nullptr, bool timed = false)
      : shared_(std::move(shared)), number_(shared_ ? shared_->record() : 0), timed_(timed) {}
  ~EventOp() override { tell(); }  // it may never have been queued
  Cost cost() const override { return timed_ ? Cost::event_record_timed : Cost::event_record; }
  uint64_t number() const { return number_; }
  // 0 until complete.
  uint64_t completed_at() const { return completed_at_.load(std::memory_order_acquire); }

 private:
  void start() override;
  void skip() override { start(); }
  void tell() const {
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
  // `shared`: of an event of several processes.
  Event(Ref<Context> context, unsigned flags, std::shared_ptr<SharedEvent> shared = nullptr);
  ~Event() override;

  Context& context() const { return *context_; }
  bool timed() const;          // without CU_EVENT_DISABLE_TIMING
  bool blocking_sync() const;  // CU_EVENT_BLOCKING_SYNC
  const std::shared_ptr<SharedEvent>& shared() const { return shared_; }
  // A record to be queued and then set.
  Ref<EventOp> make_record() const { return make_ref<EventOp>(shared_, timed()); }
  // The latest record of this process, or null when there was none.
  Ref<EventOp> record() const;
  // What is complete when the latest record is, whoever made it; null when there is nothing to wait for.
  Ref<Op> awaited() const;
  bool pending() const;
  void set_record(Ref<EventOp> record);

  // Whether the event was last recorded inside a stream capture.
  bool captured() const { return captured_.load(std::memory_order_acquire); }
  // The point in a stream capture that was recorded last instead; null capture: none. With graph_mutex()
  // held.
  Ref<Capture> capture() const;
  const std::vector<CapturedDependency>& captured_nodes() const { return captured_nodes_; }
  void set_capture(Ref<Capture> capture, std::vector<CapturedDependency> nodes);

 private:
  const Ref<Context> context_;
  // The number of a record of another process that is the latest; 0: none is.
  uint64_t foreign() const;

  const unsigned flags_;
  const std::shared_ptr<SharedEvent> shared_;
  mutable SpinLock lock_;  // guards record_
  Ref<EventOp> record_;
  std::atomic<bool> captured_{false};
  Ref<Capture> capture_;  // guarded by graph_mutex(), as are the nodes
  std::vector<CapturedDependency> captured_nodes_;
};

}  // namespace gpupool::softgpu
