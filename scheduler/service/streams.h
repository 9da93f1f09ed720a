// The calls that last: holders' and nodes'. gRPC's threads hand everything to the engine's, which alone starts reads and writes and ends the
// call; so there are no locks, and an object lives until its end has been heard there.
#pragma once
#include <grpcpp/grpcpp.h>

#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "protocol/control/pool.grpc.pb.h"
#include "scheduler/service/engine.h"

namespace gpupool::scheduler {

// What the caller shows; empty: nothing.
std::string bearer_token(const grpc::CallbackServerContext& context);
// UNAVAILABLE, with the leader's address in the trailing metadata.
grpc::Status not_leading(const Engine& engine, grpc::CallbackServerContext& context);
grpc::Status denied(const Error& error);
// For whoever comes while the engine is not there any more.
inline grpc::Status ending() { return {grpc::StatusCode::UNAVAILABLE, "this scheduler is ending"}; }

template <class In, class Out>
class LastingCall : public grpc::ServerBidiReactor<In, Out> {
 public:
  // Takes itself to the engine's thread, and deletes itself there.
  LastingCall(Engine& engine, grpc::CallbackServerContext& context) : engine_(engine), context_(context) {}

  // All that follows: the engine's thread.
  // No message is read before the caller's token has been looked at.
  void begin(Role role) {
    if (!engine_.leads()) return end(not_leading(engine_, context_));
    const auto allowed = engine_.callers().check(bearer_token(context_), role);
    if (!allowed) return refuse(denied(allowed.error()));
    read();
  }
  // What was not sent yet and means nothing beside the new is left out. Bounded: who does not read loses the call.
  void send(Out message) {
    if (status_) return;
    if (out_.size() > 1 && replaces(message, out_.back())) {
      out_.back() = std::move(message);
      return;
    }
    if (out_.size() >= kMostUnsent) return context_.TryCancel();
    out_.push_back(std::move(message));
    if (out_.size() == 1) this->StartWrite(&out_.front());
  }
  // When everything has been sent that was to be. Later calls mean nothing.
  void end(const grpc::Status& status) {
    if (status_) return;
    status_ = status;
    if (out_.empty()) this->Finish(status);
  }
  // Ends the call for what its caller shows.
  void refuse(const grpc::Status& status) {
    engine_.refusals().note(peer_of_call(context_), status);
    end(status);
  }
  bool heard_anything() const { return heard_anything_; }

 protected:
  virtual void heard(const In& message) = 0;
  virtual void over() = 0;  // nothing follows
  virtual bool replaces(const Out& next, const Out& before) const = 0;
  Engine& engine_;
  grpc::CallbackServerContext& context_;

 private:
  static constexpr size_t kMostUnsent = 256;

  void read() { this->StartRead(&in_); }
  // The next is read when this one has been dealt with: nobody can fill the engine's queue.
  void OnReadDone(bool good) override {
    engine_.post([this, good] {
      if (!good) return end(grpc::Status::OK);
      if (status_) return;
      heard_anything_ = true;
      heard(in_);
      in_ = In();  // a long stream keeps no large message
      if (!status_) read();
    });
  }
  void OnWriteDone(bool good) override {
    engine_.post([this, good] {
      if (good) out_.pop_front();
      else out_.clear();
      if (!out_.empty()) this->StartWrite(&out_.front());
      else if (status_) this->Finish(*status_);
    });
  }
  void OnCancel() override {
    engine_.post([this] { end(grpc::Status::CANCELLED); });
  }
  void OnDone() override {
    engine_.post([this] {
      over();
      delete this;
    });
  }

  In in_;
  std::deque<Out> out_;  // the first is being written
  std::optional<grpc::Status> status_;  // it ends with
  bool heard_anything_ = false;
};

class HolderStream final : public LastingCall<pool::AcquireCall, pool::AcquireEvent> {
 public:
  HolderStream(Engine& engine, grpc::CallbackServerContext& context);
  const std::string& tenant() const { return tenant_; }
  // What it showed gives it no access any more; to be asked when the configuration has changed.
  std::optional<grpc::Status> revoked() const;
  const pool::Request& request() const { return request_; }

 private:
  void heard(const pool::AcquireCall& call) override;
  void over() override { engine_.forget(stream_); }
  bool replaces(const pool::AcquireEvent&, const pool::AcquireEvent& before) const override { return before.has_queued(); }

  Stream stream_ = 0;
  std::string tenant_;
  pool::Request request_;
};

class NodeStream final : public LastingCall<pool::NodeReport, pool::NodeOrders> {
 public:
  NodeStream(Engine& engine, grpc::CallbackServerContext& context);
  std::optional<grpc::Status> revoked() const;  // as HolderStream's

 private:
  void heard(const pool::NodeReport& report) override;
  void over() override { engine_.forget(stream_); }
  // Orders say all that there is to be done.
  bool replaces(const pool::NodeOrders&, const pool::NodeOrders&) const override { return true; }

  Stream stream_ = 0;
  std::string node_;  // empty: it has not said anything
};

// The services of pool.proto but for PoolAdmin.
class LeasesService final : public pool::Leases::CallbackService {
 public:
  explicit LeasesService(Engine& engine) : engine_(engine) {}
  grpc::ServerBidiReactor<pool::AcquireCall, pool::AcquireEvent>* Acquire(grpc::CallbackServerContext* context) override {
    return new HolderStream(engine_, *context);
  }

 private:
  Engine& engine_;
};

class NodesService final : public pool::Nodes::CallbackService {
 public:
  explicit NodesService(Engine& engine) : engine_(engine) {}
  grpc::ServerBidiReactor<pool::NodeReport, pool::NodeOrders>* Attend(grpc::CallbackServerContext* context) override {
    return new NodeStream(engine_, *context);
  }

 private:
  Engine& engine_;
};

}  // namespace gpupool::scheduler
