#include "server/poold/workers/gpu_turns.h"

#include <algorithm>
#include <chrono>
#include <optional>

namespace gpupool::server {
namespace {

using quota::Arbiter;
using quota::TurnWord;

Arbiter::Time time_now() {
  return std::chrono::steady_clock::now().time_since_epoch();
}

}  // namespace

GpuTurns::GpuTurns(asio::io_context& context, Tenants& tenants, const Arbiter::Settings& settings)
    : timer_(context), tenants_(tenants), settings_(settings) {
  tenants_.on_change([this](const Tenant& tenant) {
    quotas_[tenant.name] = tenant.quota;
    for (auto& [gpu_lane, arbiter] : arbiters_)
      arbiter.set_share(tenant.name, Arbiter::Share::of(tenant.quota, gpu_lane.gpu), time_now());
    write_all();
  });
  tenants_.on_removal([this](const std::string& name) {
    quotas_.erase(name);
    for (auto& [gpu_lane, arbiter] : arbiters_) arbiter.forget(name);
  });
}

void GpuTurns::add(uint64_t session, const std::string& tenant, const std::string& lane, Page page) {
  sessions_.emplace(session, Session{tenant, lane, std::move(page), {}});
}

void GpuTurns::remove(uint64_t session) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  const Session gone = std::move(found->second);
  sessions_.erase(found);
  for (const auto& [gpu, word] : gone.words) {
    const GpuLane gpu_lane{gpu, gone.lane};
    Arbiter& its = arbiter(gpu_lane);
    its.remove(session, time_now());
    if (!gone.lane.empty() && its.sessions() == 0) arbiters_.erase(gpu_lane);
  }
  write_all();
}

void GpuTurns::read_page(uint64_t session) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  const Time now = time_now();
  for (uint32_t gpu = 0; gpu < quota::kMostGpus; ++gpu) read(session, found->second, gpu, now);
  write_all();
}

void GpuTurns::save(uint64_t session, upgrade::Session& to) const {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  to.set_lane(found->second.lane);
  for (const auto& [gpu, word] : found->second.words) {
    upgrade::Turn& turn = *to.add_turns();
    turn.set_gpu(gpu);
    turn.set_word(word.word);
  }
}

void GpuTurns::restore(uint64_t session, const std::string& tenant, const upgrade::Session& from, Page page) {
  Session& restored =
      sessions_.emplace(session, Session{tenant, from.lane(), std::move(page), {}}).first->second;
  const Time now = time_now();
  for (const upgrade::Turn& turn : from.turns()) {
    if (turn.gpu() >= quota::kMostGpus) continue;
    restored.words[turn.gpu()] = {turn.word()};
    Arbiter& its = arbiter({turn.gpu(), restored.lane});
    its.add(session, tenant, now, used(restored, turn.gpu()));
    // Nobody else wants the turn yet, so that the session which has it gets it again.
    if (!restored.words[turn.gpu()].closed()) its.want(session, true, now);
  }
}

void GpuTurns::end_restoring() {
  const Time now = time_now();
  for (auto& [number, session] : sessions_) {
    for (const auto& [gpu, word] : session.words) read(number, session, gpu, now);
  }
  write_all();
}

void GpuTurns::stop() {
  stopped_ = true;
  timer_.cancel();
}

Arbiter& GpuTurns::arbiter(const GpuLane& gpu_lane) {
  const auto [found, made] = arbiters_.try_emplace(gpu_lane, settings_);
  if (made) {
    for (const auto& [tenant, quota] : quotas_)
      found->second.set_share(tenant, Arbiter::Share::of(quota, gpu_lane.gpu), time_now());
  }
  return found->second;
}

GpuTurns::Time GpuTurns::used(const Session& session, uint32_t gpu) {
  return Time(std::min<uint64_t>((*session.page)->gpus[gpu].gpu_nanoseconds.load(), INT64_MAX));
}

void GpuTurns::read(uint64_t number, Session& session, uint32_t gpu, Time now) {
  const bool wants = (*session.page)->wants_turn[gpu].load() != 0;
  if (!session.words.contains(gpu)) {
    if (!wants) return;
    arbiter({gpu, session.lane}).add(number, session.tenant, now);
    session.words[gpu] = {};
  }
  Arbiter& its = arbiter({gpu, session.lane});
  its.report(number, used(session, gpu), now);
  const TurnWord there{(*session.page)->turns[gpu].load()};
  const bool given_up = its.holder() == number && there.closed() && !session.words[gpu].closed();
  if (given_up) {
    session.words[gpu] = there;
    its.release(number, wants, now);
  } else {
    its.want(number, wants, now);
  }
}

void GpuTurns::write(const GpuLane& gpu_lane, const Arbiter& its) {
  for (auto& [number, session] : sessions_) {
    const uint32_t gpu = gpu_lane.gpu;
    const auto known = session.words.find(gpu);
    if (session.lane != gpu_lane.lane || known == session.words.end()) continue;
    const auto turn = its.turn(number);
    TurnWord& word = known->second;
    const bool begins = word.closed() && turn.state != Arbiter::Turn::State::closed;
    const TurnWord next = TurnWord::of(turn, begins ? word.number() + 1 : word.number());
    if (next == word) continue;
    auto& there = (*session.page)->turns[gpu];
    uint32_t expected = word.word;
    // If the worker has just closed its turn, leave its word: its message is on the way, and read() handles
    // it.
    const bool goes_on = !word.closed() && !next.closed();
    if (!goes_on)
      there.store(next.word);
    else if (!there.compare_exchange_strong(expected, next.word) && !TurnWord{expected}.closed())
      there.store(next.word);
    word = next;
    quota::wake_worker((*session.page)->bell);
  }
}

void GpuTurns::write_all() {
  for (const auto& [gpu_lane, its] : arbiters_) write(gpu_lane, its);
  set_timer();
}

void GpuTurns::set_timer() {
  std::optional<Time> due;
  for (const auto& [gpu_lane, its] : arbiters_) {
    if (its.due() && (!due || *its.due() < *due)) due = its.due();
  }
  if (!due || stopped_) {
    timer_.cancel();
    return;
  }
  timer_.expires_at(std::chrono::steady_clock::time_point(
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(*due)));
  timer_.async_wait([this](const asio::error_code& status) {
    if (status) return;
    const Time now = time_now();
    for (auto& [gpu_lane, its] : arbiters_) {
      // Read changes that the holder has not reported yet.
      if (const auto holder = its.holder(); holder && sessions_.contains(*holder))
        read(*holder, sessions_.at(*holder), gpu_lane.gpu, now);
      its.tick(now);
    }
    write_all();
  });
}

}  // namespace gpupool::server
