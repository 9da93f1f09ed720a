#include "scheduler/admin/commands.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "common/text/printable.h"
#include "common/text/units.h"
#include "scheduler/admin/describe.h"
#include "scheduler/admin/dump.h"
#include "scheduler/admin/quota_words.h"
#include "scheduler/admin/terminal.h"
#include "scheduler/admin/to_json.h"

namespace gpupool::admin {
namespace {

constexpr std::chrono::seconds kUpgradeTime{60};
constexpr std::chrono::minutes kMoveTime{10};
constexpr const char* kSameServer = ".";  // MigrateSessionRequest.to
constexpr std::chrono::milliseconds kUpgradePause{10}, kUpgradeAnswer{1000};

Exit print(const std::string& text) {
  show(text);
  return kExitGood;
}

// Has poold ask a client. Throws if there is no answer in time.
template <class Method, class Request, class Reply>
void ask_client(PooldClient& poold, std::chrono::seconds timeout, Method method, const Request& request,
                Reply& reply, const std::string& event) {
  const auto status = poold.call_within(timeout, method, request, reply);
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    throw Failure(kExitRefused, "the session's client has not answered within " +
                                    std::to_string(timeout.count()) + " s, and may still do so: see " +
                                    event + " in poold's log");
  }
  poold.check(status);
}

std::string time_text(uint64_t milliseconds) {
  return duration_text(std::chrono::milliseconds(milliseconds));
}

// Warns of a memory limit above every GPU's memory, which is probably a mistake.
void warn_of_memory(PooldClient& poold, const Quota& changes) {
  if (changes.memory_bytes() == 0) return;
  uint64_t most = 0;
  const auto reply = poold.call(&Admin::Stub::ListGpus, ListGpusRequest());
  for (const Gpu& gpu : reply.gpus()) most = std::max<uint64_t>(most, gpu.memory_total_bytes());
  if (most == 0 || changes.memory_bytes() <= most) return;
  std::fprintf(stderr,
               "pool-admin: warning: memory=%s has no effect: no GPU of this poold has more than %s\n",
               size_text(changes.memory_bytes()).c_str(), bytes_text(most).c_str());
}

// Throws if poold has no tenant of this name, neither configured nor with earlier sessions.
void check_tenant(PooldClient& poold, const std::string& name) {
  const auto reply = poold.call(&Admin::Stub::ListTenants, ListTenantsRequest());
  const auto& all = reply.tenants();
  if (std::any_of(all.begin(), all.end(), [&](const Tenant& tenant) { return tenant.name() == name; }))
    return;
  throw Failure(kExitRefused, "unknown tenant '" + name + "'");
}

// Returns poold's state after the upgrade. The connection may end before the reply arrives, so the count of
// upgrades tells.
Poold upgrade(PooldClient& poold, uint32_t upgrades) {
  UpgradeReply reply;
  const auto begun = poold.call_within(kUpgradeTime, &Admin::Stub::Upgrade, UpgradeRequest(), reply);
  if (begun.error_code() != grpc::StatusCode::UNAVAILABLE) poold.check(begun);
  const auto deadline = std::chrono::steady_clock::now() + kUpgradeTime;
  while (std::chrono::steady_clock::now() < deadline) {
    PooldClient upgraded(poold.socket());
    Poold now;
    const bool answers =
        upgraded.call_within(kUpgradeAnswer, &Admin::Stub::Health, HealthRequest(), now).ok();
    if (answers && now.upgrades() > upgrades) return now;
    std::this_thread::sleep_for(kUpgradePause);
  }
  throw Failure(kExitRefused, "poold has not been upgraded within " + std::to_string(kUpgradeTime.count()) +
                                  " s; see not_upgraded in its log");
}

// Moves the sessions whose workers are older than poold's program, one after the other.
Json move_inherited(PooldClient& poold, bool json) {
  Json moved = Json::array();
  const auto listed = poold.call(&Admin::Stub::ListSessions, ListSessionsRequest());
  for (const Session& session : listed.sessions()) {
    if (!session.inherited() || session.ending()) continue;
    MigrateSessionRequest request;
    request.set_session(session.number());
    request.set_to(kSameServer);
    MigrateSessionReply reply;
    const auto status = poold.call_within(kMoveTime, &Admin::Stub::MigrateSession, request, reply);
    if (status.error_code() == grpc::StatusCode::NOT_FOUND) continue;  // it has ended
    const std::string why = printable_message(status.ok() ? reply.reason() : status.error_message());
    moved.push_back({{"session", session.number()},
                     {"migrated", reply.migrated()},
                     {"reason", why},
                     {"milliseconds", reply.milliseconds()}});
    const std::string name = "session " + std::to_string(session.number());
    if (!json && !reply.migrated())
      std::fprintf(stderr, "pool-admin: %s stays with its worker: %s\n", name.c_str(), why.c_str());
  }
  return moved;
}

}  // namespace

