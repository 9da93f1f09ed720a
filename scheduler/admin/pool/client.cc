#include "scheduler/admin/pool/client.h"

#include <chrono>
#include <thread>

#include "protocol/scheduler/channel.h"

namespace gpupool::admin {
namespace {

constexpr std::chrono::seconds kTimeout{8};
constexpr std::chrono::seconds kNewLeaderWithin{6};  // retry time with several schedulers, for an election
constexpr std::chrono::milliseconds kBetweenRounds{200};

}  // namespace

pool::PoolAdmin::Stub& PoolClient::stub() {
  if (!stub_)
    stub_ = pool::PoolAdmin::NewStub(pool::open_channel(
        settings_.address, settings_.address.schedulers[current_], settings_.tls, kMaxReplyBytes));
  return *stub_;
}

void PoolClient::attach_token(grpc::ClientContext& context) const {
  if (!settings_.token.empty()) context.AddMetadata("authorization", "Bearer " + settings_.token);
}

void PoolClient::attempt(
    const std::function<grpc::Status(pool::PoolAdmin::Stub&, grpc::ClientContext&)>& call) {
  auto& schedulers = settings_.address.schedulers;
  const auto until =
      std::chrono::steady_clock::now() + (schedulers.size() > 1 ? kNewLeaderWithin : std::chrono::seconds(0));
  grpc::Status status;
  for (size_t tries = 1;; ++tries) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kTimeout);
    attach_token(context);
    status = call(stub(), context);
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE) break;
    const auto leader = pool::leader_of(context, schedulers);
    // A round tries each scheduler once, and the leader that one of them named.
    if (tries % (schedulers.size() + 1) == 0) {
      if (std::chrono::steady_clock::now() >= until) break;
      std::this_thread::sleep_for(kBetweenRounds);
    }
    current_ = leader.value_or((current_ + 1) % schedulers.size());
    stub_.reset();
  }
  check(status);
}

void PoolClient::check(const grpc::Status& status) const {
  const std::string where = settings_.address.schedulers[current_].text();
  switch (status.error_code()) {
    case grpc::StatusCode::OK: return;
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED:
      throw Failure(kExitRefused, "the scheduler " + where + ": access denied: " + status.error_message());
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::NOT_FOUND:
    case grpc::StatusCode::FAILED_PRECONDITION:
    case grpc::StatusCode::RESOURCE_EXHAUSTED: throw Failure(kExitRefused, status.error_message());
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      throw Failure(kExitUnreachable, "the scheduler " + where + " does not answer");
    default:
      throw Failure(kExitUnreachable, pool::failure_text(settings_.address.schedulers[current_], status));
  }
}

}  // namespace gpupool::admin
