// Calls of the gRPC service PoolAdmin, received through gRPC's generic service: with its ordinary unary calls
// gRPC receives the request before it tells of the call, so that callers without a token could fill the
// memory for all calls. Here the operator's token is checked first. An object runs on the engine's thread, to
// which gRPC's threads post its events, and deletes itself there when the call has ended.
#pragma once
#include <google/protobuf/message_lite.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <asio/steady_timer.hpp>
#include <functional>
#include <string>
#include <utility>

#include "scheduler/service/engine.h"

namespace gpupool::scheduler {

// Returns OK if the caller is an operator and this scheduler leads; else the status to end the call with.
// Counts and logs failed authentication.
grpc::Status check_operator(Engine& engine, grpc::CallbackServerContext& context,
                            std::string* name = nullptr);

class AdminCall : public grpc::ServerGenericBidiReactor {
 public:
  AdminCall(Engine& engine, grpc::CallbackServerContext& context);

 protected:
  // The members are called, and may be called, on the engine's thread only.
  virtual void take_request(grpc::ByteBuffer& bytes) = 0;
  virtual void on_written(bool good) { (void)good; }
  virtual void on_cancelled() {}  // by the caller, also at any time after the end
  virtual void on_done() {}

  // Returns false, and ends the call, if the bytes are no such message.
  bool parse(grpc::ByteBuffer& bytes, google::protobuf::MessageLite& request);
  // One message at a time; on_written() follows.
  void send(const google::protobuf::MessageLite& message);
  void answer(const google::protobuf::MessageLite& reply);  // sends it and ends the call
  void end(const grpc::Status& status);                     // later calls have no effect
  bool ended() const { return ended_; }

  Engine& engine_;
  grpc::CallbackServerContext& context_;

 private:
  void begin();
  void OnReadDone(bool good) final;
  void OnWriteDone(bool good) final;
  void OnCancel() final;
  void OnDone() final;

  asio::steady_timer patience_;  // for the request
  grpc::ByteBuffer in_, out_;
  bool ended_ = false;
};

// A call with one request and one reply.
template <class Request, class Reply>
class UnaryAdminCall final : public AdminCall {
 public:
  using Finish = std::function<void(const grpc::Status&)>;
  // Fills the reply, and calls `finish` once.
  using Handler = std::function<void(grpc::CallbackServerContext&, const Request&, Reply&, Finish finish)>;

  UnaryAdminCall(Engine& engine, grpc::CallbackServerContext& context, Handler handler)
      : AdminCall(engine, context), handler_(std::move(handler)) {}

 private:
  void take_request(grpc::ByteBuffer& bytes) override {
    if (!parse(bytes, request_)) return;
    handler_(context_, request_, reply_,
             [this](const grpc::Status& status) { status.ok() ? answer(reply_) : end(status); });
  }

  const Handler handler_;
  Request request_;
  Reply reply_;
};

}  // namespace gpupool::scheduler
