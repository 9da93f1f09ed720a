#include "scheduler/service/streams.h"

#include <algorithm>

#include "common/log/log.h"
#include "common/text/names.h"

namespace gpupool::scheduler {
namespace {

constexpr int64_t kLatest = 253'402'300'799'999;  // the end of the year 9999; avoids overflow

}  // namespace

std::string bearer_token(const grpc::CallbackServerContext& context) {
  constexpr std::string_view kBearer = "Bearer ";
  const auto found = context.client_metadata().find("authorization");
  if (found == context.client_metadata().end()) return "";
  const std::string_view shown(found->second.data(), found->second.size());
  return shown.starts_with(kBearer) ? std::string(shown.substr(kBearer.size())) : "";
}

grpc::Status not_leading(const Engine& engine, grpc::CallbackServerContext& context) {
  if (const auto leader = engine.store().leader(); leader && !engine.stopping())
    context.AddTrailingMetadata("leader", *leader);
  return engine.stopping() ? ending()
                           : grpc::Status(grpc::StatusCode::UNAVAILABLE, "this scheduler is not the leader");
}

grpc::Status denied(const Error& error) {
  return {error.code == ErrorCode::refused ? grpc::StatusCode::UNAUTHENTICATED
                                           : grpc::StatusCode::PERMISSION_DENIED,
          error.message};
}

LeaseStream::LeaseStream(Engine& engine, grpc::CallbackServerContext& context)
    : StreamingCall(engine, context) {
  engine.post([this] {
    stream_ = engine_.add(*this);
    begin(Role::tenant);
  });
}

void LeaseStream::on_message(const pool::AcquireCall& call) {
  if (!engine_.leads()) return end(not_leading(engine_, context_));
  Core& core = engine_.core();
  const bool first = tenant_.empty();
  if (call.has_release() && !first) {
    core.release(stream_, engine_.now());
    return engine_.flush();
  }
  if (!first || call.has_release() || call.call_case() == pool::AcquireCall::CALL_NOT_SET) {
    return end({grpc::StatusCode::INVALID_ARGUMENT, first ? "the first message must be a request or a resume"
                                                          : "only a release may follow the first message"});
  }
  const auto tenant =
      engine_.callers().find_tenant(bearer_token(context_), call.request().tenant(),
                                    call.has_resume() ? Purpose::existing_lease : Purpose::new_request);
  if (call.has_resume()) {
    // Without configured tokens the lease's secret alone authorizes the client.
    if (!tenant && engine_.callers().has_tokens()) return refuse(denied(tenant.error()));
    if (!engine_.credentials().is_lease_secret(call.resume().lease(), call.resume().secret())) {
      return refuse({grpc::StatusCode::PERMISSION_DENIED, "wrong lease secret"});
    }
    tenant_ = tenant ? *tenant : "?";
    core.resume(stream_, engine_.callers().has_tokens() ? tenant_ : "", call.resume().lease(), engine_.now());
    return engine_.flush();
  }
  if (!tenant) return refuse(denied(tenant.error()));
  tenant_ = *tenant;
  request_ = call.request();
  request_.set_program(cut_name(request_.program()));
  request_.set_host(cut_name(request_.host()));
  std::optional<Time> arrived;
  if (!request_.ticket().empty()) {
    arrived = engine_.credentials().arrival(tenant_, request_);
    // A ticket of another key or request is ignored: the request goes to the end of the queue.
    if (!arrived) log::debug("bad_ticket", {{"tenant", tenant_}});
  }
  request_.clear_ticket();
  core.request(stream_, tenant_, request_, arrived, engine_.now());
  engine_.flush();
}

std::optional<grpc::Status> LeaseStream::revoked() const {
  const Callers& callers = engine_.callers();
  if (const auto allowed = callers.check(bearer_token(context_), Role::tenant); !allowed)
    return denied(allowed.error());
  if (tenant_.empty() || !callers.has_tokens()) return std::nullopt;
  const auto tenant = callers.find_tenant(bearer_token(context_), "", Purpose::existing_lease);
  if (tenant && *tenant == tenant_) return std::nullopt;
  return grpc::Status(grpc::StatusCode::PERMISSION_DENIED,
                      "this token no longer belongs to tenant '" + tenant_ + "'");
}

NodeStream::NodeStream(Engine& engine, grpc::CallbackServerContext& context)
    : StreamingCall(engine, context) {
  engine.post([this] {
    stream_ = engine_.add(*this);
    begin(Role::node);
  });
}

void NodeStream::on_message(const pool::NodeReport& report) {
  if (!engine_.leads()) return end(not_leading(engine_, context_));
  pool::NodeReport by_core_clock = report;
  by_core_clock.set_now_ms(std::clamp<int64_t>(report.now_ms(), 0, kLatest) - engine_.wall_offset());
  if (!node_.empty()) {
    engine_.core().report(stream_, by_core_clock, engine_.now());
    return engine_.flush();
  }
  const auto node = engine_.callers().find_node(bearer_token(context_), report.inventory().node());
  if (!node) return refuse(denied(node.error()));
  node_ = *node;
  engine_.core().register_node(stream_, by_core_clock, engine_.now());
  engine_.flush();
}

std::optional<grpc::Status> NodeStream::revoked() const {
  const auto allowed = engine_.callers().check(bearer_token(context_), Role::node);
  const auto node =
      node_.empty() ? Result<std::string>("") : engine_.callers().find_node(bearer_token(context_), node_);
  if (allowed && node) return std::nullopt;
  return denied(allowed ? node.error() : allowed.error());
}

}  // namespace gpupool::scheduler
