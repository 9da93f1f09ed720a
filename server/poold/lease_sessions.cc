#include "server/poold/lease_sessions.h"

#include <algorithm>
#include <utility>

#include "common/text/gpu_uuid.h"
#include "protocol/lease/token.h"
#include "server/poold/admin/usage.h"
#include "server/poold/node_report.h"

namespace gpupool::server {
namespace {

using Session = LeaseSuspensions::Session;
using Place = Session::Place;

Place place_of(const SessionView& view, const SuspendedSession* suspended) {
  if (suspended) return suspended->has_left() ? Place::leaving : Place::storing;
  return view.ending ? Place::ending : Place::running;
}

LeaseSuspensions::Sessions sessions_of(const WorkerPool& pool, const std::string& tenant) {
  LeaseSuspensions::Sessions sessions;
  size_t serving = 0;
  pool.for_each_session([&](const SessionView& view) {
    if (view.client.tenant != tenant) return;
    ++serving;
    const SuspendedSession* const suspended = pool.suspensions().find(view.number);
    sessions.all.push_back(
        {view.number, place_of(view, suspended), suspended ? suspended->bytes->load() : 0});
  });
  const size_t all = pool.sessions_of(tenant);
  sessions.waiting = all - std::min(all, serving);
  pool.suspensions().for_each([&](const SuspendedSession& suspended) {
    if (suspended.header.tenant() != tenant || !suspended.has_left()) return;
    const bool has_worker = std::ranges::any_of(
        sessions.all, [&](const Session& session) { return session.number == suspended.number; });
    if (has_worker) return;  // it is listed above
    const bool is_back = suspended.state != SuspendedSession::State::suspended;
    sessions.all.push_back(
        {suspended.number, is_back ? Place::resuming : Place::suspended, suspended.file.bytes});
  });
  return sessions;
}

// Bytes of device memory that the session has, wherever they are now.
uint64_t memory_of(const WorkerPool& pool, uint64_t session) {
  uint64_t bytes = 0;
  pool.for_each_session([&](const SessionView& view) {
    if (view.number != session) return;
    for (const auto& gpu : view.page.gpus) bytes += gpu.memory_used.load(std::memory_order_relaxed);
  });
  return bytes;
}

pool::SuspensionRoom room_of(const SuspendedFiles& files) {
  const auto left = [](uint64_t limit, uint64_t used) { return limit - std::min(limit, used); };
  pool::SuspensionRoom room;
  room.set_memory_bytes(left(files.settings().memory_bytes, files.memory_used()));
  if (!files.settings().folder.empty())
    room.set_disk_bytes(left(files.settings().disk_bytes, files.disk_used()));
  return room;
}

// Host memory is faster, so a session goes to disk only if it does not fit there.
Suspensions::Order order_for(const WorkerPool& pool, uint64_t session) {
  const SuspendedFiles& files = pool.suspensions().files();
  const pool::SuspensionRoom room = room_of(files);
  const uint64_t bytes = memory_of(pool, session);
  const bool to_disk =
      !files.settings().folder.empty() && (files.settings().memory_bytes == 0 || bytes > room.memory_bytes());
  return {.to_disk = to_disk, .encrypts = to_disk && files.settings().secret.has_value()};
}

Suspensions::Answered told(LeaseSuspensions::Failed failed) {
  return [failed = std::move(failed)](const Result<Suspensions::Outcome>& outcome) {
    if (outcome && !outcome->done) failed(outcome->reason);
  };
}

LeaseSuspensions::Host suspension_host(WorkerPool& pool) {
  return {.sessions = [&pool](const std::string& tenant) { return sessions_of(pool, tenant); },
          .suspend =
              [&pool](uint64_t session, LeaseSuspensions::Failed failed) {
                return pool.request_suspension(session, order_for(pool, session), told(std::move(failed)));
              },
          .resume =
              [&pool](uint64_t session, LeaseSuspensions::Failed failed) {
                return pool.suspensions().resume(session, "", told(std::move(failed)));
              },
          .room = [&pool] { return room_of(pool.suspensions().files()); }};
}

std::string uuid_of(const WorkerPool& pool, size_t gpu) {
  return gpu < pool.devices().size() ? gpu_uuid_text(pool.devices()[gpu].uuid()) : "";
}

std::optional<uint64_t> energy_of(const Sensors& sensors, const std::string& uuid) {
  const auto known = sensors.of(uuid);
  if (!known || !known->sensors().has_energy_millijoules()) return std::nullopt;
  return known->sensors().energy_millijoules();
}

UsageCounters::Host usage_host(WorkerPool& pool, const Administration& administration) {
  using Visit = std::function<void(const UsageCounters::Session&)>;
  return {
      .for_each_session =
          [&pool](const Visit& visit) {
            pool.for_each_session([&](const SessionView& view) { visit(usage_of(view, pool.devices())); });
          },
      .uuid = [&pool](size_t gpu) { return uuid_of(pool, gpu); },
      .energy = [&pool, &administration](
                    size_t gpu) { return energy_of(administration.sensors(), uuid_of(pool, gpu)); }};
}

}  // namespace

UsageCounters::Session usage_of(const SessionView& view, const std::vector<control::Device>& devices) {
  const auto value = [](const std::atomic<uint64_t>& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  UsageCounters::Session session;
  session.number = view.number;
  session.lease = lease::from_hexadecimal(view.client.lease);
  for (size_t gpu = 0; gpu < std::min(devices.size(), quota::kMostGpus); ++gpu)
    session.gpus.push_back({plausible_gpu_time(view, gpu),
                            std::min(devices[gpu].total_bytes(), value(view.page.gpus[gpu].memory_used))});
  session.bytes_from_client = value(view.page.bytes_from_client);
  session.bytes_to_client = value(view.page.bytes_to_client);
  return session;
}

Leases::Host host_of_leases(WorkerPool& pool, const Administration& administration) {
  return {.devices = [&pool]() -> const std::vector<control::Device>& { return pool.devices(); },
          .sessions = [&pool](const std::string& tenant) { return pool.all_sessions_of(tenant); },
          .describe_breaks = [&pool](const auto& tenant, auto& told) { describe_breaks(pool, tenant, told); },
          .end_sessions = [&pool](const auto&... order) { pool.end_sessions(order...); },
          .refuse_waiting = [&pool](const auto&... order) { pool.refuse_waiting(order...); },
          .move_sessions = [&pool](const auto&... order) { pool.request_migrations(order...); },
          .now = now_ms,
          .suspension = suspension_host(pool),
          .usage = usage_host(pool, administration)};
}

}  // namespace gpupool::server
