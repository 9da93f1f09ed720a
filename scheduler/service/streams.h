// The bidirectional streams of lease clients (Leases.Acquire) and nodes (Nodes.Attend). gRPC's threads post
// all events to the engine's thread, which alone starts reads and writes and ends calls; so there are no
// locks. A stream deletes itself on that thread after OnDone().
#pragma once
#include <grpcpp/grpcpp.h>

#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "protocol/control/pool.grpc.pb.h"
#include "scheduler/service/engine.h"

namespace gpupool::scheduler {

// Returns the bearer token of the call's metadata; empty if there is none.
std::string bearer_token(const grpc::CallbackServerContext& context);
// Returns UNAVAILABLE, and adds the leader's address, where known, to the trailing metadata.
grpc::Status not_leading(const Engine& engine, grpc::CallbackServerContext& context);
// Maps an authentication error to UNAUTHENTICATED (ErrorCode::refused) or PERMISSION_DENIED.
grpc::Status denied(const Error& error);
// The status for calls while the scheduler shuts down.
inline grpc::Status ending() {
  return {grpc::StatusCode::UNAVAILABLE, "this scheduler is shutting down"};
}

template <class In, class Out>
class StreamingCall : public grpc::ServerBidiReactor<In, Out> {
 public:
  // The derived class posts its registration to the engine's thread. The object deletes itself there.
  StreamingCall(Engine& engine, grpc::CallbackServerContext& context) : engine_(engine), context_(context) {}

  // The following members may be called on the engine's thread only.

  // Checks leadership and the caller's token before the first message is read.
  void begin(Role role) {
    if (!engine_.leads()) return end(not_leading(engine_, context_));
    const auto allowed = engine_.callers().check(bearer_token(context_), role);
    if (!allowed) return refuse(denied(allowed.error()));
    read();
  }
  // Queues a message. It replaces the last unsent one if that is obsolete. Cancels the call of a peer that
  // does not read when kMaxUnsent messages are queued.
  void send(Out message) {
    if (status_) return;
    if (out_.size() > 1 && replaces(message, out_.back())) {
      out_.back() = std::move(message);
      return;
    }
    if (out_.size() >= kMaxUnsent) return context_.TryCancel();
    out_.push_back(std::move(message));
    if (out_.size() == 1) this->StartWrite(&out_.front());
  }
  // Ends the call after the queued messages have been sent. Later calls of end() and send() have no effect.
  void end(const grpc::Status& status) {
    if (status_) return;
    status_ = status;
    if (out_.empty()) this->Finish(status);
  }
  // Ends the call because of failed authentication, which is counted and logged.
  void refuse(const grpc::Status& status) {
    engine_.auth_failures().note(peer_of_call(context_), status);
    end(status);
  }
  bool has_received() const { return has_received_; }

 protected:
  virtual void on_message(const In& message) = 0;
  virtual void on_done() = 0;  // the last callback
  virtual bool replaces(const Out& next, const Out& before) const = 0;
  Engine& engine_;
  grpc::CallbackServerContext& context_;

 private:
  static constexpr size_t kMaxUnsent = 256;

  void read() { this->StartRead(&in_); }
  // Starts the next read only after this message has been handled, so a peer cannot flood the engine's queue.
  void OnReadDone(bool good) override {
    engine_.post([this, good] {
      if (!good) return end(grpc::Status::OK);
      if (status_) return;
      has_received_ = true;
      on_message(in_);
      in_ = In();  // free the memory of a large message
      if (!status_) read();
    });
  }
  void OnWriteDone(bool good) override {
    engine_.post([this, good] {
      if (good)
        out_.pop_front();
      else
        out_.clear();
      if (!out_.empty())
        this->StartWrite(&out_.front());
      else if (status_)
        this->Finish(*status_);
    });
  }
  void OnCancel() override {
    engine_.post([this] { end(grpc::Status::CANCELLED); });
  }
  void OnDone() override {
    engine_.post([this] {
      on_done();
      delete this;
    });
  }

  In in_;
  std::deque<Out> out_;                 // unsent messages; the first one is being written
  std::optional<grpc::Status> status_;  // set by end(): the call's final status
  bool has_received_ = false;
};

class LeaseStream final : public StreamingCall<pool::AcquireCall, pool::AcquireEvent> {
 public:
  LeaseStream(Engine& engine, grpc::CallbackServerContext& context);
  const std::string& tenant() const { return tenant_; }
  // Returns the status to end the stream with if its token is no longer valid in the present configuration.
  std::optional<grpc::Status> revoked() const;
  const pool::Request& request() const { return request_; }

 private:
  void on_message(const pool::AcquireCall& call) override;
  void on_done() override { engine_.forget(stream_); }
  bool replaces(const pool::AcquireEvent&, const pool::AcquireEvent& before) const override {
    return before.has_queued();
  }

  Stream stream_ = 0;
  std::string tenant_;
  pool::Request request_;
};

class NodeStream final : public StreamingCall<pool::NodeReport, pool::NodeOrders> {
 public:
  NodeStream(Engine& engine, grpc::CallbackServerContext& context);
  std::optional<grpc::Status> revoked() const;  // see LeaseStream::revoked()

 private:
  void on_message(const pool::NodeReport& report) override;
  void on_done() override { engine_.forget(stream_); }
  // NodeOrders are complete, so newer ones replace older ones.
  bool replaces(const pool::NodeOrders&, const pool::NodeOrders&) const override { return true; }

  Stream stream_ = 0;
  std::string node_;  // empty until the first report
};

// The gRPC services Leases and Nodes of protocol/control/pool.proto.
class LeasesService final : public pool::Leases::CallbackService {
 public:
  explicit LeasesService(Engine& engine) : engine_(engine) {}
  grpc::ServerBidiReactor<pool::AcquireCall, pool::AcquireEvent>* Acquire(
      grpc::CallbackServerContext* context) override {
    return new LeaseStream(engine_, *context);
  }

 private:
  Engine& engine_;
};

class NodesService final : public pool::Nodes::CallbackService {
 public:
  explicit NodesService(Engine& engine) : engine_(engine) {}
  grpc::ServerBidiReactor<pool::NodeReport, pool::NodeOrders>* Attend(
      grpc::CallbackServerContext* context) override {
    return new NodeStream(engine_, *context);
  }

 private:
  Engine& engine_;
};

}  // namespace gpupool::scheduler
