#include "scheduler/admin/pool/client.h"

#include <chrono>

#include "client/holder/channel.h"

namespace gpupool::admin {
namespace {

constexpr std::chrono::seconds kPatience{8};

}  // namespace

pool::PoolAdmin::Stub& PoolClient::stub() {
  if (!stub_) stub_ = pool::PoolAdmin::NewStub(holder::open_channel(settings_.address, settings_.address.schedulers[current_], settings_.tls));
  return *stub_;
}

void PoolClient::show_token(grpc::ClientContext& context) const {
  if (!settings_.token.empty()) context.AddMetadata("authorization", "Bearer " + settings_.token);
}

void PoolClient::attempt(const std::function<grpc::Status(pool::PoolAdmin::Stub&, grpc::ClientContext&)>& call) {
  auto& schedulers = settings_.address.schedulers;
  grpc::Status status;
  // Each once, and once more whom they name.
  for (size_t tries = schedulers.size() + 1; tries > 0; --tries) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    show_token(context);
    status = call(stub(), context);
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE) break;
    const auto leader = holder::leader_of(context, schedulers);
    if (tries == 1) break;
    current_ = leader.value_or((current_ + 1) % schedulers.size());
    stub_.reset();
  }
  check(status);
}

void PoolClient::check(const grpc::Status& status) const {
  const std::string where = settings_.address.schedulers[current_].text();
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return;
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED:
      throw Failure(kExitRefused, "the scheduler " + where + " wants an operator's token (--token-file, GPUPOOL_TOKEN_FILE): " + status.error_message());
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::NOT_FOUND:
    case grpc::StatusCode::FAILED_PRECONDITION:
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      throw Failure(kExitRefused, status.error_message());
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      throw Failure(kExitUnreachable, "the scheduler " + where + " does not answer");
    default:
      throw Failure(kExitUnreachable, "the scheduler " + where + " cannot be reached: " + status.error_message());
  }
}

}  // namespace gpupool::admin
