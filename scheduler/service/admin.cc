#include "scheduler/service/admin.h"

#include <memory>

#include "common/text/names.h"
#include "common/text/printable.h"
#include "common/version.h"

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

// Returns OK if the caller is an operator and this scheduler leads; else the status to end the call with.
grpc::Status check(Engine& engine, Context& context, std::string* operator_ = nullptr) {
  const auto caller = engine.callers().find_operator(bearer_token(context));
  if (!caller) {
    const grpc::Status status = denied(caller.error());
    engine.auth_failures().note(peer_of_call(context), status);
    return status;
  }
  if (operator_) *operator_ = *caller;
  return engine.leads() && !engine.stopping() ? grpc::Status::OK : not_leading(engine, context);
}

// Answers a read-only call: runs `look`, which fills the reply, on the engine's thread.
template <class Look>
grpc::ServerUnaryReactor* answer(Engine& engine, Context* context, Look look) {
  auto* const reactor = context->DefaultReactor();
  engine.post([&engine, context, reactor, look = std::move(look)] {
    grpc::Status status = check(engine, *context);
    if (status.ok()) status = look(engine.core());
    reactor->Finish(status);
  });
  return reactor;
}

// Executes a command: runs `change` on the engine's thread, writes `what` and `on` to the audit file, and
// answers after the change has been stored.
template <class Change>
grpc::ServerUnaryReactor* change(Engine& engine, Context* context, const char* what, const std::string& on,
                                 Change change) {
  auto* const reactor = context->DefaultReactor();
  engine.post([&engine, context, reactor, what, on, change = std::move(change)] {
    std::string who;
    grpc::Status status = check(engine, *context, &who);
    if (status.ok()) status = change(engine.core());
    if (!status.ok()) return reactor->Finish(status);
    engine.audit("operator", {{"operator", who}, {"does", what}, {"on", cut_name(on)}});
    engine.flush([reactor](bool stored) {
      reactor->Finish(stored ? grpc::Status::OK
                             : grpc::Status(grpc::StatusCode::UNAVAILABLE, "the change could not be stored"));
    });
  });
  return reactor;
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

class Watcher final : public grpc::ServerWriteReactor<pool::PoolSnapshot> {
 public:
  Watcher(Engine& engine, Context& context, uint32_t interval_ms, int& watchers)
      : engine_(engine),
        context_(context),
        interval_(interval_ms),
        watchers_(watchers),
        timer_(engine.context()) {
    engine.post([this] { begin(); });
  }

 private:
  void begin() {
    grpc::Status status = check(engine_, context_);
    if (status.ok() && (interval_.count() < kShortestInterval || interval_.count() > kLongestInterval)) {
      status = {grpc::StatusCode::INVALID_ARGUMENT, "the interval must be 100 to 10000 ms"};
    }
    if (status.ok() && watchers_ >= kMaxWatchers)
      status = {grpc::StatusCode::RESOURCE_EXHAUSTED, "too many Watch calls"};
    ++watchers_;
    if (!status.ok()) return end(status);
    show();
  }
  void show() {
    if (ended_) return;
    // Check again: the token may have been removed from the configuration.
    if (const grpc::Status status = check(engine_, context_); !status.ok()) return end(status);
    snapshot_ = take_snapshot(engine_);
    writing_ = true;
    StartWrite(&snapshot_);
  }
  void end(const grpc::Status& status) {
    if (std::exchange(ended_, true)) return;
    timer_.cancel();
    Finish(status);
  }
  void OnWriteDone(bool good) override {
    engine_.post([this, good] {
      writing_ = false;
      if (cancelled_ || !good) return end(grpc::Status::CANCELLED);
      timer_.expires_after(interval_);
      timer_.async_wait([this](const asio::error_code& status) {
        if (!status) show();
      });
    });
  }
  void OnCancel() override {
    engine_.post([this] {
      cancelled_ = true;
      if (!writing_) end(grpc::Status::CANCELLED);
    });
  }
  void OnDone() override {
    engine_.post([this] {
      --watchers_;
      timer_.cancel();
      engine_.post([this] { delete this; });  // after the cancelled timer's handler
    });
  }

  Engine& engine_;
  Context& context_;
  const std::chrono::milliseconds interval_;
  int& watchers_;
  asio::steady_timer timer_;
  pool::PoolSnapshot snapshot_;
  bool writing_ = false, cancelled_ = false, ended_ = false;
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

grpc::ServerUnaryReactor* AdminService::GetPool(Context* context, const pool::GetPoolRequest*,
                                                pool::PoolState* reply) {
  return answer(engine_, context, [this, reply](Core&) {
    *reply = pool_state(engine_);
    return grpc::Status::OK;
  });
}

grpc::ServerUnaryReactor* AdminService::ListNodes(Context* context, const pool::ListNodesRequest*,
                                                  pool::ListNodesReply* reply) {
  return answer(engine_, context, [reply](Core& core) {
    core.view_nodes(*reply->mutable_nodes());
    for (auto& node : *reply->mutable_nodes()) make_printable(node);
    return grpc::Status::OK;
  });
}

grpc::ServerUnaryReactor* AdminService::ListGpus(Context* context, const pool::ListGpusRequest* request,
                                                 pool::ListPoolGpusReply* reply) {
  return answer(engine_, context, [request, reply](Core& core) {
    pool::ListNodesReply nodes;
    core.view_nodes(*nodes.mutable_nodes());
    for (const auto& node : nodes.nodes()) {
      if (request->node().empty() || request->node() == node.name())
        reply->mutable_gpus()->MergeFrom(node.gpus());
    }
    return grpc::Status::OK;
  });
}

grpc::ServerUnaryReactor* AdminService::ListLeases(Context* context, const pool::ListLeasesRequest* request,
                                                   pool::ListLeasesReply* reply) {
  return answer(engine_, context, [request, reply](Core& core) {
    pool::ListLeasesReply all;
    core.view_leases(*all.mutable_leases());
    for (auto& lease : *all.mutable_leases()) {
      if (!request->tenant().empty() && lease.tenant() != request->tenant()) continue;
      const bool there = request->node().empty() ||
                         std::any_of(lease.parts().begin(), lease.parts().end(),
                                     [&](const auto& part) { return part.node() == request->node(); });
      if (!there) continue;
      make_printable(lease);
      reply->add_leases()->Swap(&lease);
    }
    return grpc::Status::OK;
  });
}

grpc::ServerUnaryReactor* AdminService::ListQueue(Context* context, const pool::ListQueueRequest* request,
                                                  pool::ListQueueReply* reply) {
  return answer(engine_, context, [request, reply](Core& core) {
    pool::ListQueueReply all;
    core.view_queue(*all.mutable_waiting());
    for (auto& waiting : *all.mutable_waiting()) {
      if (!request->tenant().empty() && waiting.tenant() != request->tenant()) continue;
      make_printable(waiting);
      reply->add_waiting()->Swap(&waiting);
    }
    return grpc::Status::OK;
  });
}

grpc::ServerUnaryReactor* AdminService::ListTenants(Context* context, const pool::ListPoolTenantsRequest*,
                                                    pool::ListPoolTenantsReply* reply) {
  return answer(engine_, context, [this, reply](Core& core) {
    core.view_tenants(*reply->mutable_tenants(), engine_.now());
    return grpc::Status::OK;
  });
}

grpc::ServerUnaryReactor* AdminService::GetQuota(Context* context, const pool::GetTenantQuotaRequest* request,
                                                 pool::TenantQuota* reply) {
  return answer(engine_, context, [request, reply](Core& core) -> grpc::Status {
    const auto found = core.tenants().find(request->tenant());
    if (found == core.tenants().end())
      return {grpc::StatusCode::NOT_FOUND, "unknown tenant '" + brief_name(request->tenant()) + "'"};
    *reply = found->second.quota;
    return grpc::Status::OK;
  });
}

grpc::ServerUnaryReactor* AdminService::SetQuota(Context* context, const pool::SetTenantQuotaRequest* request,
                                                 pool::TenantQuota* reply) {
  return change(engine_, context, "set_quota", request->tenant(), [this, request, reply](Core& core) {
    return take(core.set_quota(request->tenant(), request->quota(), engine_.now()), reply);
  });
}

grpc::ServerUnaryReactor* AdminService::ClearQuota(Context* context,
                                                   const pool::ClearTenantQuotaRequest* request,
                                                   pool::TenantQuota* reply) {
  return change(engine_, context, "clear_quota", request->tenant(), [this, request, reply](Core& core) {
    return take(core.clear_quota(request->tenant(), engine_.now()), reply);
  });
}

grpc::ServerUnaryReactor* AdminService::GetPolicy(Context* context, const pool::GetPolicyRequest*,
                                                  pool::Policy* reply) {
  return answer(engine_, context, [reply](Core& core) {
    *reply = core.policy();
    return grpc::Status::OK;
  });
}

grpc::ServerUnaryReactor* AdminService::SetPolicy(Context* context, const pool::Policy* request,
                                                  pool::Policy* reply) {
  return change(engine_, context, "set_policy", "", [this, request, reply](Core& core) {
    return take(core.set_policy(*request, engine_.now()), reply);
  });
}

grpc::ServerUnaryReactor* AdminService::Drain(Context* context, const pool::DrainRequest* request,
                                              pool::NodeState* reply) {
  return change(engine_, context, "drain", request->node(), [this, request, reply](Core& core) {
    if (request->reason().size() > kLongestReason) return too_long();
    const auto done = core.drain(request->node(), printable(request->reason()), request->evict(),
                                 grace_of(*request), engine_.now());
    return done ? take(core.view_node(request->node()), reply) : failed(done.error());
  });
}

grpc::ServerUnaryReactor* AdminService::Undrain(Context* context, const pool::UndrainRequest* request,
                                                pool::NodeState* reply) {
  return change(engine_, context, "undrain", request->node(), [this, request, reply](Core& core) {
    const auto done = core.undrain(request->node(), engine_.now());
    return done ? take(core.view_node(request->node()), reply) : failed(done.error());
  });
}

grpc::ServerUnaryReactor* AdminService::RemoveNode(Context* context, const pool::RemoveNodeRequest* request,
                                                   pool::RemoveNodeReply* reply) {
  return change(engine_, context, "remove_node", request->node(),
                [this, request, reply](Core& core) -> grpc::Status {
                  const auto ended = core.remove_node(request->node(), engine_.now());
                  if (!ended && ended.error().code == ErrorCode::invalid)
                    return {grpc::StatusCode::FAILED_PRECONDITION, ended.error().message};
                  if (!ended) return failed(ended.error());
                  reply->set_leases_ended(*ended);
                  return grpc::Status::OK;
                });
}

grpc::ServerUnaryReactor* AdminService::TrustGpu(Context* context, const pool::TrustGpuRequest* request,
                                                 pool::NodeState* reply) {
  return change(engine_, context, "trust_gpu", request->node() + " " + request->gpu(),
                [this, request, reply](Core& core) {
                  const auto done = core.trust_gpu(request->node(), request->gpu(), engine_.now());
                  return done ? take(core.view_node(request->node()), reply) : failed(done.error());
                });
}

grpc::ServerUnaryReactor* AdminService::Evict(Context* context, const pool::EvictRequest* request,
                                              pool::LeaseState* reply) {
  return change(engine_, context, "evict", request->lease(), [this, request, reply](Core& core) {
    if (request->reason().size() > kLongestReason) return too_long();
    const auto lease =
        core.evict(request->lease(), printable(request->reason()), grace_of(*request), engine_.now());
    if (!lease) return failed(lease.error());
    const grpc::Status status = take(core.view_lease(*lease), reply);
    make_printable(*reply);
    return status;
  });
}

grpc::ServerUnaryReactor* AdminService::Why(Context* context, const pool::WhyRequest* request,
                                            pool::WhyReply* reply) {
  return answer(engine_, context, [this, request, reply](Core& core) {
    const auto lines = core.why(request->id(), engine_.now());
    if (!lines) return failed(lines.error());
    for (const std::string& line : *lines) reply->add_lines(printable(line));
    return grpc::Status::OK;
  });
}

grpc::ServerWriteReactor<pool::PoolSnapshot>* AdminService::Watch(Context* context,
                                                                  const pool::PoolWatchRequest* request) {
  return new Watcher(engine_, *context, request->interval_ms(), watchers_);
}

}  // namespace gpupool::scheduler
