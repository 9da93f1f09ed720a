// `pool-admin usage`: the usage of leases as a table, CSV, JSON, or OpenCost's custom costs. Pure functions
// but for PoolCommands::usage() (commands.h). Texts of clients are not trusted: the scheduler makes them
// printable, and CSV cannot make a spreadsheet compute.
#pragma once
#include <string>
#include <vector>

#include "common/result.h"
#include "protocol/control/usage.pb.h"
#include "scheduler/json/json.h"

namespace gpupool::admin {

struct UsageOptions {
  std::string from, to;  // dates or times; empty: the begin of the month, and now
  std::vector<std::string> by{"tenant"};
  std::string tenant;  // only of this one; empty: all
  bool csv = false, opencost = false;
};

// ErrorCode::invalid: a time cannot be read.
Result<pool::GetUsageRequest> usage_request(const UsageOptions& options, int64_t now_ms);

std::string usage_text(const pool::GetUsageReply& usage, const std::vector<std::string>& by, size_t width);
std::string usage_csv(const pool::GetUsageReply& usage, const std::vector<std::string>& by);
Json usage_json(const pool::GetUsageReply& usage, const std::vector<std::string>& by);
// The same as a list of OpenCost's CustomCostResponse (docs/usage.md), one for each day. `by` begins with
// "day".
Json opencost_json(const pool::GetUsageReply& usage, const std::vector<std::string>& by);

// Returns a field of CSV: quoted where necessary, and with an apostrophe before what a spreadsheet would
// compute.
std::string csv_field(const std::string& text);

}  // namespace gpupool::admin
