#include "scheduler/service/admin.h"

#include <algorithm>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <utility>

#include "common/text/names.h"
#include "common/text/printable.h"
#include "common/version.h"
#include "scheduler/service/usage_history.h"

namespace gpupool::scheduler {
namespace {

using Context = grpc::CallbackServerContext;

constexpr size_t kLongestReason = 1024;
constexpr uint32_t kShortestInterval = 100, kLongestInterval = 10'000;
constexpr int kMaxWatchers = 32;

grpc::Status failed(const Error& error) {
  return {
      error.code == ErrorCode::unavailable ? grpc::StatusCode::NOT_FOUND : grpc::StatusCode::INVALID_ARGUMENT,
      error.message};
}

grpc::Status too_long() {
  return {grpc::StatusCode::INVALID_ARGUMENT, "the reason is longer than 1024 bytes"};
}

template <class T>
grpc::Status take(const Result<T>& result, T* reply) {
  if (!result) return failed(result.error());
  *reply = *result;
  return grpc::Status::OK;
}

std::optional<uint32_t> grace_of(const auto& request) {
  return request.has_grace_ms() ? std::optional(request.grace_ms()) : std::nullopt;
}

// Replace unprintable bytes in texts chosen by clients and nodes: Protobuf strings must be valid UTF-8.
void make_printable(pool::LeaseState& lease) {
  lease.set_program(printable(lease.program()));
  lease.set_host(printable(lease.host()));
  for (std::string& label : *lease.mutable_labels()) label = printable(label);
  for (pool::LeaseMove& move : *lease.mutable_moves()) move.set_reason(printable(move.reason()));
  if (!lease.has_suspension()) return;
  lease.mutable_suspension()->set_because(printable(lease.suspension().because()));
  lease.mutable_suspension()->set_reason(printable(lease.suspension().reason()));
}
void make_printable(pool::NodeState& node) {
  node.set_because(printable(node.because()));
}
void make_printable(pool::Waiting& waiting) {
  waiting.set_why(printable(waiting.why()));
  pool::Request& request = *waiting.mutable_request();
  request.set_program(printable(request.program()));
  request.set_host(printable(request.host()));
  for (auto* const words : {request.mutable_models(), request.mutable_near(), request.mutable_apart_from(),
                            request.mutable_labels()}) {
    for (std::string& word : *words) word = printable(word);
  }
}

std::string full_name(const char* method) {
  return std::string("/") + pool::PoolAdmin::service_full_name() + "/" + method;
}

pool::PoolState pool_state(Engine& engine) {
  pool::PoolState state = engine.core().view_pool();
  state.set_version(kVersion);
  state.set_leader(true);
  state.set_term(engine.term());
  state.set_store(engine.store().describe());
  state.set_public_key(engine.key().public_key().raw());
  state.mutable_counters()->set_store_commits(engine.commits());
  state.mutable_counters()->set_store_failures(engine.store_failures());
  state.mutable_counters()->set_callers_refused(engine.auth_failures().count());
  state.mutable_counters()->set_audit_records(engine.audit_counts().records);
  state.mutable_counters()->set_audit_records_lost(engine.audit_counts().lost);
  return state;
}

class Watcher final : public AdminCall {
 public:
  Watcher(Engine& engine, Context& context, int& watchers)
      : AdminCall(engine, context), watchers_(watchers), timer_(engine.context()) {}

 private:
  void take_request(grpc::ByteBuffer& bytes) override {
    pool::PoolWatchRequest request;
    if (!parse(bytes, request)) return;
    interval_ = std::chrono::milliseconds(request.interval_ms());
    if (interval_.count() < kShortestInterval || interval_.count() > kLongestInterval)
      return end({grpc::StatusCode::INVALID_ARGUMENT, "the interval must be 100 to 10000 ms"});
    if (watchers_ >= kMaxWatchers) return end({grpc::StatusCode::RESOURCE_EXHAUSTED, "too many Watch calls"});
    counted_ = true;
    ++watchers_;
    show();
  }
  void show() {
    if (ended()) return;
    // Check again: the token may have been removed from the configuration.
    if (const grpc::Status status = check_operator(engine_, context_); !status.ok()) return end(status);
    writing_ = true;
    send(take_snapshot(engine_));
  }
  void on_written(bool good) override {
    writing_ = false;
    if (cancelled_ || !good) return end(grpc::Status::CANCELLED);
    timer_.expires_after(interval_);
    timer_.async_wait([this](const asio::error_code& status) {
      if (!status) show();
    });
  }
  void on_cancelled() override {
    cancelled_ = true;
    timer_.cancel();
    if (!writing_) end(grpc::Status::CANCELLED);
  }
  void on_done() override {
    if (counted_) --watchers_;
    timer_.cancel();
  }

