// The leases known to poold: those that clients have presented, and those that the scheduler has ended. Each
// lease is a tenant of its own, named "TENANT/ID8", from its first session until it has ended or expired and
// has no session left. So it is limited, audited and listed like other tenants. The daemon and Agent use it
// on poold's thread.
//
// Clients' tokens are untrusted and verified (protocol/lease/token.h). The scheduler can do nothing here but
// end leases, have their clients move their sessions, and have these suspended and resumed.
#pragma once
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/control/hello.pb.h"
#include "protocol/control/pool.pb.h"
#include "protocol/lease/token.h"
#include "server/poold/node/lease_suspensions.h"
#include "server/poold/node/usage_counters.h"
#include "server/poold/upgrade/state.pb.h"
#include "server/tenants/tenants.h"

namespace gpupool::server {

class Leases {
 public:
  // Access to poold's state.
  struct Host {
    std::function<const std::vector<control::Device>&()> devices;
    std::function<size_t(const std::string& tenant)> sessions;  // includes those that wait for a worker
    // Adds the breaks of the tenant's sessions; null: they are not reported.
    std::function<void(const std::string& tenant, pool::SessionBreaks& told)> describe_breaks;
    std::function<void(const std::string& tenant, const std::string& reason)> end_sessions;
    // Refuses the tenant's clients that wait for a worker.
    std::function<void(const std::string& tenant, const std::string& reason)> refuse_waiting;
    // Asks the clients of these sessions to move them to another server; `failed` is told why one has not.
    std::function<void(const std::string& tenant, const std::string& address,
                       std::function<void(const std::string& reason)> failed)>
        move_sessions;
    std::function<std::chrono::milliseconds()> now;  // since 1970
    LeaseSuspensions::Host suspension = {};
    UsageCounters::Host usage = {};
  };
  struct Admitted {
    std::string tenant;
    std::string lease;       // hexadecimal
    bool suspended = false;  // no new session may begin
  };

  // `boot`: lease::kBootBytes that identify this process.
  Leases(asio::io_context& context, Tenants& tenants, std::string node, std::string boot,
         std::vector<lease::PublicKey> keys, Host host);
  Leases(const Leases&) = delete;
  Leases& operator=(const Leases&) = delete;

  void use_keys(std::vector<lease::PublicKey> keys) { keys_ = std::move(keys); }
  const std::string& boot() const { return boot_; }
  bool accepts_leases() const { return !keys_.empty(); }

  // Verifies a token and returns the session's tenant and lease. `resumes`: for a session that exists
  // already, whose client is yet to prove that it has its resume key. Then a token from before the last
  // renewal will do, and changes nothing of the lease: the session's links read the lease file one after the
  // other, and may find different tokens there. ErrorCode::refused or malformed: the message is for the
  // client.
  Result<Admitted> admit(std::string_view token, bool resumes = false);
  // Admits no new session of the lease, and ends its sessions after `grace`. A later report says when none is
  // left. `id` must have lease::kIdBytes.
  void end(const std::string& id, const std::string& reason, std::chrono::milliseconds grace) {
    end(id, reason, grace, kAnySerial);
  }
  // Moves the lease's sessions to another server; once it has none here, ends it for tokens up to `serial`
  // (0: for all). Call again until then: sessions that have not moved are asked again.
  void move(const std::string& id, const std::string& address, uint64_t serial);
  // Has the lease's sessions suspended, or resumed; LeaseSuspensions::order().
  void suspend(const std::string& id, uint64_t number, bool resume);
  // The scheduler has orders to suspend or resume for these leases and no others.
  void keep_suspension_orders(const std::set<std::string>& ordered) { suspensions_.keep_only(ordered); }
  // True if the lease, whose ID is given in hexadecimal digits, must not have sessions with a worker.
  bool is_suspended(const std::string& lease) const;
  // A session of this tenant has not moved: tells the scheduler, if its lease moves.
  void migration_failed(const std::string& tenant, const std::string& reason);
  UsageCounters& counters() { return counters_; }
  // Called after a session's end: soon checks which leases are over.
  void post_cleanup();
  // Adds to the report: leases with sessions, leases that have ended since the last report, what leases have
  // used, and the IDs of the keys that verify leases.
  void report(pool::NodeReport& out);
  size_t count() const { return entries_.size(); }
  // Number of ended leases of which no new session is admitted. Beyond the limit the oldest is forgotten, so
  // that a compromised scheduler cannot fill poold's memory.
  static constexpr size_t kMostEnded = 131'072;
  size_t ended() const { return ended_.size(); }
  // `changed` is called when there is something to report at once, for this object's whole life.
  void on_end(std::function<void()> changed) { changed_ = std::move(changed); }
  // Stops the timers.
  void stop();
  // For this process's next program (server/poold/upgrade), which must have the same boot. Call restore()
  // before anything else.
  void save(upgrade::Leases& to) const;
  void restore(const upgrade::Leases& from);

 private:
  using Time = std::chrono::milliseconds;
  struct Entry {
    Entry(asio::io_context& context) : end(context) {}
    std::string tenant;
    uint64_t serial = 0;
    Time expires{};
    quota::Quota quota;
    std::vector<uint32_t> gpus;
    std::vector<std::string> labels;
    bool ending = false;
    std::string reason;
    bool moving = false;
    std::string cannot_move;  // why a session has not moved
    asio::steady_timer end;   // expires after `grace`
  };
  static constexpr uint64_t kAnySerial = ~uint64_t{0};
  void end(const std::string& id, const std::string& reason, std::chrono::milliseconds grace,
           uint64_t last_serial);
  void put_tenant(const Entry& entry);
  void await_end(const std::string& id, Entry& entry, asio::steady_timer::time_point due);
  Result<std::vector<uint32_t>> find_gpus(const lease::Lease& lease) const;
  std::string new_name(const lease::Lease& lease) const;
  void remove_finished();
  void forget_ended();

  asio::io_context& context_;
  Tenants& tenants_;
  const std::string node_;
  const std::string boot_;
  std::vector<lease::PublicKey> keys_;
  const Host host_;
  std::map<std::string, Entry> entries_;   // by id
  std::map<std::string, uint64_t> ended_;  // by id of an ended lease: the last serial that is void
  // The same, oldest first: until when one of the lease's tokens may be valid.
  std::deque<std::pair<std::string, Time>> ended_in_order_;
  std::map<std::string, uint64_t> to_report_;  // serials of ended leases without sessions, by ID
  std::function<void()> changed_;
  LeaseSuspensions suspensions_;
  UsageCounters counters_;
  bool cleanup_posted_ = false;
  bool stopped_ = false;
};

}  // namespace gpupool::server
