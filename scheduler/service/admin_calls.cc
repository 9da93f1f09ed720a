#include "scheduler/service/admin_calls.h"

#include <grpcpp/support/proto_buffer_reader.h>

#include <chrono>
#include <utility>

#include "scheduler/service/streams.h"

namespace gpupool::scheduler {
namespace {

constexpr std::chrono::seconds kPatience{10};

grpc::ByteBuffer serialized(const google::protobuf::MessageLite& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace

grpc::Status check_operator(Engine& engine, grpc::CallbackServerContext& context, std::string* name) {
  const auto caller = engine.callers().find_operator(bearer_token(context));
  if (!caller) {
    const grpc::Status status = denied(caller.error());
    engine.auth_failures().note(peer_of_call(context), status);
    return status;
  }
  if (name) *name = *caller;
  return engine.leads() && !engine.stopping() ? grpc::Status::OK : not_leading(engine, context);
}

AdminCall::AdminCall(Engine& engine, grpc::CallbackServerContext& context)
    : engine_(engine), context_(context), patience_(engine.context()) {
  engine.post([this] { begin(); });
}

void AdminCall::begin() {
  if (const grpc::Status status = check_operator(engine_, context_); !status.ok()) return end(status);
  StartRead(&in_);
  patience_.expires_after(kPatience);
  patience_.async_wait([this](const asio::error_code& status) {
    if (!status) end({grpc::StatusCode::DEADLINE_EXCEEDED, "no request within 10 s"});
  });
}

bool AdminCall::parse(grpc::ByteBuffer& bytes, google::protobuf::MessageLite& request) {
  grpc::ProtoBufferReader reader(&bytes);
  const bool good = reader.status().ok() && request.ParseFromZeroCopyStream(&reader);
  if (!good) end({grpc::StatusCode::INVALID_ARGUMENT, "malformed request"});
  bytes.Clear();
  return good;
}

void AdminCall::send(const google::protobuf::MessageLite& message) {
  out_ = serialized(message);
  StartWrite(&out_);
}

void AdminCall::answer(const google::protobuf::MessageLite& reply) {
  if (std::exchange(ended_, true)) return;
  out_ = serialized(reply);
  StartWriteAndFinish(&out_, grpc::WriteOptions(), grpc::Status::OK);
}

void AdminCall::end(const grpc::Status& status) {
  if (std::exchange(ended_, true)) return;
  patience_.cancel();
  Finish(status);
}

void AdminCall::OnReadDone(bool good) {
  engine_.post([this, good] {
    patience_.cancel();
    if (ended_) return;
    if (!good) return end({grpc::StatusCode::INVALID_ARGUMENT, "no request"});
    take_request(in_);
  });
}

void AdminCall::OnWriteDone(bool good) {
  engine_.post([this, good] { on_written(good); });
}

void AdminCall::OnCancel() {
  engine_.post([this] { on_cancelled(); });
}

void AdminCall::OnDone() {
  engine_.post([this] {
    patience_.cancel();
    on_done();
    engine_.post([this] { delete this; });  // after the handlers of cancelled timers
  });
}

}  // namespace gpupool::scheduler
