#include "scheduler/service/usage_sum.h"

#include <utility>

#include "common/text/dates.h"
#include "common/text/names.h"
#include "common/text/printable.h"
#include "protocol/control/usage_amounts.h"
#include "protocol/lease/token.h"

namespace gpupool::scheduler {
namespace {

constexpr int64_t kDayInMs = 24 * 3'600'000;
constexpr std::string_view kLabelPrefix = "label:";
constexpr const char* kDimensionNames =
    "tenant, user, job, label:KEY, model, node, program, lease, hour, day";

std::string shown(const std::string& text) {
  return printable(cut_name(text));
}

}  // namespace

std::string label_value(const pool::UsageRow& row, const std::string& key) {
  for (const std::string& label : row.labels()) {
    if (label == key) return "true";
    if (label.size() > key.size() && label.starts_with(key) && label[key.size()] == '=')
      return label.substr(key.size() + 1);
  }
  return "";
}

Result<UsageSum::Dimension> UsageSum::dimension(const std::string& name) {
  if (name == "tenant") return Dimension([](const Place& at) { return at.row.tenant(); });
  if (name == "user")
    return Dimension([](const Place& at) {
      const std::string label = label_value(at.row, "user");
      return shown(label.empty() ? at.row.user() : label);
    });
  if (name == "job") return Dimension([](const Place& at) { return shown(label_value(at.row, "job")); });
  if (name == "model") return Dimension([](const Place& at) { return shown(at.part.model()); });
  if (name == "node") return Dimension([](const Place& at) { return at.part.node(); });
  if (name == "program") return Dimension([](const Place& at) { return shown(at.row.program()); });
  if (name == "lease") return Dimension([](const Place& at) { return lease::hexadecimal(at.row.lease()); });
  if (name == "day") return Dimension([](const Place& at) { return day_text(at.begin_ms / kDayInMs); });
  if (name == "hour")
    return Dimension([](const Place& at) {
      return at.whole_day ? day_text(at.begin_ms / kDayInMs) : time_text(at.begin_ms);
    });
  if (name.starts_with(kLabelPrefix) && name.size() > kLabelPrefix.size())
    return Dimension([key = name.substr(kLabelPrefix.size())](const Place& at) {
      return shown(label_value(at.row, key));
    });
  return Error{ErrorCode::invalid,
               "unknown dimension '" + brief_name(name) + "'; there are " + kDimensionNames};
}

Result<UsageSum> UsageSum::make(const pool::GetUsageRequest& request, Prices prices) {
  if (request.by_size() > kMostDimensions)
    return Error{ErrorCode::invalid, "at most " + std::to_string(kMostDimensions) + " dimensions"};
  UsageSum sum;
  sum.tenant_ = request.tenant();
  sum.prices_ = std::move(prices);
  for (const std::string& name : request.by()) {
    auto made = dimension(name);
    if (!made) return made.error();
    sum.dimensions_.push_back(std::move(*made));
  }
  return sum;
}

Result<void> UsageSum::add(int64_t begin_ms, bool whole_day, const pool::UsageRow& row) {
  if (!tenant_.empty() && row.tenant() != tenant_) return {};
  for (const pool::UsagePart& part : row.parts()) {
    std::vector<std::string> keys;
    for (const Dimension& dimension : dimensions_)
      keys.push_back(dimension({begin_ms, whole_day, row, part}));
    Group& group = groups_[std::move(keys)];
    if (groups_.size() > kMostGroups)
      return Error{ErrorCode::limit, "the usage has more than " + std::to_string(kMostGroups) +
                                         " groups: ask for a shorter time, or fewer dimensions"};
    pool::add_amounts(part.amounts(), group.amounts);
    group.cost += prices_.cost(part.model(), part.amounts());
  }
  return {};
}

pool::GetUsageReply UsageSum::reply() const {
  pool::GetUsageReply reply;
  reply.set_currency(prices_.currency);
  for (const auto& [keys, group] : groups_) {
    pool::UsageGroup& out = *reply.add_groups();
    for (const std::string& key : keys) out.add_keys(key);
    *out.mutable_amounts() = group.amounts;
    out.set_cost(group.cost);
  }
  return reply;
}

void UsageDay::add(const pool::UsageRow& row) {
  pool::UsageRow key;
  key.set_tenant(row.tenant());
  key.set_user(row.user());
  *key.mutable_labels() = row.labels();
  key.set_program(row.program());
  if (!rows_.contains(key.SerializeAsString()) && ++of_tenant_[row.tenant()] > kMostRows) {
    key.Clear();
    key.set_tenant(row.tenant());
  }
  auto& [whose, parts] = rows_[key.SerializeAsString()];
  whose = std::move(key);
  for (const pool::UsagePart& part : row.parts())
    pool::add_amounts(part.amounts(), parts[{part.node(), part.model()}]);
}

std::vector<pool::UsageRow> UsageDay::rows() const {
  std::vector<pool::UsageRow> all;
  for (const auto& [key, sum] : rows_) {
    pool::UsageRow& row = all.emplace_back(sum.first);
    for (const auto& [where, amounts] : sum.second) {
      pool::UsagePart& part = *row.add_parts();
      part.set_node(where.first);
      part.set_model(where.second);
      *part.mutable_amounts() = amounts;
    }
  }
  return all;
}

}  // namespace gpupool::scheduler
