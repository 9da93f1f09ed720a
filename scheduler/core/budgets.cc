// Core: prices, budgets, and quotas that depend on the time of day.
#include <algorithm>
#include <cstdio>

#include "common/text/dates.h"
#include "scheduler/core/core.h"
#include "scheduler/core/records.pb.h"

namespace gpupool::scheduler {
namespace {

constexpr double kMilliMsOfHour = 1000 * 3.6e6;
constexpr int64_t kMonday = 4;  // 1970-01-05, days since 1970

std::string amount_text(double amount) {
  char text[64];
  std::snprintf(text, sizeof text, "%.2f", amount);
  return text;
}

std::string unit_text(const Budget& budget, const Prices& prices) {
  return budget.in_gpu_hours ? "GPU hours" : prices.currency;
}

}  // namespace

std::string Budget::text(const Prices& prices) const {
  return amount_text(amount) + " " + unit_text(*this, prices) + " per " +
         kPeriodNames[static_cast<int>(period)] + " (" + kActionNames[static_cast<int>(action)] + ")";
}

int64_t period_begin(BudgetPeriod period, int64_t day) {
  if (period == BudgetPeriod::day) return day;
  if (period == BudgetPeriod::month) return month_begin(day);
  return day - (day - kMonday + 7) % 7;
}

int64_t period_end(BudgetPeriod period, int64_t day) {
  if (period == BudgetPeriod::month) return next_month(day);
  return period_begin(period, day) + (period == BudgetPeriod::day ? 1 : 7);
}

void Spending::add(int64_t day, const std::string& model, const pool::UsageAmounts& amounts) {
  for (size_t i = 0; i < periods.size(); ++i) {
    const int64_t begin = period_begin(static_cast<BudgetPeriod>(i), day);
    if (begin < periods[i].begin) continue;
    if (begin > periods[i].begin) periods[i] = {.begin = begin, .by_model = {}, .told = {}};
    pool::add_amounts(amounts, periods[i].by_model[model]);
  }
}

double Spending::spent(const Budget& budget, const Prices& prices, int64_t day) const {
  const Period& its = periods[static_cast<size_t>(budget.period)];
  if (its.begin != period_begin(budget.period, day)) return 0;
  double sum = 0;
  for (const auto& [model, amounts] : its.by_model)
    sum += budget.in_gpu_hours ? static_cast<double>(amounts.leased_milli_ms()) / kMilliMsOfHour
                               : prices.cost(model, amounts);
  return sum;
}

std::string spending_record(const Spending& spending) {
  SpendingRecord record;
  for (const Spending::Period& period : spending.periods) {
    SpendingPeriodRecord& out = *record.add_periods();
    out.set_begin_day(period.begin);
    for (const auto& [model, amounts] : period.by_model) {
      pool::UsagePart& part = *out.add_spent();
      part.set_model(model);
      *part.mutable_amounts() = amounts;
    }
    for (const std::string& text : period.told) out.add_told(text);
  }
  for (const UsageHour& hour : spending.hours) write_usage_hour(hour, *record.add_hours());
  return record.SerializeAsString();
}

bool read_spending(const std::string& text, Spending& spending) {
  SpendingRecord record;
  if (!record.ParseFromString(text)) return false;
  for (int i = 0; i < record.periods_size() && i < static_cast<int>(spending.periods.size()); ++i) {
    const SpendingPeriodRecord& from = record.periods(i);
    Spending::Period& period = spending.periods[static_cast<size_t>(i)];
    period.begin = from.begin_day();
    for (const pool::UsagePart& part : from.spent()) period.by_model[part.model()] = part.amounts();
    period.told.insert(from.told().begin(), from.told().end());
  }
  for (const UsageHourRecord& hour : record.hours()) {
    if (!read_usage_hour(hour, spending.hours.emplace_back())) return false;
  }
  return true;
}

// Says once in each period that a budget is exceeded, and has the tenant's requests wait, or its leases end.
void Core::check_budgets(Time now) {
  for (auto& [name, whose] : tenants_) check_budgets(whose, now);
}

void Core::check_budgets(Tenant& whose, Time now) {
  const int64_t day = calendar(now) / (kHoursOfDay * kHour);
  std::string wait_because, stop_because;
  for (const Budget& budget : whose.budgets) {
    const double spent = whose.spending.spent(budget, prices_, day);
    if (spent < budget.amount) continue;
    const std::string text = budget.text(prices_);
    const std::string why = "the budget of tenant '" + whose.name + "' is exceeded: " + amount_text(spent) +
                            " of " + text + "; the next " + kPeriodNames[static_cast<int>(budget.period)] +
                            " begins on " + day_text(period_end(budget.period, day)) + " (UTC)";
    Spending::Period& period = whose.spending.periods[static_cast<size_t>(budget.period)];
    if (period.begin == period_begin(budget.period, day) && period.told.insert(text).second) {
      dirty_spending_.insert(whose.name);
      note("budget_exceeded", {{"tenant", whose.name}, {"budget", text}, {"spent", amount_text(spent)}},
           Note::Level::warning);
    }
    if (budget.action != BudgetAction::warn) wait_because = why;
    if (budget.action == BudgetAction::stop) stop_because = why;
  }
  if (wait_because.empty() != whose.over_budget.empty()) {
    ++capacity_;
    dirty_ = true;
  }
  if (wait_because != whose.over_budget) places_changed_ = true;
  whose.over_budget = std::move(wait_because);
  if (stop_because.empty()) return;
  std::vector<LeaseId> ending;
  for (const auto& [id, lease] : leases_.all()) {
    if (lease.tenant == whose.name && !lease.ending) ending.push_back(id);
  }
  for (const LeaseId& id : ending)
    end(*leases_.find(id), pool::Ended::EVICTED, stop_because, policy_.grace_ms(), now);
}

// Applies the quotas of the present time of day.
void Core::check_windows(Time now) {
  for (auto& [name, whose] : tenants_) {
    std::vector<bool> apply;
    for (const QuotaWindow& window : whose.windows) apply.push_back(window.applies(calendar(now)));
    if (apply == whose.windows_applied) continue;
    whose.windows_applied = std::move(apply);
    whose.combine();
    note("quota_by_time", {{"tenant", name},
                           {"windows", std::to_string(std::count(whose.windows_applied.begin(),
                                                                 whose.windows_applied.end(), true))}});
    ++capacity_;
    dirty_ = recheck_waiting_ = true;
  }
}

void Core::view_budgets(const Tenant& whose, Time now, pool::TenantState& out) const {
  const int64_t day = calendar(now) / (kHoursOfDay * kHour);
  for (const Budget& budget : whose.budgets) {
    pool::BudgetState& view = *out.add_budgets();
    view.set_period(kPeriodNames[static_cast<int>(budget.period)]);
    view.set_action(kActionNames[static_cast<int>(budget.action)]);
    view.set_unit(unit_text(budget, prices_));
    view.set_amount(budget.amount);
    view.set_spent(whose.spending.spent(budget, prices_, day));
    view.set_ends_ms(period_end(budget.period, day) * kHoursOfDay * kHour);
  }
}

}  // namespace gpupool::scheduler
