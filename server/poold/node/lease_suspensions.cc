#include "server/poold/node/lease_suspensions.h"

#include <algorithm>
#include <utility>

#include "common/log/log.h"
#include "protocol/lease/token.h"

namespace gpupool::server {
namespace {

using pool::LeaseSuspension;
using Place = LeaseSuspensions::Session::Place;

bool is_anywhere(const LeaseSuspensions::Sessions& sessions, Place place) {
  return std::ranges::any_of(sessions.all, [&](const auto& session) { return session.place == place; });
}

}  // namespace

void LeaseSuspensions::order(const std::string& lease, uint64_t number, bool resume) {
  if (!host_.room) return;
  const auto known = leases_.find(lease);
  if (known == leases_.end() && leases_.size() >= kMostLeases) return;
  Entry& entry = leases_[lease];
  if (number < entry.number) return;  // a later one has overtaken it
  if (std::exchange(entry.number, number) != number) {
    entry.asked.clear();
    entry.reason.clear();
    entry.since = Clock::now();
    enter(entry, resume ? LeaseSuspension::RESUMING : LeaseSuspension::SUSPENDING);
    log::info(resume ? "lease_resumes" : "lease_suspends",
              {{"lease", lease::hexadecimal(lease)}, {"order", number}});
  }
  for (auto& [session, asked] : entry.sessions) asked = false;
  advance(lease, entry);
}

void LeaseSuspensions::keep_only(const std::set<std::string>& ordered) {
  std::erase_if(leases_, [&](const auto& one) {
    return one.second.state == LeaseSuspension::RUNNING && one.second.sessions.empty() &&
           !ordered.contains(one.first);
  });
}

bool LeaseSuspensions::update() {
  for (auto& [lease, entry] : leases_) advance(lease, entry);
  return std::ranges::any_of(leases_, [](const auto& one) { return one.second.news; });
}

void LeaseSuspensions::enter(Entry& entry, State state) {
  if (std::exchange(entry.state, state) == state) return;
  entry.news = true;
  entry.took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - entry.since);
}

LeaseSuspensions::Sessions LeaseSuspensions::sessions_of(const std::string& lease) const {
  const std::string tenant = tenant_of_(lease);
  return tenant.empty() ? Sessions() : host_.sessions(tenant);
}

void LeaseSuspensions::advance(const std::string& lease, Entry& entry) {
  if (entry.state == LeaseSuspension::SUSPENDING) suspend_all(lease, entry, sessions_of(lease));
  if (entry.state == LeaseSuspension::RESUMING || entry.state == LeaseSuspension::RUNNING)
    resume_all(lease, entry, sessions_of(lease));
}

// A session that is being resumed is suspended again only when its client has said that it has gone on: until
// then two records have the same id.
void LeaseSuspensions::suspend_all(const std::string& lease, Entry& entry, const Sessions& sessions) {
  if (is_anywhere(sessions, Place::resuming)) return;
  bool done = sessions.waiting == 0;
  for (const Session& session : sessions.all) {
    done = done && session.place == Place::suspended;
    if (session.place != Place::running || !entry.asked.insert(session.number).second) continue;
    entry.sessions[session.number] = false;
    const auto asked = host_.suspend(
        session.number, [this, lease, number = entry.number, session = session.number](const auto& reason) {
          const auto its = leases_.find(lease);
          if (its == leases_.end() || its->second.number != number) return;
          undo(its->second, "session " + std::to_string(session) + ": " + reason);
        });
    if (!asked) return undo(entry, asked.error().message);
  }
  if (done) enter(entry, LeaseSuspension::SUSPENDED);
}

void LeaseSuspensions::undo(Entry& entry, const std::string& reason) {
  if (entry.state != LeaseSuspension::SUSPENDING) return;
  entry.reason = reason;
  enter(entry, LeaseSuspension::RESUMING);
}

void LeaseSuspensions::resume_all(const std::string& lease, Entry& entry, const Sessions& sessions) {
  bool done = true;
  for (auto next = entry.sessions.begin(); next != entry.sessions.end();) {
    const auto at = next++;
    const auto found = std::ranges::find(sessions.all, at->first, &Session::number);
    const Place place = found == sessions.all.end() ? Place::ending : found->place;
    if (place == Place::running || place == Place::ending) {
      entry.sessions.erase(at);  // it was not suspended, or goes on under another number, or is over
      continue;
    }
    if (place == Place::storing) continue;  // its client has not answered, and goes on until it does
    done = false;
    if (place != Place::suspended || std::exchange(at->second, true)) continue;
    const auto asked = host_.resume(at->first, [this, lease, session = at->first](const auto& reason) {
      const auto its = leases_.find(lease);
      if (its != leases_.end() && its->second.state == LeaseSuspension::RESUMING)
        its->second.reason = "session " + std::to_string(session) + ": " + reason;
    });
    if (!asked && asked.error().code != ErrorCode::refused) entry.reason = asked.error().message;
  }
  enter(entry, done ? LeaseSuspension::RUNNING : LeaseSuspension::RESUMING);
}

bool LeaseSuspensions::refuses_sessions(const std::string& lease) const {
  const auto known = leases_.find(lease);
  return known != leases_.end() && (known->second.state == LeaseSuspension::SUSPENDING ||
                                    known->second.state == LeaseSuspension::SUSPENDED);
}

// While this node has not reported that the lease is suspended, the scheduler gives its GPUs to no other.
void LeaseSuspensions::lease_ends(const std::string& lease) {
  const auto known = leases_.find(lease);
  if (known == leases_.end()) return;
  undo(known->second, "the lease ends");
  advance(lease, known->second);
}

void LeaseSuspensions::report(pool::NodeReport& out) {
  if (!host_.room) return;
  *out.mutable_suspension_room() = host_.room();
  for (auto& [lease, entry] : leases_) {
    entry.news = false;
    LeaseSuspension& told = *out.add_suspensions();
    told.set_lease(lease);
    told.set_number(entry.number);
    told.set_state(entry.state);
    told.set_reason(entry.reason);
    const bool over = entry.state == LeaseSuspension::SUSPENDED || entry.state == LeaseSuspension::RUNNING;
    const auto time = over ? entry.took : Clock::now() - entry.since;
    told.set_milliseconds(
        static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(time).count()));
    for (const Session& session : sessions_of(lease).all) {
      if (session.place == Place::running || session.place == Place::ending) continue;
      told.set_sessions(told.sessions() + (session.place != Place::storing ? 1 : 0));
      told.set_bytes(told.bytes() + session.bytes);
    }
  }
}

// poold is not upgraded while it has suspended sessions.
void LeaseSuspensions::save(upgrade::Leases& to) const {
  for (const auto& [lease, entry] : leases_) {
    upgrade::LeaseSuspension& saved = *to.add_suspensions();
    saved.set_lease(lease);
    saved.set_number(entry.number);
    saved.set_state(static_cast<uint32_t>(entry.state));
    saved.set_reason(entry.reason);
  }
}

void LeaseSuspensions::restore(const upgrade::Leases& from) {
  for (const upgrade::LeaseSuspension& saved : from.suspensions()) {
    Entry& entry = leases_[saved.lease()];
    entry.number = saved.number();
    entry.state = static_cast<State>(saved.state());
    entry.reason = saved.reason();
    entry.since = Clock::now();
  }
}

}  // namespace gpupool::server
