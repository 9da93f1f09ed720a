#include "server/quota/arbiter.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace gpupool::quota {
namespace {

// Slightly below the promised rate, for what a turn takes after its end.
constexpr double kFillRate = 0.985;
// Nanoseconds at the bucket's rate: needed to go on after the bucket was empty, kept while idle, and kept
// while waiting.
constexpr double kResume = 15e6, kIdleMost = 15e6, kWaitingMost = 500e6;
// How far a returning tenant may lag behind the others, in nanoseconds; and how far if it was away for less
// than kMoment, as a busy program is when its host delays it.
constexpr double kKeptLag = 20e6, kKeptLagOfBusy = 200e6;
constexpr Arbiter::Time kMoment{50'000'000};
// Tenants with less than this part of all weights have shorter turns, which come more often.
constexpr double kWholeQuantum = 0.25;

double count(Arbiter::Time time) {
  return static_cast<double>(time.count());
}
Arbiter::Time time_of(double nanoseconds) {
  return Arbiter::Time(static_cast<int64_t>(std::ceil(nanoseconds)));
}

}  // namespace

void Arbiter::set_share(const std::string& tenant, const Share& share, Time now) {
  account(now);
  Tenant& changed = tenants_[tenant];
  const auto before = changed.share;
  changed.share = share;
  changed.share.weight = std::max(1u, share.weight);
  if (changed.share.priority != before.priority)
    changed.virtual_time = clock_[static_cast<size_t>(changed.share.priority)];
  if (changed.share.mode != before.mode) {
    changed.tokens = 0;
    changed.filled = now;
    changed.exhausted = false;
  }
  decide(now);
}

void Arbiter::forget(const std::string& tenant) {
  const auto found = tenants_.find(tenant);
  const bool used = std::any_of(sessions_.begin(), sessions_.end(),
                                [&](const auto& entry) { return entry.second.tenant == found; });
  if (found != tenants_.end() && !used) tenants_.erase(found);
}

void Arbiter::add(Session session, const std::string& tenant, Time now, Time reported) {
  account(now);
  const auto of = tenants_.try_emplace(tenant).first;
  sessions_.emplace(session, State{.tenant = of, .since = now - reported, .reported = reported});
  decide(now);
}

void Arbiter::remove(Session session, Time now) {
  account(now);
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  if (holder_ == session) clear_holder();
  deactivate(found->second);
  sessions_.erase(found);
  decide(now);
}

void Arbiter::want(Session session, bool wants, Time now) {
  account(now);
  const auto found = sessions_.find(session);
  if (found == sessions_.end() || holder_ == session || found->second.wants == wants) return;
  State& state = found->second;
  if (!wants) {
    deactivate(state);
    return decide(now);
  }
  const bool had_rival = holder_ && has_rival(*holder_);
  activate(session);
  if (holder_) {
    // If the holder had no rival before, its turn ends now. If the new session takes precedence over the
    // holder, the turn ends soon.
    if (!had_rival)
      turn_ends_ = now;
    else if (before(state, sessions_.at(*holder_)))
      turn_ends_ = std::min(turn_ends_, now + settings_.shortest);
  }
  decide(now);
}

void Arbiter::release(Session session, bool wants, Time now) {
  account(now);
  if (holder_ != session) return want(session, wants, now);
  clear_holder();
  State& state = sessions_.at(session);
  deactivate(state);
  if (wants) activate(session);
  decide(now);
}

void Arbiter::report(Session session, Time used, Time now) {
  account(now);
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  State& state = found->second;
  const Time believed = std::clamp(used, state.reported, std::max(state.reported, now - state.since));
  const double more = count(believed - state.reported);
  state.reported = believed;
  // A session that has the GPU to itself, without a hard limit, is not charged.
  if (holder_ == session && !is_contended() && tenant_of(state).share.mode == Mode::elastic) return;
  state.unpaid += more;
  if (state.unpaid > 0) charge(state, std::exchange(state.unpaid, 0));
  decide(now);
}