  int& watchers_;
  asio::steady_timer timer_;
  std::chrono::milliseconds interval_{};
  bool counted_ = false, writing_ = false, cancelled_ = false;
};

}  // namespace

pool::PoolSnapshot take_snapshot(Engine& engine) {
  pool::PoolSnapshot snapshot;
  Core& core = engine.core();
  snapshot.set_taken_ms(engine.now() + engine.wall_offset());
  *snapshot.mutable_pool() = pool_state(engine);
  core.view_nodes(*snapshot.mutable_nodes());
  core.view_leases(*snapshot.mutable_leases());
  core.view_queue(*snapshot.mutable_waiting());
  core.view_tenants(*snapshot.mutable_tenants(), engine.now());
  for (auto& node : *snapshot.mutable_nodes()) make_printable(node);
  for (auto& lease : *snapshot.mutable_leases()) make_printable(lease);
  for (auto& waiting : *snapshot.mutable_waiting()) make_printable(waiting);
  return snapshot;
}

AdminService::AdminService(Engine& engine, UsageHistory& usage) : engine_(engine) {
  add_view("GetPool", &AdminService::GetPool);
  add_view("ListNodes", &AdminService::ListNodes);
  add_view("ListGpus", &AdminService::ListGpus);
  add_view("ListLeases", &AdminService::ListLeases);
  add_view("ListQueue", &AdminService::ListQueue);
  add_view("ListTenants", &AdminService::ListTenants);
  add_view("GetQuota", &AdminService::GetQuota);
  add_command(
      "SetQuota", "set_quota", [](const pool::SetTenantQuotaRequest& request) { return request.tenant(); },
      &AdminService::SetQuota);
  add_command(
      "ClearQuota", "clear_quota",
      [](const pool::ClearTenantQuotaRequest& request) { return request.tenant(); },
      &AdminService::ClearQuota);
  add_view("GetPolicy", &AdminService::GetPolicy);
  add_command(
      "SetPolicy", "set_policy", [](const pool::Policy&) { return std::string(); }, &AdminService::SetPolicy);
  add_command(
      "Drain", "drain", [](const pool::DrainRequest& request) { return request.node(); },
      &AdminService::Drain);
  add_command(
      "Undrain", "undrain", [](const pool::UndrainRequest& request) { return request.node(); },
      &AdminService::Undrain);
  add_command(
      "RemoveNode", "remove_node", [](const pool::RemoveNodeRequest& request) { return request.node(); },
      &AdminService::RemoveNode);
  add_command(
      "TrustGpu", "trust_gpu",
      [](const pool::TrustGpuRequest& request) { return request.node() + " " + request.gpu(); },
      &AdminService::TrustGpu);
  add_command(
      "Evict", "evict", [](const pool::EvictRequest& request) { return request.lease(); },
      &AdminService::Evict);
  add_command(
      "Move", "move",
      [](const pool::MoveRequest& request) {
        return request.lease() + (request.to().empty() ? "" : " to " + request.to());
      },
      &AdminService::Move);
  add_command(
      "Suspend", "suspend", [](const pool::SuspendRequest& request) { return request.lease(); },
      &AdminService::Suspend);
  add_command(
      "Resume", "resume", [](const pool::SuspendRequest& request) { return request.lease(); },
      &AdminService::Resume);
  add_view("Why", &AdminService::Why);
  calls_[full_name("GetUsage")] = [&usage](Context& context) { return usage.new_call(context); };
  calls_[full_name("Watch")] = [this](Context& context) { return new Watcher(engine_, context, watchers_); };
}

grpc::ServerGenericBidiReactor* AdminService::CreateReactor(grpc::GenericCallbackServerContext* context) {
  const auto found = calls_.find(context->method());
  return found == calls_.end() ? CallbackGenericService::CreateReactor(context) : found->second(*context);
}

// For calls that only read.
template <class Request, class Reply>
void AdminService::add_view(const char* name, grpc::Status (AdminService::*method)(const Request&, Reply&)) {
  using Call = UnaryAdminCall<Request, Reply>;
  const auto handle = [this, method](Context& context, const Request& request, Reply& reply,
                                     const typename Call::Finish& finish) {
    const grpc::Status status = check_operator(engine_, context);
    finish(status.ok() ? (this->*method)(request, reply) : status);
  };
  calls_[full_name(name)] = [this, handle](Context& context) { return new Call(engine_, context, handle); };
}

// For calls that change the pool. Writes `does` and `on` to the audit file, and answers after the change has
// been stored.
template <class Request, class Reply>
void AdminService::add_command(const char* name, const char* does,
                               std::type_identity_t<std::string(const Request&)>* on,
                               grpc::Status (AdminService::*method)(const Request&, Reply&)) {
  using Call = UnaryAdminCall<Request, Reply>;
  const auto handle = [this, does, on, method](Context& context, const Request& request, Reply& reply,
                                               const typename Call::Finish& finish) {
    std::string who;
    grpc::Status status = check_operator(engine_, context, &who);
    if (status.ok()) status = (this->*method)(request, reply);
    if (!status.ok()) return finish(status);
    engine_.audit("operator", {{"operator", who}, {"does", does}, {"on", cut_name(on(request))}});
    engine_.flush([finish](bool stored) {
      finish(stored ? grpc::Status::OK
                    : grpc::Status(grpc::StatusCode::UNAVAILABLE, "the change could not be stored"));
    });
  };
  calls_[full_name(name)] = [this, handle](Context& context) { return new Call(engine_, context, handle); };
}

grpc::Status AdminService::GetPool(const pool::GetPoolRequest&, pool::PoolState& reply) {
  reply = pool_state(engine_);
  return grpc::Status::OK;
}

grpc::Status AdminService::ListNodes(const pool::ListNodesRequest&, pool::ListNodesReply& reply) {
  Core& core = engine_.core();
  core.view_nodes(*reply.mutable_nodes());
  for (auto& node : *reply.mutable_nodes()) make_printable(node);
  return grpc::Status::OK;
}

grpc::Status AdminService::ListGpus(const pool::ListGpusRequest& request, pool::ListPoolGpusReply& reply) {
  Core& core = engine_.core();
  pool::ListNodesReply nodes;
  core.view_nodes(*nodes.mutable_nodes());
  for (const auto& node : nodes.nodes()) {
    if (request.node().empty() || request.node() == node.name()) reply.mutable_gpus()->MergeFrom(node.gpus());
  }
  return grpc::Status::OK;
}

grpc::Status AdminService::ListLeases(const pool::ListLeasesRequest& request, pool::ListLeasesReply& reply) {
  Core& core = engine_.core();
  pool::ListLeasesReply all;
  core.view_leases(*all.mutable_leases());
  for (auto& lease : *all.mutable_leases()) {
    if (!request.tenant().empty() && lease.tenant() != request.tenant()) continue;
    const auto on_node = [&](const auto& part) { return part.node() == request.node(); };
    const bool there = request.node().empty() ||
                       std::any_of(lease.parts().begin(), lease.parts().end(), on_node) ||
                       std::any_of(lease.moves().begin(), lease.moves().end(),
                                   [&](const auto& move) { return on_node(move.part()); });
    if (!there) continue;
    make_printable(lease);
    reply.add_leases()->Swap(&lease);
  }
  return grpc::Status::OK;
}

grpc::Status AdminService::ListQueue(const pool::ListQueueRequest& request, pool::ListQueueReply& reply) {
  Core& core = engine_.core();
  pool::ListQueueReply all;
  core.view_queue(*all.mutable_waiting());
  for (auto& waiting : *all.mutable_waiting()) {
    if (!request.tenant().empty() && waiting.tenant() != request.tenant()) continue;
    make_printable(waiting);
    reply.add_waiting()->Swap(&waiting);
  }
  return grpc::Status::OK;
}

grpc::Status AdminService::ListTenants(const pool::ListPoolTenantsRequest&,
                                       pool::ListPoolTenantsReply& reply) {
  Core& core = engine_.core();
  core.view_tenants(*reply.mutable_tenants(), engine_.now());
  return grpc::Status::OK;
}

grpc::Status AdminService::GetQuota(const pool::GetTenantQuotaRequest& request, pool::TenantQuota& reply) {
  Core& core = engine_.core();
  const auto found = core.tenants().find(request.tenant());
  if (found == core.tenants().end())
    return {grpc::StatusCode::NOT_FOUND, "unknown tenant '" + brief_name(request.tenant()) + "'"};
  reply = found->second.quota;
  return grpc::Status::OK;
}

grpc::Status AdminService::SetQuota(const pool::SetTenantQuotaRequest& request, pool::TenantQuota& reply) {
  Core& core = engine_.core();
  return take(core.set_quota(request.tenant(), request.quota(), engine_.now()), &reply);
}

grpc::Status AdminService::ClearQuota(const pool::ClearTenantQuotaRequest& request,
                                      pool::TenantQuota& reply) {
  Core& core = engine_.core();
  return take(core.clear_quota(request.tenant(), engine_.now()), &reply);
}

grpc::Status AdminService::GetPolicy(const pool::GetPolicyRequest&, pool::Policy& reply) {
  Core& core = engine_.core();
  reply = core.policy();
  return grpc::Status::OK;
}

grpc::Status AdminService::SetPolicy(const pool::Policy& request, pool::Policy& reply) {
  Core& core = engine_.core();
  return take(core.set_policy(request, engine_.now()), &reply);
}

grpc::Status AdminService::Drain(const pool::DrainRequest& request, pool::NodeState& reply) {
  Core& core = engine_.core();
  if (request.reason().size() > kLongestReason) return too_long();
  const auto done = core.drain(request.node(), printable(request.reason()), request.evict(),
                               grace_of(request), engine_.now(), request.move());
  return done ? take(core.view_node(request.node()), &reply) : failed(done.error());
}

grpc::Status AdminService::Undrain(const pool::UndrainRequest& request, pool::NodeState& reply) {
  Core& core = engine_.core();
  const auto done = core.undrain(request.node(), engine_.now());
  return done ? take(core.view_node(request.node()), &reply) : failed(done.error());
}

grpc::Status AdminService::RemoveNode(const pool::RemoveNodeRequest& request, pool::RemoveNodeReply& reply) {
  Core& core = engine_.core();
  const auto ended = core.remove_node(request.node(), engine_.now());
  if (!ended && ended.error().code == ErrorCode::invalid)
    return {grpc::StatusCode::FAILED_PRECONDITION, ended.error().message};
  if (!ended) return failed(ended.error());
  reply.set_leases_ended(*ended);
  return grpc::Status::OK;
}

grpc::Status AdminService::TrustGpu(const pool::TrustGpuRequest& request, pool::NodeState& reply) {
  Core& core = engine_.core();
  const auto done = core.trust_gpu(request.node(), request.gpu(), engine_.now());
  return done ? take(core.view_node(request.node()), &reply) : failed(done.error());
}

grpc::Status AdminService::Evict(const pool::EvictRequest& request, pool::LeaseState& reply) {
  Core& core = engine_.core();
  if (request.reason().size() > kLongestReason) return too_long();
  return view(core.evict(request.lease(), printable(request.reason()), grace_of(request), engine_.now()),
              reply);
}

grpc::Status AdminService::Move(const pool::MoveRequest& request, pool::LeaseState& reply) {
  Core& core = engine_.core();
  return view(core.move(request.lease(), request.from(), request.to(), engine_.now()), reply);
}

grpc::Status AdminService::Suspend(const pool::SuspendRequest& request, pool::LeaseState& reply) {
  return view(engine_.core().suspend_lease(request.lease(), engine_.now()), reply);
}

grpc::Status AdminService::Resume(const pool::SuspendRequest& request, pool::LeaseState& reply) {
  return view(engine_.core().resume_lease(request.lease(), engine_.now()), reply);
}

// Answers a command with the lease that it has changed.
grpc::Status AdminService::view(const Result<LeaseId>& lease, pool::LeaseState& reply) {
  if (!lease) return failed(lease.error());
  const grpc::Status status = take(engine_.core().view_lease(*lease), &reply);
  make_printable(reply);
  return status;
}

grpc::Status AdminService::Why(const pool::WhyRequest& request, pool::WhyReply& reply) {
  Core& core = engine_.core();
  const auto lines = core.why(request.id(), engine_.now());
  if (!lines) return failed(lines.error());
  for (const std::string& line : *lines) reply.add_lines(printable(line));
  return grpc::Status::OK;
}

}  // namespace gpupool::scheduler
