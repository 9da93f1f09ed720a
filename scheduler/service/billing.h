// Reads prices, budgets and quotas by time of day from the scheduler's configuration (docs/usage.md). Pure
// but for time zones, which are read from the host's database. Any thread. Errors are ErrorCode::invalid and
// begin with the key.
#pragma once
#include <toml++/toml.h>

#include <functional>
#include <vector>

#include "common/result.h"
#include "scheduler/core/budget.h"

namespace gpupool::scheduler {

// Reads [prices]; no prices if the file has none.
Result<Prices> read_prices(const toml::table& file);
// Reads `budgets` of a [[tenant]].
Result<std::vector<Budget>> read_budgets(const toml::node& node);
// Reads `quota_at` of a [[tenant]]; `read_quota` reads a quota.
Result<std::vector<QuotaWindow>> read_quota_windows(
    const toml::node& node, const std::function<Result<pool::TenantQuota>(const toml::node&)>& read_quota);

}  // namespace gpupool::scheduler
