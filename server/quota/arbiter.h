// Decides which session may use a GPU: the scheduling algorithm alone, without a clock, threads or processes.
// GpuTurns calls it with events and the time, and tells the sessions what they may do. One thread.
//
// At most one session has the turn. Tenants of the highest priority come first; among those of equal
// priority, the tenant that has had the least GPU time for its weight, and of its sessions the one that has
// had the least. While another session waits, a turn costs the time for which it is held, which the caller
// measures. Time that a session reports beyond that (work that continued after its turn) is charged as well,
// but never more than has passed. A tenant with a hard limit is charged for all its time, even if no session
// waits.
//
// A hard limit is a token bucket that fills at the tenant's rate, may be negative, and holds next to nothing
// for idle tenants.
#pragma once
#include <chrono>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/quota/quota.h"

namespace gpupool::quota {

class Arbiter {
 public:
  using Time = std::chrono::nanoseconds;  // since any beginning; never decreases
  using Session = uint64_t;

  struct Settings {
    Time quantum{20'000'000};  // length of a turn while others of the same priority wait
    // Shortest turn; also the rest of a turn when a session begins to wait that takes precedence over the
    // holder.
    Time shortest{4'000'000};
    Time yield_timeout{1'000'000'000};  // the holder loses its turn so long after it was asked to give it up
  };
  struct Share {
    uint32_t weight = kWholeGpu;  // thousandths of the GPU; in mode hard, the limit
    Mode mode = Mode::elastic;
    Priority priority = Priority::normal;
    // Mode partition counts as elastic: a partition's sessions take turns on it.
    static Share of(const Quota& quota, uint32_t gpu) {
      return {quota.of(gpu).compute_milli, quota.mode == Mode::hard ? Mode::hard : Mode::elastic,
              quota.priority};
    }
    bool operator==(const Share&) const = default;
  };
  // A session's present permission to use a GPU.
  struct Turn {
    enum class State : uint32_t { closed, open, yield };  // yield: it has the turn and is asked to give it up
    State state = State::closed;
    bool bounded = false;  // others may want the turn soon: keep little work on the device
    bool single = false;   // there are sessions of higher priority: one piece of work at a time
    bool wanted = false;   // give the turn up as soon as there is no work
    bool operator==(const Turn&) const = default;
  };

  Arbiter() = default;
  explicit Arbiter(const Settings& settings) : settings_(settings) {}

  // Sets a tenant's share, for running and future sessions. A weight of 0 counts as 1.
  void set_share(const std::string& tenant, const Share& share, Time now);
  // Removes a tenant. Does nothing while it has a session.
  void forget(const std::string& tenant);
  // `reported`: GPU time that the session has reported before; it is not charged again.
  void add(Session session, const std::string& tenant, Time now, Time reported = {});
  void remove(Session session, Time now);  // its turn is free at once
  // want(): the session does not have the turn, and begins or ceases to have work for it. release(): the
  // session gives the turn up; `wants`: it has more work.
  void want(Session session, bool wants, Time now);
  void release(Session session, bool wants, Time now);
  // `used`: all GPU time that the session has reported so far.
  void report(Session session, Time used, Time now);
  void tick(Time now);

  Turn turn(Session session) const;
  std::optional<Session> holder() const { return holder_; }
  size_t sessions() const { return sessions_.size(); }
  // When tick() is due at the latest, if nothing happens before; empty: never.
  std::optional<Time> due() const { return due_; }

 private:
  struct Tenant {
    Share share;
    double virtual_time = 0;  // time divided by weight; orders the tenants
    double tokens = 0;        // of a hard limit, in nanoseconds
    Time filled{};
    bool exhausted = false;  // until the bucket has been filled again
    size_t active = 0;       // sessions that want the turn or have it
    Time left{};             // when `active` last became 0
  };
  struct State {
    std::map<std::string, Tenant>::iterator tenant;
    Time since{};                 // when it was added
    double used_nanoseconds = 0;  // orders a tenant's sessions
    Time reported{};
    double unpaid = 0;  // reported and not charged; negative: charged and not reported yet
    bool wants = false;
  };

  Tenant& tenant_of(const State& state) const { return state.tenant->second; }
  bool has_rival(Session session) const;
  bool is_contended() const;
  Time charged_until(Time now) const;
  void account(Time now);
  void charge(State& state, double nanoseconds);
  void fill(Tenant& tenant, Time now) const;
  void activate(Session session);
  void deactivate(State& state);
  void clear_holder();
  std::optional<Session> best_waiting() const;
  bool before(const State& a, const State& b) const;
  Time quantum(const Tenant& tenant) const;
  void decide(Time now);
  void wake(Time when);

  Settings settings_;
  std::map<std::string, Tenant> tenants_;
  std::map<Session, State> sessions_;
  double clock_[3] = {};  // per priority: the least virtual_time of active tenants; never decreases
  std::optional<Session> holder_;
  Time accounted_{};                        // until when the holder has been charged
  Time turn_ends_{};                        // if others wait
  std::optional<Time> yield_requested_at_;  // when the holder was asked to give up the turn
  std::optional<Time> due_;
};

}  // namespace gpupool::quota
