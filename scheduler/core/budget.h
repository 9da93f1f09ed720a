// Budgets of a tenant, and what it has spent of them (docs/usage.md). Values; Core's thread.
#pragma once
#include <array>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "protocol/control/usage_amounts.h"
#include "scheduler/core/prices.h"
#include "scheduler/core/usage.h"

namespace gpupool::scheduler {

enum class BudgetPeriod { day, week, month };  // of UTC; weeks begin on Mondays
enum class BudgetAction {
  warn,   // only says so
  queue,  // new requests wait
  stop,   // the same, and the tenant's leases end
};
constexpr const char* kPeriodNames[] = {"day", "week", "month"};
constexpr const char* kActionNames[] = {"warn", "queue", "stop"};

struct Budget {
  double amount = 0;  // of the currency, or hours of whole GPUs
  bool in_gpu_hours = false;
  BudgetPeriod period = BudgetPeriod::month;
  BudgetAction action = BudgetAction::warn;

  std::string text(const Prices& prices) const;  // "500 EUR per month (stop)"
};

// Returns the first day, since 1970, of the period that has this day, and of the next period.
int64_t period_begin(BudgetPeriod period, int64_t day);
int64_t period_end(BudgetPeriod period, int64_t day);

// What a tenant's leases held in the present periods. Stored in the same transaction as the leases' usage.
struct Spending {
  struct Period {
    int64_t begin = 0;  // day since 1970
    std::map<std::string, pool::UsageAmounts> by_model;
    std::set<std::string> told;  // Budget::text() of the budgets of which it was said that they are exceeded
  };
  std::array<Period, 3> periods;
  std::deque<UsageHour> hours;  // in the order of their first rows

  // Amounts of an earlier period add nothing.
  void add(int64_t day, const std::string& model, const pool::UsageAmounts& amounts);
  // Returns how much of the budget was spent in the period that has this day.
  double spent(const Budget& budget, const Prices& prices, int64_t day) const;
};

// Limits that replace others at some times.
struct QuotaWindow {
  std::function<bool(Time now)> applies;  // at a time of the wall clock
  pool::TenantQuota quota;                // only the fields that it replaces
};

std::string spending_record(const Spending& spending);  // SpendingRecord
bool read_spending(const std::string& record, Spending& spending);

}  // namespace gpupool::scheduler