Exit show_gpus(PooldClient& poold, bool json) {
  const auto reply = poold.call(&Admin::Stub::ListGpus, ListGpusRequest());
  return print(json ? line_of(json_list(reply.gpus())) : gpus_text(reply.gpus(), terminal_width()));
}

Exit show_sessions(PooldClient& poold, bool json, const std::string& tenant) {
  ListSessionsRequest request;
  request.set_tenant(printable(tenant));
  const auto reply = poold.call(&Admin::Stub::ListSessions, request);
  if (reply.sessions().empty() && !tenant.empty()) check_tenant(poold, request.tenant());
  return print(json ? line_of(json_list(reply.sessions()))
                    : sessions_text(reply.sessions(), terminal_width()));
}

Exit show_tenants(PooldClient& poold, bool json) {
  const auto reply = poold.call(&Admin::Stub::ListTenants, ListTenantsRequest());
  return print(json ? line_of(json_list(reply.tenants())) : tenants_text(reply.tenants(), terminal_width()));
}

Exit show_quotas(PooldClient& poold, bool json, const std::string& tenant) {
  if (tenant.empty()) {
    const auto reply = poold.call(&Admin::Stub::ListTenants, ListTenantsRequest());
    if (!json) return print(quotas_text(reply.tenants(), terminal_width()));
    Json quotas = Json::object();
    for (const Tenant& one : reply.tenants()) {
      if (one.configured()) quotas[one.name()] = json_of(one.quota());
    }
    return print(line_of(quotas));
  }
  GetQuotaRequest request;
  request.set_tenant(printable(tenant));
  const auto quota = poold.call(&Admin::Stub::GetQuota, request);
  return print(json ? line_of(Json{{tenant, json_of(quota)}}) : quota_text(tenant, quota));
}

Exit set_quota(PooldClient& poold, bool json, const std::string& tenant, const std::string& gpu,
               std::vector<std::string> words) {
  const bool as_each = !gpu.empty() && std::erase(words, "default") != 0;
  const auto changes = read_quota_words(words);
  if (!changes) throw Failure(kExitUsage, changes.error().message);
  SetQuotaRequest request;
  request.set_tenant(printable(tenant));
  *request.mutable_quota() = *changes;
  request.set_gpu(printable(gpu));
  request.set_as_each(as_each);
  const auto quota = poold.call(&Admin::Stub::SetQuota, request);
  warn_of_memory(poold, *changes);
  return print(json ? line_of(Json{{tenant, json_of(quota)}}) : quota_text(tenant, quota));
}

Exit kill_sessions(PooldClient& poold, bool json, const std::vector<std::string>& sessions,
                   const std::string& reason) {
  Exit status = kExitGood;
  Json killed = Json::array();
  for (const std::string& number : sessions) {
    const uint64_t session = std::stoull(number);
    KillSessionRequest request;
    request.set_session(session);
    request.set_reason(printable(reason));
    try {
      const auto reply = poold.call(&Admin::Stub::KillSession, request);
      killed.push_back({{"session", session}, {"grace_ms", reply.grace_ms()}});
      if (!json) {
        print("session " + std::to_string(session) + " is ending; it will be killed within " +
              time_text(reply.grace_ms()) + "\n");
      }
    } catch (const Failure& failure) {
      if (failure.status != kExitRefused) throw;
      std::fprintf(stderr, "pool-admin: %s\n", failure.what());
      status = failure.status;
    }
  }
  if (json) print(line_of(killed));
  return status;
}

Exit show_dump(PooldClient& poold, bool json, const std::string& session) {
  DumpSessionRequest request;
  request.set_session(std::stoull(session));
  const auto dump = poold.call(&Admin::Stub::DumpSession, request);
  print(json ? line_of(json_of(dump)) : dump_text(dump, terminal_width()));
  return dump.has_worker() ? kExitGood : kExitRefused;
}

