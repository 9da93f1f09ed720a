#include "scheduler/admin/pool/usage.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "common/text/dates.h"
#include "common/text/printable.h"
#include "common/text/units.h"
#include "protocol/control/usage_amounts.h"
#include "scheduler/admin/format.h"
#include "scheduler/admin/pool/commands.h"
#include "scheduler/admin/table.h"
#include "scheduler/admin/terminal.h"

namespace gpupool::admin {
namespace {

constexpr int64_t kHourMs = 3'600'000, kDayMs = 24 * kHourMs;
constexpr double kMsPerHour = 3.6e6;

double number(uint64_t value) {
  return static_cast<double>(value);
}

std::string decimal(double value) {
  return format("%.2f", value);
}

// Writes a number so that it can be read back, without an exponent as far as it is sensible.
std::string exact(double value) {
  const bool is_whole = std::abs(value) < 1e15 && value == std::trunc(value);
  return is_whole ? format("%.0f", value) : format("%.6f", value);
}

// What a group has in the dimension; no entry: an older scheduler.
std::string key_of(const pool::UsageGroup& group, size_t dimension) {
  return static_cast<int>(dimension) < group.keys_size() ? group.keys(static_cast<int>(dimension)) : "";
}

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; });
  return text;
}

std::vector<std::string> cells(const pool::UsageAmounts& amounts) {
  return {decimal(number(amounts.leased_milli_ms()) / 1000 / kMsPerHour),
          decimal(number(amounts.gpu_nanoseconds()) / 1e9 / 3600),
          decimal(number(amounts.leased_memory_kib_ms()) / (1 << 20) / kMsPerHour),
          decimal(number(amounts.used_memory_kib_ms()) / (1 << 20) / kMsPerHour),
          bytes_text(amounts.bytes_from_client()),
          bytes_text(amounts.bytes_to_client()),
          amounts.energy_millijoules() == 0 ? "-" : decimal(number(amounts.energy_millijoules()) / 3.6e9)};
}

Json amounts_json(const pool::UsageAmounts& amounts) {
  Json json = Json::object();
  for (const pool::UsageField& field : pool::kUsageFields) {
    const uint64_t value = field.get(amounts);
    json[field.key] = field.divisor == 1 ? Json(value) : Json(number(value) / field.divisor);
  }
  return json;
}

// A charge in the form of OpenCost's CustomCost.
Json custom_cost(const pool::UsageGroup& group, const std::vector<std::string>& by) {
  Json labels = Json::object();
  std::string id = "gpupool/" + key_of(group, 0);  // unique in all responses
  for (size_t i = 1; i < by.size(); ++i) {
    labels[by[i].starts_with("label:") ? by[i].substr(6) : by[i]] = key_of(group, i);
    id += "/" + key_of(group, i);
  }
  const auto of = [&](const char* dimension) {
    const auto found = std::find(by.begin(), by.end(), dimension);
    return found == by.end() ? std::string() : key_of(group, static_cast<size_t>(found - by.begin()));
  };
  const double hours = number(group.amounts().leased_milli_ms()) / 1000 / kMsPerHour;
  return {{"zone", ""},
          {"account_name", of("tenant")},
          {"charge_category", "Usage"},
          {"description", "GPU shares leased from gpupool"},
          {"resource_name", of("model")},
          {"resource_type", "gpu"},
          {"id", id},
          {"provider_id", id},
          {"billed_cost", group.cost()},
          {"list_cost", group.cost()},
          {"list_unit_price", hours > 0 ? group.cost() / hours : 0.0},
          {"usage_quantity", hours},
          {"usage_unit", "GPU hours"},
          {"labels", labels}};
}

}  // namespace

Result<pool::GetUsageRequest> usage_request(const UsageOptions& options, int64_t now_ms) {
  pool::GetUsageRequest request;
  const auto from = options.from.empty() ? Result<int64_t>(month_begin(now_ms / kDayMs) * kDayMs)
                                         : parse_time(options.from);
  const auto to = options.to.empty() ? Result<int64_t>(now_ms + kHourMs) : parse_time(options.to);
  if (!from) return Error{from.error().code, "--from: " + from.error().message};
  if (!to) return Error{to.error().code, "--to: " + to.error().message};
  if (*from >= *to) return Error{ErrorCode::invalid, "--from must be before --to"};
  request.set_from_ms(*from);
  request.set_to_ms(*to);
  if (options.opencost) request.add_by("day");
  for (const std::string& name : options.by) request.add_by(printable(name == "gpu-model" ? "model" : name));
  request.set_tenant(printable(options.tenant));
  return request;
}

