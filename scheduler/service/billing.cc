#include "scheduler/service/billing.h"

#include <absl/time/time.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "common/settings/toml_values.h"
#include "common/text/printable.h"

namespace gpupool::scheduler {
namespace {

using settings::wrong;

constexpr int kMinutesOfDay = 24 * 60;
constexpr size_t kMostBudgets = 16, kMostWindows = 32, kLongestCurrency = 16;
constexpr double kHighestPrice = 1e9, kHighestBudget = 1e12;
constexpr const char* kDayNames[] = {"mon", "tue", "wed", "thu", "fri", "sat", "sun"};
constexpr std::pair<std::string_view, BudgetPeriod> kPeriods[] = {
    {"day", BudgetPeriod::day}, {"week", BudgetPeriod::week}, {"month", BudgetPeriod::month}};
constexpr std::pair<std::string_view, BudgetAction> kActions[] = {
    {"warn", BudgetAction::warn}, {"queue", BudgetAction::queue}, {"stop", BudgetAction::stop}};

Result<double> read_amount(const toml::node& node, double highest) {
  const auto number = node.is_number() ? node.value<double>() : std::nullopt;
  if (!number || !std::isfinite(*number) || *number < 0 || *number > highest)
    return wrong("must be a number that is not negative, like 2.5");
  return *number;
}

Result<void> read_price(const toml::node& node, double& out) {
  const auto price = read_amount(node, kHighestPrice);
  if (!price) return price.error();
  out = *price;
  return {};
}

Result<void> read_currency(const toml::node& node, std::string& out) {
  const auto text = node.value_exact<std::string>();
  if (!text || text->empty() || text->size() > kLongestCurrency || printable(*text) != *text)
    return wrong("must be a short name, like \"EUR\"");
  out = *text;
  return {};
}

// Reads "HH:MM"; 24:00 is the end of the day.
std::optional<int> read_minute(std::string_view text) {
  const auto digit = [&](size_t at) { return text[at] >= '0' && text[at] <= '9' ? text[at] - '0' : 100; };
  if (text.size() != 5 || text[2] != ':') return std::nullopt;
  const int hour = digit(0) * 10 + digit(1), minute = digit(3) * 10 + digit(4);
  if (hour > 24 || minute > 59 || (hour == 24 && minute != 0)) return std::nullopt;
  return hour * 60 + minute;
}

// A time of day on some days of the week, in a time zone.
struct Window {
  int begin = 0, end = kMinutesOfDay;  // minutes; may go past midnight: begin > end
  std::array<bool, 7> days{true, true, true, true, true, true, true};
  absl::TimeZone zone = absl::UTCTimeZone();

