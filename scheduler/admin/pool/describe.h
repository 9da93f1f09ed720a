// Formats the pool's state as text for pool-admin: tables for a line of `width` characters; 0: unlimited.
// Pure functions.
#pragma once
#include <string>

#include "common/text/units.h"
#include "protocol/control/pool_policy_kinds.h"

namespace gpupool::admin {

std::string nodes_text(const google::protobuf::RepeatedPtrField<pool::NodeState>& nodes, int64_t now_ms,
                       size_t width);
std::string gpus_text(const google::protobuf::RepeatedPtrField<pool::PoolGpu>& gpus, size_t width);
// `now_ms`: the present time, for ages.
std::string leases_text(const google::protobuf::RepeatedPtrField<pool::LeaseState>& leases, int64_t now_ms,
                        size_t width);
// Says what the moves of a lease are doing: "moving to n2 (since 5s)"; empty: nothing.
std::string moves_text(const pool::LeaseState& lease, int64_t now_ms);
// Says how far the lease's suspension is: "suspended, 5.0 GiB (since 2m)"; empty: it is not suspended.
std::string suspension_text(const pool::LeaseState& lease, int64_t now_ms);
std::string queue_text(const google::protobuf::RepeatedPtrField<pool::Waiting>& waiting, int64_t now_ms,
                       size_t width);
std::string tenants_text(const google::protobuf::RepeatedPtrField<pool::TenantState>& tenants, size_t width);
std::string quotas_text(const google::protobuf::RepeatedPtrField<pool::TenantState>& tenants, size_t width);
std::string quota_text(const std::string& tenant, const pool::TenantQuota& quota);
std::string policy_text(const pool::Policy& policy);
std::string policy_value_text(const pool::PolicyKind& kind, uint64_t value);  // as in policy_text()
std::string pool_text(const pool::PoolState& state, int64_t now_ms);
// Formats one snapshot of `top`. Rates are computed since `before`, which may be null.
std::string render_snapshot(const pool::PoolSnapshot& now, const pool::PoolSnapshot* before, size_t width);

// Converts thousandths to a number of GPUs: "0.5", "2".
inline std::string gpus_of(uint64_t compute_milli) {
  return milli_text(compute_milli);
}

}  // namespace gpupool::admin
