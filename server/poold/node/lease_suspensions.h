// Leases that the scheduler has ordered to suspend or to resume (docs/adr/0038-suspended-sessions.md):
// carries the order out on all sessions of the lease, and reports how far it is. If one session cannot be
// suspended, all are resumed. Leases owns it; poold's thread.
//
// It compares what was ordered with where the sessions are, whenever something has changed. So an answer that
// comes late is handled like any other: a session that is suspended after its lease was resumed is resumed.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/result.h"
#include "protocol/control/pool.pb.h"
#include "server/poold/upgrade/state.pb.h"

namespace gpupool::server {

class LeaseSuspensions {
 public:
  struct Session {
    enum class Place {
      running,  // with a worker
      ending,   // likewise, and about to end
      storing,  // likewise, and about to be suspended
      leaving,  // suspended, but the worker that it had still runs
      suspended,
      resuming,  // a new worker gets it
    };
    uint64_t number = 0;
    Place place = Place::running;
    uint64_t bytes = 0;  // of its file
  };
  struct Sessions {
    std::vector<Session> all;
    size_t waiting = 0;  // clients that wait for a worker
  };
  // Told why a session was not suspended, or not resumed.
  using Failed = std::function<void(const std::string& reason)>;
  struct Host {
    std::function<Sessions(const std::string& tenant)> sessions;
    // ErrorCode::refused: it is about to happen already.
    std::function<Result<void>(uint64_t session, Failed failed)> suspend, resume;
    std::function<pool::SuspensionRoom()> room;
  };
  // Returns the lease's tenant; empty: it has had no session here.
  using TenantOf = std::function<std::string(const std::string& lease)>;

  // Without Host::room no lease is suspended.
  LeaseSuspensions(Host host, TenantOf tenant_of)
      : host_(std::move(host)), tenant_of_(std::move(tenant_of)) {}
  LeaseSuspensions(const LeaseSuspensions&) = delete;
  LeaseSuspensions& operator=(const LeaseSuspensions&) = delete;

  // Takes an order of the scheduler. The same order again: what has failed is tried again.
  void order(const std::string& lease, uint64_t number, bool resume);
  // Forgets leases that run and that the scheduler has no order for any more.
  void keep_only(const std::set<std::string>& ordered);
  // Goes on with all orders. Returns true if the scheduler should be told at once.
  bool update();
  // True if the lease must not get new sessions.
  bool refuses_sessions(const std::string& lease) const;
  // The lease is to end after a grace: its programs go on until then, unless its GPUs may be another's.
  void lease_ends(const std::string& lease);
  void forget(const std::string& lease) { leases_.erase(lease); }
  void report(pool::NodeReport& out);
  // For this process's next program (server/poold/upgrade).
  void save(upgrade::Leases& to) const;
  void restore(const upgrade::Leases& from);
  // A compromised scheduler must not fill poold's memory.
  static constexpr size_t kMostLeases = 65'536;

 private:
  using Clock = std::chrono::steady_clock;
  using State = pool::LeaseSuspension::State;
  struct Entry {
    uint64_t number = 0;
    State state = pool::LeaseSuspension::RUNNING;
    // Sessions that this object has had suspended, and whether they were asked to resume.
    std::map<uint64_t, bool> sessions;
    std::set<uint64_t> asked;  // to be suspended, by the present order
    std::string reason;
    Clock::time_point since;
    std::chrono::milliseconds took{0};
    bool news = false;
  };
  using Leases = std::map<std::string, Entry>;

  void advance(const std::string& lease, Entry& entry);
  void suspend_all(const std::string& lease, Entry& entry, const Sessions& sessions);
  void resume_all(const std::string& lease, Entry& entry, const Sessions& sessions);
  void undo(Entry& entry, const std::string& reason);
  static void enter(Entry& entry, State state);
  Sessions sessions_of(const std::string& lease) const;

  const Host host_;
  const TenantOf tenant_of_;
  Leases leases_;  // by id
};

}  // namespace gpupool::server