  // A window past midnight belongs to the day on which it begins.
  bool applies(Time now) const {
    const absl::CivilMinute local = absl::ToCivilMinute(absl::FromUnixMillis(now), zone);
    const int minute = local.hour() * 60 + local.minute();
    const auto day = static_cast<size_t>(absl::GetWeekday(absl::CivilDay(local)));
    if (begin < end) return days[day] && minute >= begin && minute < end;
    return (days[day] && minute >= begin) || (days[(day + 6) % 7] && minute < end);
  }
};

Result<void> read_hours(const toml::node& node, Window& out) {
  const std::string text = node.value_exact<std::string>().value_or("");
  const auto dash = text.find('-');
  const auto begin = read_minute(std::string_view(text).substr(0, dash));
  const auto end = dash == text.npos ? std::nullopt : read_minute(std::string_view(text).substr(dash + 1));
  if (!begin || !end || *begin == *end || *begin == kMinutesOfDay)
    return wrong("must be two different times, like \"22:00-06:00\"");
  out.begin = *begin;
  out.end = *end;
  return {};
}

Result<void> read_days(const toml::node& node, Window& out) {
  std::vector<std::string> names;
  if (const auto read = settings::to_list(node, names); !read) return read;
  out.days.fill(false);
  for (const std::string& name : names) {
    const auto found = std::find(std::begin(kDayNames), std::end(kDayNames), name);
    if (found == std::end(kDayNames)) return wrong("must be days: mon, tue, wed, thu, fri, sat, sun");
    out.days[static_cast<size_t>(found - std::begin(kDayNames))] = true;
  }
  if (names.empty()) return wrong("must have at least one day");
  return {};
}

Result<void> read_zone(const toml::node& node, Window& out) {
  const std::string name = node.value_exact<std::string>().value_or("");
  if (name.empty() || name.front() == '/' || name.find("..") != name.npos ||
      !absl::LoadTimeZone(name, &out.zone))
    return wrong(
        "must be a time zone of this host, like \"Europe/Berlin\" or \"UTC\" (Debian: package tzdata)");
  return {};
}

Result<QuotaWindow> read_window(
    const toml::node& node, const std::function<Result<pool::TenantQuota>(const toml::node&)>& read_quota) {
  Window window;
  pool::TenantQuota quota;
  bool has_quota = false;
  const auto read =
      settings::for_each_key(node, [&](std::string_view key, const toml::node& value) -> Result<void> {
        if (key == "hours") return read_hours(value, window);
        if (key == "days") return read_days(value, window);
        if (key == "timezone") return read_zone(value, window);
        if (key != "quota") return wrong("unknown key; valid keys: hours, days, timezone, quota");
        auto limits = read_quota(value);
        if (!limits) return limits.error();
        quota = std::move(*limits);
        has_quota = true;
        return {};
      });
  if (!read) return read.error();
  if (!has_quota) return wrong("quota: missing");
  return QuotaWindow{[window](Time now) { return window.applies(now); }, std::move(quota)};
}

Result<Budget> read_budget(const toml::node& node) {
  Budget budget;
  int amounts = 0;
  const auto read =
      settings::for_each_key(node, [&](std::string_view key, const toml::node& value) -> Result<void> {
        if (key == "period") return settings::to_choice(value, kPeriods, budget.period);
        if (key == "action") return settings::to_choice(value, kActions, budget.action);
        if (key != "amount" && key != "gpu_hours")
          return wrong("unknown key; valid keys: amount, gpu_hours, period, action");
        const auto amount = read_amount(value, kHighestBudget);
        if (!amount) return amount.error();
        if (*amount == 0) return wrong("must be more than 0");
        budget.amount = *amount;
        budget.in_gpu_hours = key == "gpu_hours";
        ++amounts;
        return {};
      });
  if (!read) return read.error();
  if (amounts != 1) return wrong("needs either amount (of the currency of [prices]) or gpu_hours");
  return budget;
}

template <class T, class Read>
Result<std::vector<T>> read_all(const toml::node& node, size_t most, Read read) {
  std::vector<T> all;
  const auto good = settings::for_each_entry(node, [&](const toml::node& entry) -> Result<void> {
    auto one = read(entry);
    if (!one) return one.error();
    all.push_back(std::move(*one));
    return {};
  });
  if (!good) return good.error();
  if (all.size() > most) return wrong("too many: at most " + std::to_string(most));
  return all;
}

}  // namespace

Result<Prices> read_prices(const toml::table& file) {
  Prices prices;
  const toml::node* const node = file.get("prices");
  if (!node) return prices;
  const auto of_model = [&](std::string_view model, const toml::node& price) {
    return read_price(price, prices.gpu_hour_of_model[std::string(model)]);
  };
  const auto read =
      settings::for_each_key(*node, [&](std::string_view key, const toml::node& value) -> Result<void> {
        if (key == "currency") return read_currency(value, prices.currency);
        if (key == "gpu_hour") return read_price(value, prices.gpu_hour);
        if (key == "gib_hour") return read_price(value, prices.gib_hour);
        if (key == "gpu_hour_of_model") return settings::for_each_key(value, of_model);
        return wrong("unknown key; valid keys: currency, gpu_hour, gpu_hour_of_model, gib_hour");
      });
  if (!read) return wrong((node->is_table() ? "prices." : "prices: ") + read.error().message);
  if (prices.currency.empty()) return wrong("prices.currency: missing; write currency = \"EUR\"");
  return prices;
}

Result<std::vector<Budget>> read_budgets(const toml::node& node) {
  auto budgets = read_all<Budget>(node, kMostBudgets, read_budget);
  std::set<std::tuple<BudgetPeriod, BudgetAction, bool>> seen;
  for (size_t i = 0; budgets && i < budgets->size(); ++i) {
    const Budget& budget = (*budgets)[i];
    if (!seen.insert({budget.period, budget.action, budget.in_gpu_hours}).second)
      return wrong("two budgets have the same period and action");
  }
  return budgets;
}

Result<std::vector<QuotaWindow>> read_quota_windows(
    const toml::node& node, const std::function<Result<pool::TenantQuota>(const toml::node&)>& read_quota) {
  return read_all<QuotaWindow>(node, kMostWindows,
                               [&](const toml::node& entry) { return read_window(entry, read_quota); });
}

}  // namespace gpupool::scheduler
