#include "server/poold/workers/memory_mover.h"

#include <algorithm>
#include <utility>

#include "common/log/log.h"
#include "server/poold/upgrade/values.h"
#include "server/poold/workers/host_memory.h"

namespace gpupool::server {
namespace {

using namespace std::chrono_literals;

constexpr auto kStillWants = 1s;  // a waiting session repeats its request within this time
constexpr auto kAskAgain = 2s;    // pause before asking a busy session again
constexpr auto kLongestStay = 60s;
// For a session entitled to the room, while another session finishes its work.
constexpr auto kPatienceOfEntitled = 60s;
constexpr auto kWarnAfter = 10s;
constexpr auto kWarnAgain = 60s;
constexpr auto kTooOften = 2ms;

quota::MoveTime since_start(std::chrono::steady_clock::time_point time) {
  return time.time_since_epoch();
}

}  // namespace

// A waiting session repeats its request, except while it copies memory back from the host.
bool MemoryMover::waits_for_memory(const Worker& worker, Clock::time_point now) {
  const Moves& moves = of(worker);
  if (now - moves.wanted < kStillWants) return true;
  return moves.wants_since != Clock::time_point{} && (*worker.page)->idle_since.load() == 0 &&
         in_host(worker) != 0;
}

std::vector<quota::MemoryUse> MemoryMover::memory_uses(int gpu, Clock::time_point now) {
  std::vector<quota::MemoryUse> uses;
  workers_.for_each_serving([&](const Worker& worker) {
    const quota::SessionPage& page = **worker.page;
    const auto& of_gpu = page.gpus[gpu];
    const Moves& moves = of(worker);
    quota::MemoryUse use{.session = worker.session, .tenant = worker.client.tenant};
    const uint64_t used = of_gpu.memory_used.load();
    use.in_host = std::min({of_gpu.memory_in_host.load(), used, moves.allowed});
    use.resident = used - use.in_host;
    use.movable = std::min(of_gpu.memory_movable.load(), use.resident);
    if (const int64_t idle = page.idle_since.load(); idle > 0 && moves.declined_until <= now)
      use.idle_since = quota::MoveTime(idle);
    use.stays_until = std::min(quota::MoveTime(page.stays_until.load()), since_start(now + kLongestStay));
    use.stays_until = std::max(use.stays_until, since_start(moves.declined_until));
    if (waits_for_memory(worker, now)) use.waits_since = since_start(moves.wants_since);
    if (moves.order)
      use.will_keep = moves.order->gpu == gpu ? std::min(moves.order->keep, use.resident) : use.resident;
    uses.push_back(std::move(use));
  });
  return uses;
}

// The session's bytes in host memory, at most as many as poold ever ordered it to move there.
uint64_t MemoryMover::in_host(const Worker& worker) {
  const uint64_t allowed = of(worker).allowed;
  uint64_t bytes = 0;
  for (const auto& gpu : (*worker.page)->gpus) bytes += std::min(gpu.memory_in_host.load(), allowed);
  return std::min(bytes, allowed);
}

uint64_t MemoryMover::host_room() {
  uint64_t taken = 0;
  workers_.for_each_serving([&](const Worker& worker) {
    taken += in_host(worker);
    if (const auto& order = of(worker).order) taken += order->most;
  });
  return host_memory_ - std::min(taken, host_memory_);
}

// True if this is a GPU whose memory moves to host memory.
bool MemoryMover::moves_memory_of(int32_t gpu) const {
  return host_memory_ != 0 && gpu >= 0 && static_cast<size_t>(gpu) < devices_.size() &&
         static_cast<size_t>(gpu) < quota::kMostGpus;
}

// Records that the session waits, and warns when it has waited for long.
void MemoryMover::note_wish(const Worker& asking, const packet::MemoryNeeded& wanted, Clock::time_point now) {
  Moves& moves = of(asking);
  if (!waits_for_memory(asking, now)) moves.wants_since = now;
  moves.wanted = now;
  if (now - moves.wants_since >= kWarnAfter && now - moves.warned >= kWarnAgain) {
    moves.warned = now;
    log::warning(
        "session_waits_for_gpu_memory",
        {{"session", asking.session},
         {"tenant", asking.client.tenant},
         {"gpu", wanted.gpu},
         {"bytes", wanted.bytes},
         {"seconds", std::chrono::duration_cast<std::chrono::seconds>(now - moves.wants_since).count()}});
  }
}

// Orders a session to move memory out.
void MemoryMover::send(const quota::MoveOrder& order, int32_t gpu, const Worker& asking) {
  Worker* const worker = workers_.serving(order.session);
  if (!worker) return;
  const packet::MoveOut move{
      .bytes = order.bytes, .most = order.most, .keep = order.keep, .gpu = gpu, .at_once = order.at_once};
  // If the worker does not drain its socket or has just ended, it keeps its memory or frees it by exiting.
  if (!send_control<ControlKind::move_out>(worker->socket(), move)) return;
  Moves& moves = of(*worker);
  moves.allowed = std::min(moves.allowed, in_host(*worker)) + order.most;
  moves.order = Moves::Order{gpu, order.keep, order.most};
  log::debug("memory_to_be_moved", {{"session", order.session},
                                    {"for", asking.session},
                                    {"gpu", gpu},
                                    {"bytes", order.bytes},
                                    {"at_once", order.at_once}});
}

bool MemoryMover::make_room(Worker& asking, const packet::MemoryNeeded& wanted) {
  if (!moves_memory_of(wanted.gpu)) return workers_.end(asking, "invalid control message");
  const auto now = Clock::now();
  if (now - of(asking).wanted < kTooOften) return true;
  note_wish(asking, wanted, now);
  const auto uses = memory_uses(wanted.gpu, now);
  uint64_t room = host_room();
  for (const auto& use : uses) {
    // Its own host memory becomes free: otherwise two sessions could not swap while host memory is full.
    if (use.session == asking.session && wanted.restores != 0) room += use.in_host;
  }
  room = std::min(room, host_memory_left());
  const auto guaranteed = [this, gpu = wanted.gpu](const std::string& name) {
    const Tenant* const tenant = tenants_.find(name);
    return tenant ? tenant->quota.of(static_cast<uint32_t>(gpu)).guaranteed_memory_bytes : 0;
  };
  const auto choice = quota::choose_moves(
      {asking.session, wanted.bytes, wanted.restores != 0, since_start(of(asking).wants_since)}, uses,
      guaranteed, devices_[static_cast<size_t>(wanted.gpu)].total_bytes(), room, since_start(now));
  for (const quota::MoveOrder& order : choice.orders) send(order, wanted.gpu, asking);
  if (!choice.hopeless && !choice.entitled) return true;
  const int64_t patience = choice.hopeless ? 0 : std::chrono::milliseconds(kPatienceOfEntitled).count();
  // On failure the worker waits for the usual time.
  (void)send_control<ControlKind::room_patience>(asking.socket(),
                                                 {.question = wanted.question, .patience_ms = patience});
  return true;
}

bool MemoryMover::moved_out(Worker& worker, const packet::MovedOut& done) {
  if (!moves_memory_of(done.gpu)) return workers_.end(worker, "invalid control message");
  Moves& moves = of(worker);
  if (!moves.order) return workers_.end(worker, "unexpected moved_out message");
  moves.order.reset();
  if (done.bytes == 0) {
    moves.declined_until = Clock::now() + kAskAgain;
    return true;
  }
  log::info("memory_moved_to_host", {{"session", worker.session},
                                     {"tenant", worker.client.tenant},
                                     {"gpu", done.gpu},
                                     {"bytes", done.bytes},
                                     {"in_host", in_host(worker)}});
  return true;
}

void MemoryMover::save(uint64_t session, upgrade::Session& to) const {
  const auto known = moves_.find(session);
  if (known == moves_.end()) return;
  const Moves& from = known->second;
  upgrade::Moves& moves = *to.mutable_moves();
  moves.set_wants_since(upgrade::to_ns(from.wants_since));
  moves.set_wanted(upgrade::to_ns(from.wanted));
  moves.set_warned(upgrade::to_ns(from.warned));
  moves.set_declined_until(upgrade::to_ns(from.declined_until));
  moves.set_allowed(from.allowed);
  moves.set_ordered(from.order.has_value());
  if (!from.order) return;
  moves.set_gpu(from.order->gpu);
  moves.set_keep(from.order->keep);
  moves.set_most(from.order->most);
}

void MemoryMover::restore(uint64_t session, const upgrade::Session& from) {
  if (!from.has_moves()) return;
  const upgrade::Moves& moves = from.moves();
  Moves& to = moves_[session];
  to.wants_since = upgrade::steady(moves.wants_since());
  to.wanted = upgrade::steady(moves.wanted());
  to.warned = upgrade::steady(moves.warned());
  to.declined_until = upgrade::steady(moves.declined_until());
  to.allowed = moves.allowed();
  if (moves.ordered()) to.order = Moves::Order{moves.gpu(), moves.keep(), moves.most()};
}

}  // namespace gpupool::server
