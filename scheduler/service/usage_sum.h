// Sums up rows of usage by the dimensions of a request (PoolAdmin.GetUsage). Pure; any thread. Texts of
// clients become printable.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/result.h"
#include "protocol/control/usage.pb.h"
#include "scheduler/core/prices.h"

namespace gpupool::scheduler {

// Returns the value of the label "KEY=VALUE", "true" for a label that is only the key, or "".
std::string label_value(const pool::UsageRow& row, const std::string& key);

class UsageSum {
 public:
  static constexpr size_t kMostGroups = 10'000;
  static constexpr int kMostDimensions = 8;

  // ErrorCode::invalid: a dimension is unknown, or there are too many.
  static Result<UsageSum> make(const pool::GetUsageRequest& request, Prices prices);

  // Adds what a lease used in an hour, given in milliseconds since 1970. Of a row of a whole day: the day's
  // begin, and the value of the dimension "hour" is the day. ErrorCode::limit: too many groups.
  Result<void> add(int64_t begin_ms, bool whole_day, const pool::UsageRow& row);
  pool::GetUsageReply reply() const;

 private:
  struct Place {
    int64_t begin_ms;
    bool whole_day;
    const pool::UsageRow& row;
    const pool::UsagePart& part;
  };
  using Dimension = std::function<std::string(const Place&)>;
  struct Group {
    pool::UsageAmounts amounts;
    double cost = 0;
  };
  static Result<Dimension> dimension(const std::string& name);

  std::string tenant_;
  Prices prices_;
  std::vector<Dimension> dimensions_;
  std::map<std::vector<std::string>, Group> groups_;
};

// Adds up rows that agree in tenant, user, labels and program; their leases and hours are lost. What would be
// further rows of a tenant becomes one row of the tenant alone.
class UsageDay {
 public:
  static constexpr size_t kMostRows = 10'000;  // of a tenant

  void add(const pool::UsageRow& row);
  std::vector<pool::UsageRow> rows() const;

 private:
  std::map<std::string,
           std::pair<pool::UsageRow, std::map<std::pair<std::string, std::string>, pool::UsageAmounts>>>
      rows_;
  std::map<std::string, size_t> of_tenant_;  // number of rows
};

}  // namespace gpupool::scheduler
