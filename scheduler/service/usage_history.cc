#include "scheduler/service/usage_history.h"

#include <algorithm>
#include <map>
#include <utility>

#include "common/log/log.h"
#include "common/text/dates.h"
#include "protocol/lease/token.h"
#include "scheduler/core/records.h"
#include "scheduler/core/records.pb.h"
#include "scheduler/service/admin_calls.h"
#include "scheduler/service/streams.h"

namespace gpupool::scheduler {
namespace {

constexpr std::chrono::minutes kCleanUpEvery{10};
constexpr std::chrono::milliseconds kBetweenDays{100};  // while there is more to clean up
constexpr Time kDay = kHoursOfDay * kHour;
constexpr int64_t kEarliestDay = 20'454;  // 2026-01-01: a clock that is before it is not set

Error no_leader() {
  return {ErrorCode::unavailable, "this scheduler is no longer the leader"};
}

// Returns the hour in a key of a row; nothing if it is no such key.
std::optional<int64_t> hour_in(const std::string& key, int64_t day) {
  const size_t at = std::string_view(kUsageHourPrefix).size() + std::string_view("2026-11-29/").size();
  if (key.size() < at + 2) return std::nullopt;
  const int tens = key[at] - '0', ones = key[at + 1] - '0';
  if (tens < 0 || tens > 2 || ones < 0 || ones > 9) return std::nullopt;
  return day * kHoursOfDay + tens * 10 + ones;
}

std::string prefix_of_day(int64_t day) {
  return kUsageDayPrefix + day_text(day) + "/";
}
bool is_of_day(const std::string& key) {
  return key.starts_with(kUsageDayPrefix);
}

// Returns the prefixes of all rows of a day; of a detailed one by hour, because it may have too many for one
// reading. It has sums, too, if it was summed up while a clock was far ahead.
std::vector<std::string> prefixes_of(int64_t day, bool detailed) {
  std::vector<std::string> prefixes{prefix_of_day(day)};
  for (int64_t hour = 0; detailed && hour < kHoursOfDay; ++hour)
    prefixes.push_back(usage_row_key(day * kHoursOfDay + hour, ""));
  return prefixes;
}

grpc::Status status_of_query(const Error& error) {
  const auto code = error.code == ErrorCode::invalid ? grpc::StatusCode::INVALID_ARGUMENT
                    : error.code == ErrorCode::limit ? grpc::StatusCode::RESOURCE_EXHAUSTED
                                                     : grpc::StatusCode::UNAVAILABLE;
  return {code, error.message};
}

}  // namespace

struct UsageHistory::Query {
  UsageSum sum;
  Answered answered;
  int64_t from_ms, to_ms;
  // Hours without rows, of leases as they were when the query came: by the key of the row to come. The
  // row takes the place of one whose hour ended meanwhile; but a rest of several leases counts as it was
  // then, because it may have got leases that are here, too.
  std::map<std::string, std::pair<int64_t, pool::UsageRow>> open;
  Days days;
  int64_t day = 0;  // the next one to read
  std::optional<Error> failure;

