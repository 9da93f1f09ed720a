// Whose turn it is on one GPU: the scheduling alone, without a clock, threads or processes. Who uses it tells what happens and
// when, and passes on what each session may do. One thread.
//
// At most one session has the turn. Tenants of the highest priority come first; among those of the same priority the one
// that has had the least of the GPU for its weight, and of its sessions the one that has had the least. While somebody else
// waits a turn costs the time for which it is held: that is what the others have to do without, and nobody but the arbiter's
// user measures it. What a session reports to have used beyond that (work that went on after its turn) is charged as
// well, never more than the time that has passed; and all of it where the tenant has a hard limit and nobody waits.
//
// A hard limit is a bucket that fills at the tenant's rate, may go below zero, and keeps next to nothing for idle tenants.
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
  using Time = std::chrono::nanoseconds;  // since any beginning; never goes back
  using Session = uint64_t;

  struct Settings {
    Time quantum{20'000'000};     // of a turn while others of the same priority wait
    Time shortest{4'000'000};     // of a tenant's with a small share, and before one that has just come may cut in
    Time overdue{1'000'000'000};  // a turn that was asked for and not given back is taken so long afterwards
  };
  struct Share {
    uint32_t weight = kWholeGpu;  // thousandths of the GPU; the limit, where it is hard
    Mode mode = Mode::elastic;
    Priority priority = Priority::normal;
    // Sessions of one partition share it as elastic ones do.
    static Share of(const Quota& quota, uint32_t gpu) {
      return {quota.of(gpu).compute_milli, quota.mode == Mode::hard ? Mode::hard : Mode::elastic, quota.priority};
    }
    bool operator==(const Share&) const = default;
  };
  // What a session may do now.
  struct Turn {
    enum class State : uint32_t { closed, open, yield };  // yield: it still has the turn, and is asked to give it up
    State state = State::closed;
    bool bounded = false;  // others may want the turn soon: it keeps little work on the device
    bool single = false;   // others of higher priority may: one piece of work at a time
    bool wanted = false;   // to be given up as soon as there is no work
    bool operator==(const Turn&) const = default;
  };

  Arbiter() = default;
  explicit Arbiter(const Settings& settings) : settings_(settings) {}

  // Of a tenant's sessions that run and that come; the weight may not be zero.
  void set_share(const std::string& tenant, const Share& share, Time now);
  // Of one that comes no more; while it has a session it stays.
  void forget(const std::string& tenant);
  void add(Session session, const std::string& tenant, Time now);
  void remove(Session session, Time now);  // its turn is free at once
  // It has work and not the turn; or has none any more.
  void want(Session session, bool wants, Time now);
  void release(Session session, bool wants, Time now);
  // All that it says to have used so far.
  void report(Session session, Time used, Time now);
  void tick(Time now);

  Turn turn(Session session) const;
  std::optional<Session> holder() const { return holder_; }
  size_t sessions() const { return sessions_.size(); }
  // When tick() is due at the latest, if nothing happens before.
  std::optional<Time> due() const { return due_; }

 private:
  struct Tenant {
    Share share;
    double had = 0;     // time per weight: the order of the turns
    double tokens = 0;  // nanoseconds; of a hard limit
    Time filled{};
    bool exhausted = false;  // until the bucket has something again
    size_t active = 0;       // sessions that want the turn or have it
    Time left{};             // when it last became 0
  };
  struct State {
    std::map<std::string, Tenant>::iterator tenant;
    Time since{};        // when it was added
    double had = 0;      // nanoseconds: the order within its tenant
    Time reported{};
    double unpaid = 0;   // reported and not charged; below zero: charged and not reported yet
    bool wants = false;
  };

  Tenant& tenant_of(const State& state) const { return state.tenant->second; }
  bool has_rival(Session session) const;
  bool metered() const;
  Time metered_until(Time now) const;
  void account(Time now);
  void charge(State& state, double nanoseconds);
  void fill(Tenant& tenant, Time now) const;
  void activate(Session session);
  void deactivate(State& state);
  void put_down();
  std::optional<Session> best_waiting() const;
  bool before(const State& a, const State& b) const;
  Time quantum(const Tenant& tenant) const;
  void decide(Time now);
  void wake(Time when);

  Settings settings_;
  std::map<std::string, Tenant> tenants_;
  std::map<Session, State> sessions_;
  double clock_[3] = {};  // per priority: what the tenant that is furthest behind has had
  std::optional<Session> holder_;
  Time accounted_{};      // until here the holder has been charged
  Time turn_ends_{};      // when others wait
  std::optional<Time> asked_;  // when the holder was asked to give the turn up
  std::optional<Time> due_;
};

}  // namespace gpupool::quota