Exit suspend_session(PooldClient& poold, bool json, const std::string& session, bool to_disk, bool encrypt,
                     std::chrono::seconds timeout) {
  SuspendSessionRequest request;
  request.set_session(std::stoull(session));
  request.set_to_disk(to_disk);
  request.set_encrypt(encrypt);
  SuspendSessionReply reply;
  ask_client(poold, timeout, &Admin::Stub::SuspendSession, request, reply, "session_suspended");
  const std::string reason = printable_message(reply.reason()), path = printable_message(reply.path());
  if (json) {
    print(line_of(Json{{"session", request.session()},
                       {"suspended", reply.suspended()},
                       {"reason", reason},
                       {"path", path},
                       {"bytes", reply.bytes()},
                       {"milliseconds", reply.milliseconds()}}));
  } else if (reply.suspended()) {
    print("session " + session + " is suspended to " + (path.empty() ? "host memory" : path) + ", " +
          bytes_text(reply.bytes()) + ", after " + time_text(reply.milliseconds()) + "\n");
  } else {
    std::fprintf(stderr, "pool-admin: session %s goes on: %s\n", session.c_str(), reason.c_str());
  }
  return reply.suspended() ? kExitGood : kExitRefused;
}

Exit resume_session(PooldClient& poold, bool json, const Resumption& resumption,
                    std::chrono::seconds timeout) {
  ResumeSessionRequest request;
  if (!resumption.session.empty()) request.set_session(std::stoull(resumption.session));
  request.set_at(printable(resumption.at));
  request.set_file(resumption.file);
  if (request.at() != resumption.at)
    throw Failure(kExitUsage, "--at: '" + resumption.at + "' is not a server's address");
  ResumeSessionReply reply;
  ask_client(poold, timeout, &Admin::Stub::ResumeSession, request, reply, "suspended_session_resumed");
  const std::string reason = printable_message(reply.reason());
  const std::string name =
      resumption.session.empty() ? "the file's session" : "session " + resumption.session;
  if (json) {
    print(line_of(Json{{"resumed", reply.resumed()},
                       {"reason", reason},
                       {"session", reply.session()},
                       {"milliseconds", reply.milliseconds()}}));
  } else if (reply.resumed()) {
    const std::string as =
        reply.session() == 0 ? "at " + resumption.at : "as session " + std::to_string(reply.session());
    print(name + " goes on " + as + " after " + time_text(reply.milliseconds()) + "\n");
  } else {
    std::fprintf(stderr, "pool-admin: %s stays suspended: %s\n", name.c_str(), reason.c_str());
  }
  return reply.resumed() ? kExitGood : kExitRefused;
}

Exit migrate_session(PooldClient& poold, bool json, const std::string& session, const std::string& to,
                     std::chrono::seconds timeout) {
  MigrateSessionRequest request;
  request.set_session(std::stoull(session));
  request.set_to(printable(to));
  if (request.to() != to) throw Failure(kExitUsage, "--to: '" + to + "' is not a server's address");
  MigrateSessionReply reply;
  ask_client(poold, timeout, &Admin::Stub::MigrateSession, request, reply, "migration_ended");
  const std::string reason = printable_message(reply.reason());
  if (json) {
    print(line_of(Json{{"session", request.session()},
                       {"migrated", reply.migrated()},
                       {"reason", reason},
                       {"milliseconds", reply.milliseconds()}}));
  } else if (reply.migrated()) {
    print("session " + session + " has migrated to " + to + " in " + time_text(reply.milliseconds()) + "\n");
  } else {
    std::fprintf(stderr, "pool-admin: session %s has not migrated: %s\n", session.c_str(), reason.c_str());
  }
  return reply.migrated() ? kExitGood : kExitRefused;
}

Exit upgrade_poold(PooldClient& poold, bool json, bool move_workers) {
  const auto before = poold.call(&Admin::Stub::Health, HealthRequest());
  const Poold now = upgrade(poold, before.upgrades());
  PooldClient upgraded(poold.socket());
  const Json moved = move_workers ? move_inherited(upgraded, json) : Json::array();
  const bool all = std::ranges::all_of(moved, [](const Json& one) { return one["migrated"].get<bool>(); });
  if (json) {
    print(line_of(Json{{"from", printable(before.version())},
                       {"to", printable(now.version())},
                       {"sessions", now.sessions()},
                       {"upgrades", now.upgrades()},
                       {"moved", moved}}));
  } else {
    print("poold goes on with version " + printable(now.version()) + " (before: " +
          printable(before.version()) + "); sessions: " + std::to_string(now.sessions()) + "\n");
  }
  return all ? kExitGood : kExitRefused;
}

Exit show_health(PooldClient& poold, bool json) {
  const auto reply = poold.call(&Admin::Stub::Health, HealthRequest());
  print(json ? line_of(json_of(reply)) : health_text(reply));
  return reply.ready() ? kExitGood : kExitRefused;
}

}  // namespace gpupool::admin
