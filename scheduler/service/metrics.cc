#include "scheduler/service/metrics.h"

#include <algorithm>

#include "common/http/metrics_page.h"
#include "common/version.h"

namespace gpupool::scheduler {
namespace {

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return text;
}

void add_pool(const pool::PoolState& state, MetricsPage& page) {
  const auto number = [](uint64_t value) { return static_cast<double>(value); };
  page.gauge("pool_term", "Leadership term.", number(state.term()));
  page.gauge("pool_start_time_seconds", "Unix time at which this scheduler became the leader.",
             static_cast<double>(state.started_ms()) * 1e-3);
  page.gauge("pool_leases", "Leases, including ending ones.", number(state.leases()));
  page.gauge("pool_leases_ending", "Ending leases whose nodes have not confirmed the end.",
             number(state.leases_ending()));
  page.gauge("pool_waiting", "Requests in the queue.", number(state.waiting()));
  page.gauge("pool_gpus_capacity", "GPUs of connected nodes.", number(state.compute_milli()) * 1e-3);
  page.gauge("pool_gpus_leased", "Leased GPUs, including shares.",
             number(state.compute_milli_leased()) * 1e-3);
  page.gauge("pool_memory_bytes", "GPU memory of connected nodes.", number(state.memory_bytes()));
  page.gauge("pool_memory_leased_bytes", "Leased GPU memory.", number(state.memory_bytes_leased()));
  const pool::PoolCounters& counters = state.counters();
  page.counter("pool_requests_total", "Requests for leases.", number(counters.requests()));
  page.counter("pool_refused_total", "Requests refused as impossible or because of a full queue.",
               number(counters.refused()));
  page.counter("pool_granted_total", "Leases that were granted.", number(counters.granted()));
  page.counter("pool_gave_up_total", "Requests cancelled while waiting.", number(counters.gave_up()));
  page.counter("pool_resumed_total", "Leases resumed by a reconnected client.", number(counters.resumed()));
  page.counter("pool_renewed_total", "Token renewals.", number(counters.renewed()));
  page.counter("pool_grant_wait_seconds_total", "Total time from request to grant.",
               number(counters.grant_wait_ms()) * 1e-3);
  page.counter("pool_placements_total", "Placement attempts.", number(counters.placements_tried()));
  page.counter("pool_nodes_lost_total", "Nodes lost because of missing heartbeats.",
               number(counters.nodes_lost()));
  page.counter("pool_nodes_fenced_total", "Times a node was fenced.", number(counters.nodes_fenced()));
  page.counter("pool_audit_records_total", "Audit records, including lost ones.",
               number(counters.audit_records()));
  page.counter("pool_audit_records_lost_total", "Records that could not be written to the audit file.",
               number(counters.audit_records_lost()));
  page.gauge("pool_gpus_withheld", "GPUs withheld because another node reports the same UUID.",
             number(state.gpus_withheld()));
  page.counter("pool_gpu_disputes_total", "Times a GPU was withheld.", number(counters.gpu_disputes()));
  page.counter("pool_store_commits_total", "Transactions of the store.", number(counters.store_commits()));
  page.counter("pool_store_failures_total", "Times the store failed, or another scheduler took over.",
               number(counters.store_failures()));
  page.counter("pool_callers_refused_total", "Calls with failed authentication.",
               number(counters.callers_refused()));
  auto ended = page.counter("pool_ended_total", "Ended leases, by reason.");
  for (const auto& one : counters.ended())
    ended.add({{"why", lower(pool::Ended::Why_Name(one.why()))}}, number(one.leases()));
}

void add_moves(const pool::PoolCounters& counters, MetricsPage& page) {
  const auto number = [](uint64_t value) { return static_cast<double>(value); };
  page.counter("pool_moves_total", "Moves of leases to other nodes that were begun.",
               number(counters.moves_begun()));
  {
    auto moves = page.counter("pool_moves_ended_total", "Ended moves of leases, by result.");
    moves.add({{"result", "moved"}}, number(counters.moves_done()));
    moves.add({{"result", "failed"}}, number(counters.moves_failed()));
    moves.add({{"result", "lease_ended"}}, number(counters.moves_cut()));
  }
  page.counter("pool_defragmentations_total", "Times that leases began to move to make room for a request.",
               number(counters.defragmentations()));
  {
    auto ended = page.counter("pool_defragmentations_ended_total",
                              "Requests for which leases moved, by what became of them.");
    ended.add({{"result", "granted"}}, number(counters.defragmentations_granted()));
    ended.add({{"result", "failed"}}, number(counters.defragmentations_failed()));
  }
  page.counter("pool_defragmentation_moves_total", "Moves of leases that made room for a request.",
               number(counters.defragmentation_moves()));
  page.counter("pool_defragmentation_bytes_total", "GPU memory of the leases that moved for that.",
               number(counters.defragmentation_bytes()));
}

void add_suspensions(const pool::PoolState& state, MetricsPage& page) {
  const pool::PoolCounters& counters = state.counters();
  const auto number = [](uint64_t value) { return static_cast<double>(value); };
  page.gauge("pool_leases_suspended", "Suspended leases, whose GPUs are free.",
             number(state.leases_suspended()));
  page.counter("pool_suspensions_total", "Suspensions of leases that were begun.",
               number(counters.suspensions_begun()));
  {
    auto ended = page.counter("pool_suspensions_ended_total", "Ended suspensions of leases, by result.");
    ended.add({{"result", "resumed"}}, number(counters.suspensions_resumed()));
    ended.add({{"result", "failed"}}, number(counters.suspensions_failed()));
    ended.add({{"result", "lease_ended"}}, number(counters.suspensions_cut()));
  }
  page.counter("pool_suspended_bytes_total", "Bytes of the files of leases that were suspended.",
               number(counters.suspended_bytes()));
  page.counter("pool_suspending_seconds_total",
               "Total time from the order to suspend a lease to its free GPUs.",
               number(counters.suspending_ms()) * 1e-3);
  page.counter("pool_suspended_seconds_total", "Total time that resumed leases were without their GPUs.",
               number(counters.suspended_ms()) * 1e-3);
  page.counter("pool_resuming_seconds_total",
               "Total time from the order to resume a lease to its last session.",
               number(counters.resuming_ms()) * 1e-3);
}

void add_nodes(const pool::PoolSnapshot& snapshot, MetricsPage& page) {
  {
    auto nodes = page.gauge("pool_nodes", "Nodes by condition.");
    for (int i = pool::NodeState::Condition_MIN; i <= pool::NodeState::Condition_MAX; ++i) {
      const auto condition = static_cast<pool::NodeState::Condition>(i);
      const auto count = std::count_if(snapshot.nodes().begin(), snapshot.nodes().end(),
                                       [&](const auto& node) { return node.condition() == condition; });
      nodes.add({{"condition", lower(pool::NodeState::Condition_Name(condition))}},
                static_cast<double>(count));
    }
  }
  const auto each = [&](const char* name, const char* help, auto value) {
    auto family = page.gauge(name, help);
    for (const auto& node : snapshot.nodes()) family.add({{"node", node.name()}}, value(node));
  };
  each("pool_node_open", "1 if leases can be placed on the node.",
       [](const auto& node) { return node.condition() == pool::NodeState::OPEN ? 1.0 : 0.0; });
  each("pool_node_clock_ahead_seconds", "Offset of the node's clock to the scheduler's.",
       [](const auto& node) { return static_cast<double>(node.clock_ahead_ms()) * 1e-3; });
  each("pool_node_gpus", "GPUs of the node.",
       [](const auto& node) { return static_cast<double>(node.gpus_size()); });
  each("pool_node_gpus_leased", "Leased GPUs of the node, including shares.", [](const auto& node) {
    double milli = 0;
    for (const auto& gpu : node.gpus()) milli += gpu.compute_milli_leased();
    return milli * 1e-3;
  });
}

void add_tenants(const pool::PoolSnapshot& snapshot, MetricsPage& page) {
  const auto each = [&](auto family, auto value) {
    for (const auto& tenant : snapshot.tenants())
      family.add({{"tenant", tenant.name()}}, static_cast<double>(value(tenant)));
  };
  each(page.gauge("pool_tenant_leases", "Leases of the tenant."),
       [](const auto& tenant) { return tenant.leases(); });
  each(page.gauge("pool_tenant_waiting", "Waiting requests of the tenant."),
       [](const auto& tenant) { return tenant.waiting(); });
  each(page.gauge("pool_tenant_gpus_leased", "Leased GPUs of the tenant, including shares."),
       [](const auto& tenant) { return static_cast<double>(tenant.compute_milli()) * 1e-3; });
  each(page.gauge("pool_tenant_dominant_share", "Dominant share of the tenant."),
       [](const auto& tenant) { return tenant.dominant_share(); });
  each(page.counter("pool_tenant_granted_total", "Leases granted to the tenant."),
       [](const auto& tenant) { return tenant.granted(); });
  each(page.counter("pool_tenant_gpu_seconds_total", "GPU seconds leased by the tenant."),
       [](const auto& tenant) { return static_cast<double>(tenant.gpu_milli_seconds()) * 1e-3; });
}

void add_budgets(const pool::PoolSnapshot& snapshot, MetricsPage& page) {
  const auto each = [&](const char* name, const char* help, auto value) {
    auto family = page.gauge(name, help);
    for (const auto& tenant : snapshot.tenants()) {
      for (const pool::BudgetState& budget : tenant.budgets())
        family.add({{"tenant", tenant.name()},
                    {"period", budget.period()},
                    {"action", budget.action()},
                    {"unit", budget.unit()}},
                   value(budget));
    }
  };
  each("pool_tenant_budget", "Budget of the tenant for one period.",
       [](const pool::BudgetState& budget) { return budget.amount(); });
  each("pool_tenant_budget_spent", "What was spent of the budget in the present period.",
       [](const pool::BudgetState& budget) { return budget.spent(); });
}

void add_scheduler(bool leads, MetricsPage& page) {
  page.gauge("pool_build_info", "Always 1.").add({{"version", kVersion}}, 1);
  page.gauge("pool_leader", "1 if this scheduler is the leader.", leads ? 1 : 0);
}

}  // namespace

std::string metrics_text(const pool::PoolSnapshot& snapshot) {
  MetricsPage page;
  add_scheduler(true, page);
  add_pool(snapshot.pool(), page);
  add_moves(snapshot.pool().counters(), page);
  add_suspensions(snapshot.pool(), page);
  add_nodes(snapshot, page);
  add_tenants(snapshot, page);
  add_budgets(snapshot, page);
  return page.text();
}

std::string metrics_text_of_follower() {
  MetricsPage page;
  add_scheduler(false, page);
  return page.text();
}

}  // namespace gpupool::scheduler
