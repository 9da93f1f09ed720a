// Counts what the sessions of each lease use on this host, for the scheduler's accounting
// (docs/adr/0048-usage.md): GPU time, memory times time, bytes, energy. The scheduler hears the counters in
// every report, and a lease's last ones until it confirms that it has stored them. Leases owns it, on poold's
// thread.
//
// Memory and energy are sampled once a second. What a worker says of its session is untrusted: the host's
// callback bounds it.
#pragma once
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "protocol/control/pool.pb.h"
#include "server/poold/sensors/energy_shares.h"
#include "server/poold/upgrade/state.pb.h"

namespace gpupool::server {

class UsageCounters {
 public:
  struct Session {
    uint64_t number = 0;
    std::string lease;  // ID; empty: the session has no lease
    struct Gpu {
      uint64_t gpu_nanoseconds = 0;
      uint64_t memory_used = 0;  // bytes, now
    };
    std::vector<Gpu> gpus;
    uint64_t bytes_from_client = 0, bytes_to_client = 0;
  };
  // Access to poold's sessions. Without the first function nothing is counted.
  struct Host {
    std::function<void(const std::function<void(const Session&)>& visit)> for_each_session;  // that run
    std::function<std::string(size_t gpu)> uuid;                     // empty: there is no such GPU
    std::function<std::optional<uint64_t>(size_t gpu)> energy = {};  // millijoules, a counter; null: unknown
  };
  using Clock = std::chrono::steady_clock;

  UsageCounters(asio::io_context& context, Host host, std::function<Clock::time_point()> now = Clock::now);
  UsageCounters(const UsageCounters&) = delete;
  UsageCounters& operator=(const UsageCounters&) = delete;

  void session_began(const std::string& lease);
  // Call while the session's counters can still be read; it must not be visited any more afterwards.
  void session_ended(const Session& session);

  // Reads the sessions' counters for the report; call it before the next two.
  void begin_report();
  // Adds a lease's counters, if there are any. Returns false if the report has no room for them.
  bool report(const std::string& lease, pool::NodeReport& out);
  // Adds the counters of as many other leases as there is room for; the next report begins with the rest.
  void report_others(pool::NodeReport& out);
  // The scheduler has stored complete counters: forgets them, unless they have changed since.
  void recorded(const pool::CountersRecorded& what);

  // Records beyond the limit, of leases that have no session, are dropped, the oldest first: a scheduler that
  // confirms nothing cannot fill poold's memory.
  static constexpr size_t kMostRecords = 65'536;
  size_t count() const { return records_.size(); }
  void stop();
  // For this process's next program (server/poold/upgrade).
  void save(upgrade::Leases& to) const;
  void restore(const upgrade::Leases& from);

 private:
  struct Record {
    pool::LeaseCounters counters;  // of ended sessions; memory also of running ones
    bool reported = false;         // in the present report
  };
  Record& record_of(const std::string& lease);
  pool::GpuCounters* counters_of(Record& record, size_t gpu);
  void count_memory(const Session& session);
  void count_energy(const std::vector<Session>& sessions);
  void sample();
  void await_sample();
  void drop_oldest();

  asio::steady_timer timer_;
  const Host host_;
  const std::function<Clock::time_point()> now_;
  std::map<std::string, Record> records_;                // by lease
  std::map<std::string, std::vector<Session>> running_;  // by lease, at the last sample
  std::map<uint64_t, Clock::time_point> sampled_;        // by session: until when its memory is counted
  std::map<size_t, EnergyShares> energy_;                // by GPU
  uint64_t last_record_ = 0;
  std::string last_reported_;  // lease where the last report had no more room
  size_t report_bytes_ = 0;    // of the present report's counters
  bool awaiting_ = false;
};

}  // namespace gpupool::server