void Arbiter::tick(Time now) {
  account(now);
  decide(now);
}

Arbiter::Turn Arbiter::turn(Session session) const {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return {};
  const Tenant& tenant = tenant_of(found->second);
  Turn turn;
  const bool hard = tenant.share.mode == Mode::hard;
  turn.bounded = hard || sessions_.size() > 1;
  turn.single = std::any_of(sessions_.begin(), sessions_.end(), [&](const auto& other) {
    return tenant_of(other.second).share.priority > tenant.share.priority;
  });
  if (holder_ != session) return turn;
  turn.state = yield_requested_at_ ? Turn::State::yield : Turn::State::open;
  turn.wanted = hard || has_rival(session);
  return turn;
}

// True if another session waits for the turn and may have it.
bool Arbiter::has_rival(Session session) const {
  return std::any_of(sessions_.begin(), sessions_.end(), [&](const auto& other) {
    return other.first != session && other.second.wants && !tenant_of(other.second).exhausted;
  });
}

// True if another session waits for the holder.
bool Arbiter::is_contended() const {
  return holder_ && has_rival(*holder_);
}

// Returns the time until which the holder is charged for holding the turn: now while another session waits,
// else kMoment after another tenant's last session stopped wanting it, so that a busy program delayed on its
// host gets its share when it returns.
Arbiter::Time Arbiter::charged_until(Time now) const {
  if (!holder_ || is_contended()) return holder_ ? now : Time{};
  Time until{};
  for (const auto& [name, tenant] : tenants_) {
    if (&tenant != &tenant_of(sessions_.at(*holder_)) && tenant.left != Time{})
      until = std::max(until, tenant.left + kMoment);
  }
  return std::min(until, now);
}

void Arbiter::account(Time now) {
  const double paid = count(std::max(Time{}, charged_until(now) - accounted_));
  accounted_ = std::max(accounted_, now);
  if (paid != 0) {
    State& state = sessions_.at(*holder_);
    charge(state, paid);
    state.unpaid -= paid;
  }
  for (auto& [name, tenant] : tenants_) fill(tenant, accounted_);
}

void Arbiter::charge(State& state, double nanoseconds) {
  Tenant& tenant = tenant_of(state);
  state.used_nanoseconds += nanoseconds;
  tenant.virtual_time += nanoseconds / tenant.share.weight;
  if (tenant.share.mode != Mode::hard) return;
  tenant.tokens -= nanoseconds;
  if (tenant.tokens <= 0) tenant.exhausted = true;
}

void Arbiter::fill(Tenant& tenant, Time now) const {
  const double rate = tenant.share.weight / double{kWholeGpu} * kFillRate;
  tenant.tokens += count(now - tenant.filled) * rate;
  tenant.filled = now;
  const double most = (tenant.active ? kWaitingMost : kIdleMost) * rate;
  tenant.tokens = std::min(tenant.tokens, most);
  if (tenant.tokens >= kResume * rate) tenant.exhausted = false;
}

// Marks the session as wanting the turn. After an absence, it and its tenant may be behind the others only a
// little.
void Arbiter::activate(Session session) {
  State& state = sessions_.at(session);
  Tenant& tenant = tenant_of(state);
  const double kept = accounted_ - tenant.left < kMoment ? kKeptLagOfBusy : kKeptLag;
  const double behind = clock_[static_cast<size_t>(tenant.share.priority)] - kept / tenant.share.weight;
  if (tenant.active++ == 0) tenant.virtual_time = std::max(tenant.virtual_time, behind);
  state.wants = true;
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [other, its] : sessions_) {
    if (other != session && its.tenant == state.tenant && (its.wants || holder_ == other))
      least = std::min(least, its.used_nanoseconds);
  }
  if (std::isfinite(least)) state.used_nanoseconds = std::max(state.used_nanoseconds, least - kKeptLag);
}

void Arbiter::deactivate(State& state) {
  if (!state.wants) return;
  state.wants = false;
  Tenant& tenant = tenant_of(state);
  if (--tenant.active == 0) tenant.left = accounted_;
}

