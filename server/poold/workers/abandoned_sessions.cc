#include "server/poold/workers/abandoned_sessions.h"

#include <optional>

#include "common/log/log.h"
#include "server/poold/upgrade/values.h"

namespace gpupool::server {

size_t AbandonedSessions::count_if(const Accepts& accepts) const {
  size_t found = 0;
  workers_.for_each_serving(
      [&](const Worker& worker) { found += is_abandoned(worker) && accepts(worker) ? 1u : 0u; });
  return found;
}

size_t AbandonedSessions::count() const {
  return count_if([](const Worker&) { return true; });
}

size_t AbandonedSessions::count(const std::string& tenant) const {
  return count_if([&](const Worker& worker) { return worker.client.tenant == tenant; });
}

Worker* AbandonedSessions::oldest(const Accepts& accepts) const {
  Worker* first = nullptr;
  for (const auto& [pid, worker] : workers_.all()) {
    if (worker->state != Worker::Stage::serving || !is_abandoned(*worker) || !accepts(*worker)) continue;
    if (!first || worker->breaks.since[0] < first->breaks.since[0]) first = worker.get();
  }
  return first;
}

void AbandonedSessions::free_slots(size_t sessions, const Accepts& accepts) {
  const auto ends = [](const Worker& worker) {
    return is_ending(worker) || !worker.breaks.wanted_by.empty();
  };
  size_t ending = count_if([&](const Worker& worker) { return accepts(worker) && ends(worker); });
  for (; ending < sessions; ++ending) {
    Worker* const next = oldest([&](const Worker& worker) { return accepts(worker) && !ends(worker); });
    if (!next) break;
    next->breaks.wanted_by = "another client needed its session slot";
  }
}

void AbandonedSessions::free_slots(size_t sessions) {
  free_slots(sessions, [](const Worker&) { return true; });
}

void AbandonedSessions::free_slots(size_t sessions, const std::string& tenant) {
  free_slots(sessions, [&](const Worker& worker) { return worker.client.tenant == tenant; });
}

bool AbandonedSessions::reclaim(Worker& asking, const packet::Reclaim& wanted) {
  const bool known = wanted.gpu >= 0 && static_cast<size_t>(wanted.gpu) < quota::kMostGpus &&
                     wanted.reason <= packet::ReclaimReason::report;
  if (!known || questions_.contains(asking.session)) return workers_.end(asking, "invalid control message");
  Question question{.wanted = wanted, .tenant = asking.client.tenant, .started = asking.since};
  if (choose(asking.session, question)) {
    questions_.emplace(asking.session, question);
    update();
  } else {
    answer(asking.session, question, 0);
  }
  return true;
}

// Values in session pages may be false: a worker that hides its memory keeps it for as long as poold's own
// limit allows. Whether the GPU is full, only the asking worker knows, so it has few of other tenants'
// sessions ended.
bool AbandonedSessions::choose(uint64_t asking, Question& question) {
  const auto gpu = static_cast<size_t>(question.wanted.gpu);
  const auto fits = [&](const Worker& worker) {
    if (worker.session == asking || (*worker.page)->gpus[gpu].memory_used.load() == 0) return false;
    switch (question.wanted.reason) {
      case packet::ReclaimReason::gpu_full: return true;
      case packet::ReclaimReason::quota_full: return worker.client.tenant == question.tenant;
      // Only a program that has started since then may be the same one again. Others just look.
      case packet::ReclaimReason::report:
        return worker.client.tenant == question.tenant && worker.breaks.since[0] < question.started;
    }
    return false;
  };
  Worker* victim = oldest(fits);
  if (victim && victim->client.tenant != question.tenant && !may_end_others(asking)) {
    victim =
        oldest([&](const Worker& worker) { return worker.client.tenant == question.tenant && fits(worker); });
  }
  if (!victim) return false;
  question.victim = victim->session;
  if (victim->breaks.wanted_by.empty())
    victim->breaks.wanted_by = "session " + std::to_string(asking) + " needed its memory";
  return true;
}

bool AbandonedSessions::may_end_others(uint64_t asking) {
  Worker* const worker = workers_.serving(asking);
  return worker && worker->breaks.ended_for_it.take();
}

void AbandonedSessions::answer(uint64_t asking, const Question& question, uint64_t sessions) {
  Worker* const worker = workers_.serving(asking);
  if (!worker) return;
  (void)workers_.check_sent(
      *worker, send_control<ControlKind::reclaimed>(
                   worker->socket(), {.question = question.wanted.question, .sessions = sessions}));
}

void AbandonedSessions::session_ended(const Worker& worker) {
  questions_.erase(worker.session);
  for (auto at = questions_.begin(); at != questions_.end();) {
    if (at->second.victim != worker.session) {
      ++at;
      continue;
    }
    answer(at->first, at->second, 1);
    at = questions_.erase(at);
  }
}

void AbandonedSessions::update() {
  for (auto at = questions_.begin(); at != questions_.end();) {
    const Worker* const victim = workers_.serving(at->second.victim);
    const bool returned = victim && !is_abandoned(*victim);
    if (returned && !choose(at->first, at->second)) {
      answer(at->first, at->second, 0);
      at = questions_.erase(at);
    } else {
      ++at;
    }
  }
  end_due();
}

// Ends the sessions whose time has come, and looks again when that of the next one comes.
void AbandonedSessions::end_due() {
  const auto now = Clock::now();
  std::optional<Clock::time_point> next;
  std::map<uint64_t, std::string> due;
  workers_.for_each_serving([&](const Worker& worker) {
    if (!worker.breaks.abandoned || !worker.ending.empty()) return;
    const bool watched = worker.client.process != nullptr, wanted = !worker.breaks.wanted_by.empty();
    if (!watched && !wanted) return;
    auto at = worker.breaks.since[0] + kReturnTime;
    const bool gone = now >= at && watched && worker.client.process->has_ended();
    if (gone || (now >= at && wanted)) {
      due[worker.session] = gone ? "its client's process has ended"
                                 : "its client had closed the connection, and " + worker.breaks.wanted_by;
      return;
    }
    if (at <= now) at = now + kReturnTime;  // its process may still be ending
    next = next ? std::min(*next, at) : at;
  });
  for (const auto& [session, reason] : due) end_(session, reason);
  if (!next) return;
  timer_.expires_at(*next);
  timer_.async_wait([this](const asio::error_code& status) {
    if (!status) end_due();
  });
}

void AbandonedSessions::save(uint64_t session, upgrade::Session& to) const {
  const auto asked = questions_.find(session);
  if (asked == questions_.end()) return;
  const Question& question = asked->second;
  upgrade::Reclaim& reclaim = *to.mutable_reclaim();
  reclaim.set_question(question.wanted.question);
  reclaim.set_gpu(question.wanted.gpu);
  reclaim.set_reason(static_cast<uint32_t>(question.wanted.reason));
  reclaim.set_tenant(question.tenant);
  reclaim.set_started(upgrade::to_ns(question.started));
  reclaim.set_victim(question.victim);
}

void AbandonedSessions::restore(uint64_t session, const upgrade::Session& from) {
  if (!from.has_reclaim()) return;
  const upgrade::Reclaim& reclaim = from.reclaim();
  questions_[session] = {.wanted = {.question = reclaim.question(),
                                    .gpu = reclaim.gpu(),
                                    .reason = static_cast<packet::ReclaimReason>(reclaim.reason())},
                         .tenant = reclaim.tenant(),
                         .started = upgrade::steady(reclaim.started()),
                         .victim = reclaim.victim()};
}

}  // namespace gpupool::server