  void widen(int64_t day) {  // to the whole day
    from_ms = std::min(from_ms, day * kDay);
    to_ms = std::max(to_ms, (day + 1) * kDay);
  }
  bool has_hour(int64_t hour) const { return hour * kHour >= from_ms && hour * kHour < to_ms; }
  void add(int64_t begin_ms, bool whole_day, const pool::UsageRow& row) {
    if (failure) return;
    if (const auto added = sum.add(begin_ms, whole_day, row); !added) failure = added.error();
  }
};

UsageHistory::UsageHistory(Engine& engine, UsageLimits limits)
    : engine_(engine), limits_(limits), timer_(engine.context()) {}

int64_t UsageHistory::today() const {
  return (engine_.now() + engine_.wall_offset()) / kDay;
}

void UsageHistory::read_days(std::function<void(Result<Days>)> read) {
  engine_.read(kUsageDaysKey, [this, read = std::move(read)](const Result<std::vector<Entry>>& entries) {
    if (!entries) return read(entries.error());
    if (entries->empty()) return read(Days{today(), today(), 0});
    UsageDaysRecord record;
    if (!record.ParseFromString(entries->front().second))
      return read(Error{ErrorCode::unavailable,
                        std::string("the store's record '") + kUsageDaysKey + "' cannot be parsed"});
    read(Days{record.first(), record.detailed_from(), record.seen()});
  });
}

void UsageHistory::query(const pool::GetUsageRequest& request, Answered answered) {
  auto sum = UsageSum::make(request, engine_.callers().prices());
  if (!sum) return answered(sum.error());
  if (request.from_ms() < 0 || request.from_ms() >= request.to_ms())
    return answered(Error{ErrorCode::invalid, "the time from which to count must be before its end"});
  const auto query = std::make_shared<Query>(Query{.sum = std::move(*sum),
                                                   .answered = std::move(answered),
                                                   .from_ms = request.from_ms(),
                                                   .to_ms = request.to_ms(),
                                                   .open = {},
                                                   .days = {},
                                                   .failure = {}});
  if (cleaning_)
    waiting_.push_back(query);
  else
    begin(query);
}

// A day must not be summed up between the reading of which days there are and that of its rows.
void UsageHistory::begin(const std::shared_ptr<Query>& query) {
  if (!engine_.leads() || engine_.stopping()) return query->answered(no_leader());
  ++queries_;
  query->answered = [this, answered = std::move(query->answered)](Result<pool::GetUsageReply> answer) {
    --queries_;
    answered(std::move(answer));
  };
  engine_.core().view_usage(engine_.now(),
                            [&](const std::string& key, int64_t hour, const pool::UsageRow& row) {
                              if (query->has_hour(hour)) query->open[key] = {hour, row};
                            });
  engine_.flush([this, query](bool stored) {
    if (!stored) return query->answered(no_leader());
    read_days([this, query](const Result<Days>& days) {
      if (!days) return query->answered(days.error());
      query->days = *days;
      query->day = std::max(query->from_ms / kDay, days->first);
      read_day(query);
    });
  });
}

void UsageHistory::read_each(const std::shared_ptr<Reading>& reading) {
  if (reading->next == reading->prefixes.size()) return reading->done({});
  const std::string& prefix = reading->prefixes[reading->next++];
  engine_.read(prefix, [this, &prefix, reading](const Result<std::vector<Entry>>& entries) {
    if (!entries) return reading->done(entries.error());
    reading->visit(prefix, *entries);
    read_each(reading);
  });
}

void UsageHistory::read_day(std::shared_ptr<Query> query) {
  if (!engine_.leads()) return query->answered(no_leader());
  if (query->failure) return query->answered(*query->failure);
  const int64_t day = query->day++;
  if (day > today() || day * kDay >= query->to_ms) return finish(*query);
  const bool detailed = day >= query->days.detailed_from;
  if (!detailed) query->widen(day);
  const auto visit = [this, query, day](const std::string& prefix, const std::vector<Entry>& entries) {
    add_rows(*query, day, is_of_day(prefix), entries);
  };
  const auto done = [this, query](const Result<void>& read) {
    if (!read) return query->answered(read.error());
    read_day(query);
  };
  read_each(std::make_shared<Reading>(Reading{prefixes_of(day, detailed), visit, done}));
}

void UsageHistory::add_rows(Query& query, int64_t day, bool whole_day, const std::vector<Entry>& entries) {
  if (whole_day && !entries.empty()) query.widen(day);
  for (const auto& [key, value] : entries) {
    const auto hour = whole_day ? std::optional(day * kHoursOfDay) : hour_in(key, day);
    pool::UsageRow row;
    if (!hour || !row.ParseFromString(value)) {
      query.failure = Error{ErrorCode::unavailable, "the store's record '" + key + "' cannot be parsed"};
      return;
    }
    if (!whole_day && !query.has_hour(*hour)) continue;
    if (is_usage_rest(key) && query.open.contains(key)) continue;
    query.open.erase(key);
    query.add(*hour * kHour, whole_day, row);
  }
}

void UsageHistory::finish(Query& query) {
  for (const auto& [key, of] : query.open) query.add(of.first * kHour, false, of.second);
  if (query.failure) return query.answered(*query.failure);
  pool::GetUsageReply reply = query.sum.reply();
  reply.set_from_ms(query.from_ms);
  reply.set_to_ms(query.to_ms);
  query.answered(std::move(reply));
}

grpc::ServerGenericBidiReactor* UsageHistory::new_call(grpc::CallbackServerContext& context) {
  using Call = UnaryAdminCall<pool::GetUsageRequest, pool::GetUsageReply>;
  return new Call(engine_, context,
                  [this](grpc::CallbackServerContext& from, const pool::GetUsageRequest& request,
                         pool::GetUsageReply& reply, const Call::Finish& finish) {
                    const grpc::Status status = check_operator(engine_, from);
                    if (!status.ok()) return finish(status);
                    query(request, [&reply, finish](Result<pool::GetUsageReply> answer) {
                      if (!answer) return finish(status_of_query(answer.error()));
                      reply = std::move(*answer);
                      finish(grpc::Status::OK);
                    });
                  });
}

void UsageHistory::start() {
  clean_up_after(kBetweenDays);
}

void UsageHistory::stop() {
  stopped_ = true;
  timer_.cancel();
  for (const auto& query : std::exchange(waiting_, {})) query->answered(no_leader());
}

void UsageHistory::clean_up_after(std::chrono::milliseconds time) {
  cleaning_ = false;
  for (const auto& query : std::exchange(waiting_, {})) begin(query);
  if (stopped_) return;
  timer_.expires_after(time);
  timer_.async_wait([this](const asio::error_code& status) {
    if (!status && !stopped_) clean_up();
  });
}

// Handles the oldest day that is too old, one at a time.
void UsageHistory::clean_up() {
  if (!engine_.leads() || engine_.stopping() || queries_ > 0) return clean_up_after(std::chrono::seconds(1));
  cleaning_ = true;
  read_days([this](const Result<Days>& days) {
    if (!days || !engine_.leads()) return clean_up_after(kCleanUpEvery);
    clean_up(*days);
  });
}

// A clock that is far ahead must not cost the history: after a gap, time passes by one day every
// kCleanUpEvery.
void UsageHistory::clean_up(const Days& days) {
  if (today() < kEarliestDay) return clean_up_after(kCleanUpEvery);
  const bool jumped = days.seen != 0 && today() > days.seen + 1;
  const int64_t day = jumped ? days.seen + 1 : today();
  if (days.first < day - int64_t{limits_.keep_days}) return remove_day(days);
  if (days.detailed_from < day - int64_t{limits_.detail_days}) return sum_up(days);
  if (day == days.seen) return clean_up_after(kCleanUpEvery);
  if (jumped)
    log::warning("usage_clock", {{"last_day", day_text(days.seen)},
                                 {"today", day_text(today())},
                                 {"reason",
                                  "no scheduler ran in between, or a scheduler's clock is wrong: earlier "
                                  "usage is summed up and deleted slowly"}});
  Days next = days;
  next.seen = day;
  // The clock may have been ahead before.
  next.first = std::min(next.first, day);
  next.detailed_from = std::min(next.detailed_from, std::max(next.first, day - int64_t{limits_.detail_days}));
  store({}, next, kCleanUpEvery);
}

// Deletes the rows of a day, or replaces them by sums. Cleans up again later if that fails.
void UsageHistory::replace_day(int64_t day, Days days, bool sum_up, bool detailed) {
  struct Change {
    UsageDay sums;
    std::map<std::string, std::optional<std::string>> writes;
  };
  const auto change = std::make_shared<Change>();
  const auto visit = [change, sum_up](const std::string&, const std::vector<Entry>& entries) {
    for (const auto& [key, value] : entries) {
      change->writes[key] = std::nullopt;
      pool::UsageRow row;
      if (sum_up && row.ParseFromString(value)) change->sums.add(row);
    }
  };
  const auto done = [this, change, day, days](const Result<void>& read) {
    if (!read || !engine_.leads()) return clean_up_after(kCleanUpEvery);
    uint64_t number = 0;
    for (const pool::UsageRow& row : change->sums.rows())
      change->writes[prefix_of_day(day) + std::to_string(++number)] = row.SerializeAsString();
    std::vector<Write> writes;
    for (auto& [key, value] : change->writes) writes.push_back({key, std::move(value)});
    store(std::move(writes), days, kBetweenDays);
  };
  read_each(std::make_shared<Reading>(Reading{prefixes_of(day, detailed), visit, done}));
}

// Replaces the rows of the first detailed day by sums.
void UsageHistory::sum_up(Days days) {
  const int64_t day = days.detailed_from++;
  replace_day(day, days, true, true);
}

void UsageHistory::remove_day(Days days) {
  const int64_t day = days.first++;
  const bool detailed = day >= days.detailed_from;
  if (detailed) days.detailed_from = days.first;
  replace_day(day, days, false, detailed);
}

// In one transaction, so that no row counts twice.
void UsageHistory::store(std::vector<Write> writes, Days days, std::chrono::milliseconds next) {
  UsageDaysRecord record;
  record.set_first(days.first);
  record.set_detailed_from(days.detailed_from);
  record.set_seen(days.seen);
  writes.push_back({kUsageDaysKey, record.SerializeAsString()});
  engine_.core().write_also(std::move(writes));
  engine_.flush([this, next](bool stored) { clean_up_after(stored ? next : kCleanUpEvery); });
}

}  // namespace gpupool::scheduler