void Arbiter::clear_holder() {
  holder_.reset();
  yield_requested_at_.reset();
}

// True if a gets the turn before b.
bool Arbiter::before(const State& a, const State& b) const {
  const Tenant& mine = tenant_of(a);
  const Tenant& other = tenant_of(b);
  if (mine.share.priority != other.share.priority) return mine.share.priority > other.share.priority;
  return a.tenant == b.tenant ? a.used_nanoseconds < b.used_nanoseconds
                              : mine.virtual_time < other.virtual_time;
}

std::optional<Arbiter::Session> Arbiter::best_waiting() const {
  std::optional<Session> best;
  for (const auto& [session, state] : sessions_) {
    if (!state.wants || holder_ == session || tenant_of(state).exhausted) continue;
    if (!best || before(state, sessions_.at(*best))) best = session;
  }
  return best;
}

Arbiter::Time Arbiter::quantum(const Tenant& tenant) const {
  double all = 0;
  for (const auto& [name, other] : tenants_) {
    if (other.active && other.share.priority == tenant.share.priority) all += other.share.weight;
  }
  const double part = all > 0 ? tenant.share.weight / all / kWholeQuantum : 1;
  return std::max(settings_.shortest, time_of(count(settings_.quantum) * std::min(1.0, part)));
}

void Arbiter::wake(Time when) {
  if (!due_ || when < *due_) due_ = when;
}

void Arbiter::decide(Time now) {
  due_.reset();
  for (size_t priority = 0; priority < std::size(clock_); ++priority) {
    double least = std::numeric_limits<double>::infinity();
    for (const auto& [name, tenant] : tenants_) {
      if (tenant.active && static_cast<size_t>(tenant.share.priority) == priority)
        least = std::min(least, tenant.virtual_time);
    }
    if (std::isfinite(least)) clock_[priority] = std::max(clock_[priority], least);
  }
  auto best = best_waiting();
  if (holder_ && yield_requested_at_ && now >= *yield_requested_at_ + settings_.yield_timeout) {
    State& late = sessions_.at(*holder_);
    clear_holder();
    deactivate(late);
    best = best_waiting();
  }
  if (holder_ && !yield_requested_at_) {
    const State& state = sessions_.at(*holder_);
    const Tenant& tenant = tenant_of(state);
    if (tenant.exhausted) {
      yield_requested_at_ = now;
    } else if (best) {
      const State& other = sessions_.at(*best);
      const bool same = tenant_of(other).share.priority == tenant.share.priority;
      if (!same && before(other, state)) yield_requested_at_ = now;
      if (same && now >= turn_ends_) {
        if (before(state, other))
          turn_ends_ = now + quantum(tenant);
        else
          yield_requested_at_ = now;
      }
      if (same && !yield_requested_at_) wake(turn_ends_);
    }
    if (!yield_requested_at_ && tenant.share.mode == Mode::hard)
      wake(now + std::max(Time{100'000}, time_of(tenant.tokens)));
  }
  if (!holder_ && best) {
    State& state = sessions_.at(*best);
    holder_ = best;
    state.unpaid = 0;
    turn_ends_ = now + quantum(tenant_of(state));
    const auto next = best_waiting();
    if (next && tenant_of(sessions_.at(*next)).share.priority == tenant_of(state).share.priority)
      wake(turn_ends_);
    if (tenant_of(state).share.mode == Mode::hard)
      wake(now + std::max(Time{100'000}, time_of(tenant_of(state).tokens)));
  }
  if (yield_requested_at_) wake(*yield_requested_at_ + settings_.yield_timeout);
  for (const auto& [session, state] : sessions_) {
    const Tenant& tenant = tenant_of(state);
    if (!state.wants || !tenant.exhausted) continue;
    const double rate = tenant.share.weight / double{kWholeGpu} * kFillRate;
    wake(now + std::max(Time{100'000}, time_of((kResume * rate - tenant.tokens) / rate)));
  }
}

}  // namespace gpupool::quota
