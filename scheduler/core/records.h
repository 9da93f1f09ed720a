// Keys and serialized values (records.proto) of the scheduler's records in the store. Core writes them in
// take() and reads them in restore().
//
//   lease/<id in hexadecimal>   LeaseRecord
//   node/<name>                 NodeRecord
//   quota/<tenant>              pool.TenantQuota: only the fields that an operator has set
//   policy                      pool.Policy: all fields
//   defragmentation             DefragmentationRecord
//   spending/<tenant>           SpendingRecord
//   usage/hour/<YYYY-MM-DD>/<HH>/<lease id in hexadecimal>
//                               pool.UsageRow: what the lease used in this hour (UTC)
//   usage/hour/<YYYY-MM-DD>/<HH>/~<lease id in hexadecimal>
//                               pool.UsageRow: leases of a tenant that have no row of their own
//   usage/day/<YYYY-MM-DD>/<number>
//                               pool.UsageRow: sums of an earlier day
//   usage/days                  UsageDaysRecord: which days there are (service/usage_history.h)
#pragma once
#include <string>

#include "scheduler/core/lease.h"

namespace gpupool::scheduler {

constexpr const char* kLeasePrefix = "lease/";
constexpr const char* kNodePrefix = "node/";
constexpr const char* kQuotaPrefix = "quota/";
constexpr const char* kPolicyKey = "policy";
constexpr const char* kDefragmentationKey = "defragmentation";
constexpr const char* kSpendingPrefix = "spending/";
constexpr const char* kUsageHourPrefix = "usage/hour/";
constexpr const char* kUsageDayPrefix = "usage/day/";
constexpr const char* kUsageDaysKey = "usage/days";

// The prefixes of the keys that Core::restore() reads.
constexpr const char* kStatePrefixes[] = {kDefragmentationKey, kLeasePrefix, kNodePrefix,
                                          kPolicyKey,          kQuotaPrefix, kSpendingPrefix};

std::string lease_key(const LeaseId& id);
std::string lease_record(const Lease& lease);
std::string node_key(const std::string& name);
std::string node_record(const Node& node);

}  // namespace gpupool::scheduler
