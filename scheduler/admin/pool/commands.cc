#include "scheduler/admin/pool/commands.h"

#include <chrono>
#include <cmath>
#include <cstdio>

#include "common/text/printable.h"
#include "common/text/units.h"
#include "scheduler/admin/pool/describe.h"
#include "scheduler/admin/pool/words.h"
#include "scheduler/admin/terminal.h"
#include "scheduler/json/pool_json.h"

namespace gpupool::admin {
namespace {

constexpr std::chrono::milliseconds kBetweenTries{200};  // interval at which `top` looks for a new leader

using Stub = pool::PoolAdmin::Stub;
using pool::json_of;

Exit print(const std::string& text) {
  show(text);
  return kExitGood;
}

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

template <class T>
T read(const Result<T>& words) {
  if (!words) throw Failure(kExitUsage, words.error().message);
  return *words;
}

uint32_t milliseconds_of(double seconds) {
  return static_cast<uint32_t>(std::lround(std::min(seconds, 4e6) * 1000));
}

}  // namespace

Exit PoolCommands::health() {
  const auto state = scheduler_.call(&Stub::GetPool, pool::GetPoolRequest());
  print(json_ ? line_of(json_of(state)) : pool_text(state, now_ms()));
  return state.leader() ? kExitGood : kExitRefused;
}

Exit PoolCommands::nodes() {
  const auto reply = scheduler_.call(&Stub::ListNodes, pool::ListNodesRequest());
  return print(json_ ? line_of(json_list(reply.nodes()))
                     : nodes_text(reply.nodes(), now_ms(), terminal_width()));
}

Exit PoolCommands::gpus(const std::string& node) {
  pool::ListGpusRequest request;
  request.set_node(printable(node));
  const auto reply = scheduler_.call(&Stub::ListGpus, request);
  return print(json_ ? line_of(json_list(reply.gpus())) : gpus_text(reply.gpus(), terminal_width()));
}

Exit PoolCommands::leases(const std::string& tenant, const std::string& node) {
  pool::ListLeasesRequest request;
  request.set_tenant(printable(tenant));
  request.set_node(printable(node));
  const auto reply = scheduler_.call(&Stub::ListLeases, request);
  return print(json_ ? line_of(json_list(reply.leases()))
                     : leases_text(reply.leases(), now_ms(), terminal_width()));
}

Exit PoolCommands::queue(const std::string& tenant) {
  pool::ListQueueRequest request;
  request.set_tenant(printable(tenant));
  const auto reply = scheduler_.call(&Stub::ListQueue, request);
  return print(json_ ? line_of(json_list(reply.waiting()))
                     : queue_text(reply.waiting(), now_ms(), terminal_width()));
}

Exit PoolCommands::tenants() {
  const auto reply = scheduler_.call(&Stub::ListTenants, pool::ListPoolTenantsRequest());
  return print(json_ ? line_of(json_list(reply.tenants())) : tenants_text(reply.tenants(), terminal_width()));
}

Exit PoolCommands::quotas(const std::string& tenant) {
  if (tenant.empty()) {
    const auto reply = scheduler_.call(&Stub::ListTenants, pool::ListPoolTenantsRequest());
    if (!json_) return print(quotas_text(reply.tenants(), terminal_width()));
    Json quotas = Json::object();
    for (const auto& one : reply.tenants()) {
      if (one.configured()) quotas[one.name()] = json_of(one.quota());
    }
    return print(line_of(quotas));
  }
  pool::GetTenantQuotaRequest request;
  request.set_tenant(printable(tenant));
  const auto quota = scheduler_.call(&Stub::GetQuota, request);
  return print(json_ ? line_of(Json{{tenant, json_of(quota)}}) : quota_text(tenant, quota));
}

Exit PoolCommands::set_quota(const std::string& tenant, const std::vector<std::string>& words) {
  pool::SetTenantQuotaRequest request;
  request.set_tenant(printable(tenant));
  *request.mutable_quota() = read(read_tenant_quota(words));
  const auto quota = scheduler_.call(&Stub::SetQuota, request);
  return print(json_ ? line_of(Json{{tenant, json_of(quota)}}) : quota_text(tenant, quota));
}

Exit PoolCommands::clear_quota(const std::string& tenant) {
  pool::ClearTenantQuotaRequest request;
  request.set_tenant(printable(tenant));
  const auto quota = scheduler_.call(&Stub::ClearQuota, request);
  return print(json_ ? line_of(Json{{tenant, json_of(quota)}}) : quota_text(tenant, quota));
}

Exit PoolCommands::policy() {
  const auto policy = scheduler_.call(&Stub::GetPolicy, pool::GetPolicyRequest());
  return print(json_ ? line_of(json_of(policy)) : policy_text(policy));
}

Exit PoolCommands::set_policy(const std::vector<std::string>& words) {
  const auto policy = scheduler_.call(&Stub::SetPolicy, read(read_policy(words)));
  return print(json_ ? line_of(json_of(policy)) : policy_text(policy));
}

Exit PoolCommands::drain(const std::string& node, const std::string& reason, const Draining& how) {
  pool::DrainRequest request;
  request.set_node(printable(node));
  request.set_reason(printable(reason));
  request.set_evict(how.evict);
  request.set_move(how.move);
  if (how.grace_seconds) request.set_grace_ms(milliseconds_of(*how.grace_seconds));
  const auto state = scheduler_.call(&Stub::Drain, request);
  if (json_) return print(line_of(json_of(state)));
  std::string then = how.move ? " to move" : how.evict ? " ending" : " not affected";
  if (how.move && how.evict) {
    const int64_t left = std::max<int64_t>(0, state.evict_at_ms() - now_ms());
    then += ", those still there in " + std::to_string((left + 999) / 1000) + " s are evicted";
  }
  return print(node + " is drained: no new leases; " + counted(state.leases(), "lease") + then + "\n");
}

Exit PoolCommands::undrain(const std::string& node) {
  pool::UndrainRequest request;
  request.set_node(printable(node));
  const auto state = scheduler_.call(&Stub::Undrain, request);
  if (json_) return print(line_of(json_of(state)));
  return print(node + " is " + pool::text_of(state.condition()) +
               (state.because().empty() ? "" : ": " + state.because()) + "\n");
}

Exit PoolCommands::remove_node(const std::string& node) {
  pool::RemoveNodeRequest request;
  request.set_node(printable(node));
  const auto reply = scheduler_.call(&Stub::RemoveNode, request);
  if (json_) return print(line_of({{"node", node}, {"leases_ended", reply.leases_ended()}}));
  return print(node + " was removed with " + counted(reply.leases_ended(), "lease") + "\n");
}

Exit PoolCommands::trust_gpu(const std::string& node, const std::string& gpu) {
  pool::TrustGpuRequest request;
  request.set_node(printable(node));
  request.set_gpu(printable(gpu));
  const auto state = scheduler_.call(&Stub::TrustGpu, request);
  if (json_) return print(line_of(json_of(state)));
  return print(gpu + " now belongs to node " + node + "\n");
}

Exit PoolCommands::evict(const std::vector<std::string>& leases, const std::string& reason,
                         std::optional<double> grace_seconds) {
  Exit status = kExitGood;
  Json evicted = Json::array();
  for (const std::string& lease : leases) {
    pool::EvictRequest request;
    request.set_lease(printable(lease));
    request.set_reason(printable(reason));
    if (grace_seconds) request.set_grace_ms(milliseconds_of(*grace_seconds));
    try {
      const auto state = scheduler_.call(&Stub::Evict, request);
      evicted.push_back(json_of(state));
      const int64_t left = std::max<int64_t>(0, state.end_at_ms() - now_ms());
      if (!json_)
        print("lease " + state.id().substr(0, 8) + " of " + state.tenant() + " ends in " +
              std::to_string((left + 999) / 1000) + " s\n");
    } catch (const Failure& failure) {
      if (failure.status != kExitRefused) throw;
      std::fprintf(stderr, "pool-admin: %s\n", failure.what());
      status = failure.status;
    }
  }
  if (json_) print(line_of(evicted));
  return status;
}

Exit PoolCommands::move(const std::string& lease, const std::string& from, const std::string& to) {
  pool::MoveRequest request;
  request.set_lease(printable(lease));
  request.set_from(printable(from));
  request.set_to(printable(to));
  const auto state = scheduler_.call(&Stub::Move, request);
  if (json_) return print(line_of(json_of(state)));
  return print("lease " + state.id().substr(0, 8) + " of " + state.tenant() + ": " +
               moves_text(state, now_ms()) + "\n");
}

Exit PoolCommands::suspend(const std::string& lease) {
  pool::SuspendRequest request;
  request.set_lease(printable(lease));
  return print_suspension(scheduler_.call(&Stub::Suspend, request));
}

Exit PoolCommands::resume(const std::string& lease) {
  pool::SuspendRequest request;
  request.set_lease(printable(lease));
  return print_suspension(scheduler_.call(&Stub::Resume, request));
}

Exit PoolCommands::print_suspension(const pool::LeaseState& state) {
  if (json_) return print(line_of(json_of(state)));
  return print("lease " + state.id().substr(0, 8) + " of " + state.tenant() + ": " +
               suspension_text(state, now_ms()) + "\n");
}

Exit PoolCommands::why(const std::string& id) {
  pool::WhyRequest request;
  request.set_id(printable(id));
  const auto reply = scheduler_.call(&Stub::Why, request);
  if (json_)
    return print(line_of(Json(std::vector<std::string>(reply.lines().begin(), reply.lines().end()))));
  for (const std::string& line : reply.lines()) print(line + "\n");
  return kExitGood;
}

Exit PoolCommands::top(const TopSignals& signals, const TopOptions& options) {
  bool open = false, opened_once = false, said = false;
  const LiveView<pool::PoolSnapshot> view{
      .program = "the scheduler",
      .open =
          [&](grpc::ClientContext& context) {
            pool::PoolWatchRequest request;
            request.set_interval_ms(static_cast<uint32_t>(options.interval.count()));
            scheduler_.call(&Stub::GetPolicy, pool::GetPolicyRequest());  // finds the leader
            open = opened_once = true;
            said = false;
            scheduler_.attach_token(context);
            return scheduler_.stub().Watch(&context, request);
          },
      .check = [&](const grpc::Status& status) { scheduler_.check(status); },
      .render = [](const pool::PoolSnapshot& now, const pool::PoolSnapshot* before,
                   size_t width) { return render_snapshot(now, before, width); },
      .json_line = [](const pool::PoolSnapshot& snapshot) { return line_of(json_of(snapshot)); }};
  for (;;) {
    open = false;
    try {
      run_live(view, signals, options);
      return kExitGood;
    } catch (const Failure& failure) {
      // With several schedulers, wait for the next leader and continue there.
      if (!opened_once || failure.status != kExitUnreachable || !scheduler_.has_several()) throw;
      if (!open && !said)
        std::fprintf(stderr, "pool-admin: %s; retrying until a scheduler becomes the leader\n",
                     failure.what());
      said = said || !open;
      if (signals.wait_for_end(kBetweenTries)) return kExitGood;
    }
  }
}

}  // namespace gpupool::admin
