// The part of WorkerPool for oversubscribed memory: when a GPU is full, moves other sessions' device memory
// to host memory. quota/memory_moves.h chooses the sessions.
//
// Values in session pages may be false. A worker that falsifies them is at worst not asked, or asked in vain;
// other tenants' guarantees and the limit of host memory do not depend on these values.
#include <algorithm>
#include <fstream>

#include "common/log/log.h"
#include "server/poold/workers/worker_pool.h"

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
constexpr uint64_t kHostReserve = uint64_t{512} << 20;  // kept free for other processes of the host

uint64_t host_memory_available() {
  std::ifstream file("/proc/meminfo");
  uint64_t kibibytes = 0;
  for (std::string word; file >> word;) {
    if (word == "MemAvailable:" && file >> kibibytes) return kibibytes << 10;
  }
  return UINT64_MAX;
}

quota::MoveTime since_start(std::chrono::steady_clock::time_point time) {
  return time.time_since_epoch();
}

}  // namespace

// A waiting session repeats its request, except while it copies memory back from the host.
bool WorkerPool::waits_for_memory(const Worker& worker, Clock::time_point now) {
  const auto& moves = worker.moves;
  if (now - moves.wanted < kStillWants) return true;
  return moves.wants_since != Clock::time_point{} && (*worker.page)->idle_since.load() == 0 &&
         in_host(worker) != 0;
}

std::vector<quota::MemoryUse> WorkerPool::memory_uses(int gpu, Clock::time_point now) const {
  std::vector<quota::MemoryUse> uses;
  for (const auto& [pid, worker] : workers_) {
    if (worker->state != Stage::serving) continue;
    const quota::SessionPage& page = **worker->page;
    const auto& of_gpu = page.gpus[gpu];
    const auto& moves = worker->moves;
    quota::MemoryUse use{.session = worker->session, .tenant = worker->client.tenant};
    const uint64_t used = of_gpu.memory_used.load();
    use.in_host = std::min({of_gpu.memory_in_host.load(), used, moves.allowed});
    use.resident = used - use.in_host;
    use.movable = std::min(of_gpu.memory_movable.load(), use.resident);
    if (const int64_t idle = page.idle_since.load(); idle > 0 && moves.declined_until <= now)
      use.idle_since = quota::MoveTime(idle);
    use.stays_until = std::min(quota::MoveTime(page.stays_until.load()), since_start(now + kLongestStay));
    use.stays_until = std::max(use.stays_until, since_start(moves.declined_until));
    if (waits_for_memory(*worker, now)) use.waits_since = since_start(moves.wants_since);
    if (moves.order)
      use.will_keep = moves.order->gpu == gpu ? std::min(moves.order->keep, use.resident) : use.resident;
    uses.push_back(std::move(use));
  }
  return uses;
}

// The session's bytes in host memory, at most as many as poold ever ordered it to move there.
uint64_t WorkerPool::in_host(const Worker& worker) {
  uint64_t bytes = 0;
  for (const auto& gpu : (*worker.page)->gpus)
    bytes += std::min(gpu.memory_in_host.load(), worker.moves.allowed);
  return std::min(bytes, worker.moves.allowed);
}

uint64_t WorkerPool::host_room() const {
  uint64_t taken = 0;
  for (const auto& [pid, worker] : workers_) {
    if (worker->state != Stage::serving) continue;
    taken += in_host(*worker);
    if (worker->moves.order) taken += worker->moves.order->most;
  }
  return settings_.host_memory_for_idle - std::min(taken, settings_.host_memory_for_idle);
}

uint64_t WorkerPool::host_memory_left() {
  const uint64_t available = host_memory_available();
  return available - std::min(available, kHostReserve);
}

// True if this is a GPU whose memory moves to host memory.
bool WorkerPool::moves_memory_of(int32_t gpu) const {
  return settings_.host_memory_for_idle != 0 && gpu >= 0 && static_cast<size_t>(gpu) < devices_.size() &&
         static_cast<size_t>(gpu) < quota::kMostGpus;
}

bool WorkerPool::make_room(Worker& asking, const packet::MemoryNeeded& wanted) {
  const auto now = Clock::now();
  auto& moves = asking.moves;
  if (now - moves.wanted < kTooOften) return true;
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
      {asking.session, wanted.bytes, wanted.restores != 0, since_start(moves.wants_since)}, uses, guaranteed,
      devices_[static_cast<size_t>(wanted.gpu)].total_bytes(), room, since_start(now));
  for (const quota::MoveOrder& order : choice.orders) {
    const auto found = std::find_if(workers_.begin(), workers_.end(), [&](const auto& entry) {
      return entry.second->state == Stage::serving && entry.second->session == order.session;
    });
    if (found == workers_.end()) continue;
    Worker& worker = *found->second;
    const packet::MoveOut move{.bytes = order.bytes,
                               .most = order.most,
                               .keep = order.keep,
                               .gpu = wanted.gpu,
                               .at_once = order.at_once};
    // If the worker does not drain its socket or has just ended, it keeps its memory or frees it by exiting.
    if (!send_control<ControlKind::move_out>(worker.control.native_handle(), move)) continue;
    worker.moves.allowed = std::min(worker.moves.allowed, in_host(worker)) + order.most;
    worker.moves.order = Worker::Moves::Order{wanted.gpu, order.keep, order.most};
    log::debug("memory_to_be_moved", {{"session", order.session},
                                      {"for", asking.session},
                                      {"gpu", wanted.gpu},
                                      {"bytes", order.bytes},
                                      {"at_once", order.at_once}});
  }
  if (!choice.hopeless && !choice.entitled) return true;
  const int64_t patience = choice.hopeless ? 0 : std::chrono::milliseconds(kPatienceOfEntitled).count();
  // On failure the worker waits for the usual time.
  (void)send_control<ControlKind::room_patience>(asking.control.native_handle(),
                                                 {.question = wanted.question, .patience_ms = patience});
  return true;
}

bool WorkerPool::moved_out(Worker& worker, const packet::MovedOut& done) {
  auto& moves = worker.moves;
  if (!moves.order) return end_worker(worker, "unexpected moved_out message");
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

}  // namespace gpupool::server
