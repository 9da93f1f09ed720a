// The usage of leases in the store (docs/adr/0048-usage.md): answers PoolAdmin.GetUsage, sums up the rows of
// days that are older than `detail_days`, and deletes days that are older than `keep_days`. Rows are read in
// pieces between the scheduler's transactions. Daemon owns it, on the engine's thread. While this scheduler
// does not lead it does nothing, and queries fail.
#pragma once
#include <grpcpp/generic/async_generic_service.h>

#include <asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "protocol/control/usage.pb.h"
#include "scheduler/service/engine.h"
#include "scheduler/service/usage_limits.h"
#include "scheduler/service/usage_sum.h"

namespace gpupool::scheduler {

class UsageHistory {
 public:
  UsageHistory(Engine& engine, UsageLimits limits);
  UsageHistory(const UsageHistory&) = delete;
  UsageHistory& operator=(const UsageHistory&) = delete;

  // Begins to sum up and to delete earlier days.
  void start();
  void stop();
  // Sums up what is asked for, up to now. ErrorCode::invalid: the request; limit: too many groups;
  // unavailable: this scheduler does not lead any more, or the store fails.
  using Answered = std::function<void(Result<pool::GetUsageReply>)>;
  void query(const pool::GetUsageRequest& request, Answered answered);
  // A GetUsage call of an operator.
  grpc::ServerGenericBidiReactor* new_call(grpc::CallbackServerContext& context);

 private:
  struct Days {  // UsageDaysRecord
    int64_t first = 0;
    int64_t detailed_from = 0;
    int64_t seen = 0;
  };
  struct Query;

  // Reads entries prefix by prefix, so that other transactions can come in between.
  struct Reading {
    std::vector<std::string> prefixes;
    std::function<void(const std::string& prefix, const std::vector<Entry>& entries)> visit;
    std::function<void(Result<void>)> done;
    size_t next = 0;
  };

  void read_each(const std::shared_ptr<Reading>& reading);
  void read_days(std::function<void(Result<Days>)> read);
  void begin(const std::shared_ptr<Query>& query);
  void read_day(std::shared_ptr<Query> query);
  void add_rows(Query& query, int64_t day, bool whole_day, const std::vector<Entry>& entries);
  void finish(Query& query);
  void clean_up_after(std::chrono::milliseconds time);
  void clean_up();
  void clean_up(const Days& days);
  void sum_up(Days days);
  void remove_day(Days days);
  void replace_day(int64_t day, Days days, bool sum_up, bool detailed);
  void store(std::vector<Write> writes, Days days, std::chrono::milliseconds next);
  int64_t today() const;

  Engine& engine_;
  const UsageLimits limits_;
  asio::steady_timer timer_;
  bool stopped_ = false;
  bool cleaning_ = false;  // a day is being summed up or removed: queries wait
  std::vector<std::shared_ptr<Query>> waiting_;
  size_t queries_ = 0;  // that run: nothing is summed up or removed
};

}  // namespace gpupool::scheduler