std::string usage_text(const pool::GetUsageReply& usage, const std::vector<std::string>& by, size_t width) {
  std::vector<Table::Column> columns;
  for (const std::string& name : by) columns.push_back({.title = upper(name), .shortest = 8});
  const auto add = [&](const std::string& title, int importance) {
    columns.push_back({.title = title, .right = true, .importance = importance});
  };
  add("GPU HOURS", 100);
  add("BUSY", 90);
  add("GIB HOURS", 80);
  add("USED", 70);
  add("RECEIVED", 40);
  add("SENT", 40);
  add("KWH", 50);
  if (!usage.currency().empty()) add("COST " + printable(usage.currency()), 100);
  Table table(std::move(columns));
  for (const pool::UsageGroup& group : usage.groups()) {
    std::vector<std::string> row;
    for (size_t i = 0; i < by.size(); ++i) row.push_back(key_of(group, i).empty() ? "-" : key_of(group, i));
    for (std::string& cell : cells(group.amounts())) row.push_back(std::move(cell));
    if (!usage.currency().empty()) row.push_back(decimal(group.cost()));
    table.add(std::move(row));
  }
  const std::string range = time_text(usage.from_ms()) + " to " + time_text(usage.to_ms());
  if (table.empty()) return "no usage from " + range + "\n";
  return "usage from " + range + "\n" + table.text(width);
}

std::string csv_field(const std::string& text) {
  std::string field = printable(text);
  if (!field.empty() && std::string_view("=+-@\t\r").find(field.front()) != std::string_view::npos)
    field.insert(field.begin(), '\'');
  if (field.find_first_of(",\"\r\n ") == field.npos) return field;
  std::string quoted = "\"";
  for (const char c : field) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::string usage_csv(const pool::GetUsageReply& usage, const std::vector<std::string>& by) {
  std::string text;
  for (const std::string& name : by) text += csv_field(name) + ",";
  for (const pool::UsageField& field : pool::kUsageFields) text += std::string(field.key) + ",";
  text += "cost,currency\r\n";
  for (const pool::UsageGroup& group : usage.groups()) {
    for (size_t i = 0; i < by.size(); ++i) text += csv_field(key_of(group, i)) + ",";
    for (const pool::UsageField& field : pool::kUsageFields)
      text += exact(number(field.get(group.amounts())) / field.divisor) + ",";
    text +=
        (usage.currency().empty() ? "" : exact(group.cost())) + "," + csv_field(usage.currency()) + "\r\n";
  }
  return text;
}

Json usage_json(const pool::GetUsageReply& usage, const std::vector<std::string>& by) {
  Json groups = Json::array();
  for (const pool::UsageGroup& group : usage.groups()) {
    Json one = Json::object();
    for (size_t i = 0; i < by.size(); ++i) one[by[i]] = key_of(group, i);
    one.update(amounts_json(group.amounts()));
    one["cost"] = usage.currency().empty() ? Json(nullptr) : Json(group.cost());
    groups.push_back(std::move(one));
  }
  return {{"from", time_text(usage.from_ms())},
          {"to", time_text(usage.to_ms())},
          {"by", by},
          {"currency", usage.currency().empty() ? Json(nullptr) : Json(usage.currency())},
          {"groups", std::move(groups)}};
}

Json opencost_json(const pool::GetUsageReply& usage, const std::vector<std::string>& by) {
  Json responses = Json::array();
  std::string day;
  for (const pool::UsageGroup& group : usage.groups()) {
    const auto begin = parse_time(key_of(group, 0));
    if (!begin) continue;
    if (responses.empty() || day != key_of(group, 0)) {
      day = key_of(group, 0);
      responses.push_back({{"metadata", Json::object()},
                           {"cost_source", "compute"},
                           {"domain", "gpupool"},
                           {"version", "v1"},
                           {"currency", usage.currency()},
                           {"start", time_text(*begin)},
                           {"end", time_text(*begin + kDayMs)},
                           {"errors", Json::array()},
                           {"costs", Json::array()}});
    }
    responses.back()["costs"].push_back(custom_cost(group, by));
  }
  return responses;
}

Exit PoolCommands::usage(const UsageOptions& options) {
  const int64_t now = std::chrono::duration_cast<std::chrono::milliseconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
  const auto request = usage_request(options, now);
  if (!request) throw Failure(kExitUsage, request.error().message);
  const auto reply = scheduler_.call(&pool::PoolAdmin::Stub::GetUsage, *request);
  const std::vector<std::string> by(request->by().begin(), request->by().end());
  if (options.opencost && reply.currency().empty())
    throw Failure(kExitRefused, "--opencost needs [prices] in the scheduler's configuration");
  show(options.opencost ? line_of(opencost_json(reply, by))
       : options.csv    ? usage_csv(reply, by)
       : json_          ? line_of(usage_json(reply, by))
                        : usage_text(reply, by, terminal_width()));
  return kExitGood;
}

}  // namespace gpupool::admin
